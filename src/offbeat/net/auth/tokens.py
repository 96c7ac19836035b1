"""Tokens that prove a name, of a site or of the dashboard: printed once, stored as salted hashes in a file.

A token is "NAME:SECRET" with a secret of 256 random bits. Such a secret cannot be guessed from its hash
however fast the hash is, so plain SHA-256 does: a slow hash is for passwords that people choose, and would
let a stranger keep the server busy. The salt keeps equal files from being recognised. The file is read again
when it changes, so a token is replaced or revoked while the server runs.

A token may expire. It is then renewed before its end: the new one is stored beside it, and the old one ends
when the new one is used for the first time, or at its own expiry. So a process may die at any moment, and one
of the two is valid. Only the process that has the site's key gets another token: the key that came with the
token's first connection.

The file also has what was done to it, the last acts: so that a token that a person has ended is told apart
from one that a file of before, or another file, does not have.
"""

import hashlib
import hmac
import math
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from filelock import FileLock

from offbeat.core.errors import RunError, UsageError, reason_of
from offbeat.documents import read_bytes
from offbeat.net.address import check_name
from offbeat.net.auth.person import person
from offbeat.net.auth.reloading import ReloadingFiles
from offbeat.runs.durable_files import write_private

DASHBOARD = "@dashboard"
"""The name in the token of a live page; no site can have it."""
# How long to wait for another process that changes the file.
LOCK_SECONDS = 10.0
_MOST_BYTES = 2**26  # of a file of tokens
_BYTES = 32
# Number of tokens of a name that may be valid at once: two made by hand, and two renewals.
_AT_ONCE = 4
MOST_ACTS = 500
"""Number of the last acts that a file has."""
ENDS = ("site.revoke", "token.revoke")
"""The acts that end a token."""
# A token is renewed after this share of its life.
_RENEWED_AT = 2 / 3
_BARE_HASH = re.compile(rb"[0-9a-f]{64}\s*")  # the file of a page token of before there was a salt


class HashedToken(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token as it is stored: hexadecimal salt, and SHA-256 of salt and secret. An empty salt is none.

    `made` and `expires` are seconds since 1970; a token that expires at 0 never does. `replaces` is the hash
    of the token that ends when this one is used for the first time; empty for one that renews none. `key` is
    the hash of the site's key, without which it is not renewed; empty until the site has shown one.
    """

    salt: str
    sha256: str
    made: int = 0
    expires: int = 0
    replaces: str = ""
    key: str = ""

    def matches(self, secret: str) -> bool:
        """Whether this is the hash of a secret."""
        return hmac.compare_digest(self.sha256.encode(), _hash(self.salt, secret).encode())

    def expired(self, now: float) -> bool:
        """Whether it has expired."""
        return 0 < self.expires <= now

    def is_of(self, key: str) -> bool:
        """Whether it is bound to a site's key."""
        return bool(self.key) and hmac.compare_digest(self.key.encode(), _hash("", key).encode())

    @property
    def renewed_at(self) -> float:
        """When it is to be renewed; infinite for a token that never expires."""
        return self.made + (self.expires - self.made) * _RENEWED_AT if self.expires else math.inf

    @property
    def label(self) -> str:
        """The word that logs call it by."""
        return self.sha256[:8]


class TokenAct(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was done to a token.

    Attributes:
        at: When, in seconds since 1970.
        action: The action, as the audit names it.
        site: The name in the token.
        token: The token, as it was stored then.
        by: The person who did it. Empty means the site's renewal.
    """

    at: int
    action: str
    site: str
    token: HashedToken
    by: str = ""


class TokenProof(msgspec.Struct, frozen=True):
    """The stored token that a secret matches, which may have expired, and the name that it proves.

    `ended` is the act that has ended it. None means that nobody has.
    """

    name: str
    stored: HashedToken
    ended: TokenAct | None = None


StoredTokens = dict[str, tuple[HashedToken, ...]]
SampleRange = tuple[int, int]
"""Least and greatest number of training samples that a site may have."""


class TokenFile(msgspec.Struct, omit_defaults=True):
    """What a file of tokens has.

    Attributes:
        sites: The stored tokens by name.
        samples: The range of the numbers of samples by site, of those that have one.
        acts: The last acts, in their order.
    """

    sites: StoredTokens
    samples: dict[str, SampleRange] = {}
    acts: tuple[TokenAct, ...] = ()


# No secret has this hash.
_NOBODY = HashedToken("0" * 32, "0" * 64)


class Tokens:
    """The tokens of a file, which is read again when it changes.

    If the file is damaged or missing later, the log says so, and the tokens read before stay valid.

    Args:
        path: The file. If it does not exist yet, there are no tokens.
        clock: Function that returns seconds since 1970.
        on_change: Called with the last acts, now and whenever the file has changed.

    Attributes:
        path: The file.

    Raises:
        RunError: The file is damaged when it is first read.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
        on_change: Callable[[Sequence[TokenAct]], None] = lambda _: None,
    ) -> None:
        self.path, self._was_there, self.clock = path, False, clock
        message = "the tokens read before stay valid"
        self._stored = ReloadingFiles((path,), self._read, message, lambda file: on_change(file.acts))
        on_change(self._stored.now().acts)

    @property
    def empty(self) -> bool:
        """Whether there is no token."""
        return not self._stored.now().sites

    def name(self, token: str) -> str | None:
        """The name that a token proves; None for a token that is not valid."""
        proof = self.proof(token)
        if proof is None or proof.ended is not None or proof.stored.expired(self.clock()):
            return None
        return proof.name

    def proof(self, token: str) -> TokenProof | None:
        """The stored token that a token matches, expired or ended or not; None for one that matches none.

        Whether the name is known, and how many tokens it has, makes no difference to the work.
        """
        name, secret = split_token(token)
        file = self._stored.now()
        ended = [act for act in file.acts if act.site == name and act.action in ENDS][-_AT_ONCE:]
        nobody = [TokenProof(name, _NOBODY)] * _AT_ONCE
        valid = [*(TokenProof(name, each) for each in file.sites.get(name, ())), *nobody][:_AT_ONCE]
        past = [*(TokenProof(name, act.token, act) for act in ended), *nobody][:_AT_ONCE]
        matching = [each for each in (*valid, *past) if each.stored.matches(secret)]
        return matching[0] if matching else None

    def stored(self) -> StoredTokens:
        """All stored tokens, by name."""
        return self._stored.now().sites

    def sites(self) -> frozenset[str]:
        """Names of the sites that have a token."""
        return frozenset(self._stored.now().sites) - {DASHBOARD}

    def samples(self, site: str) -> SampleRange | None:
        """The numbers of samples that a site may have; None means any."""
        return self._stored.now().samples.get(site)

    def _read(self) -> TokenFile:
        # A file that was there and is missing is no word of anybody's that its tokens have ended.
        file = read(self.path) if self._was_there else _read_if_there(self.path)
        self._was_there = self._was_there or bool(file.sites or file.acts)
        return file


def check_token(token: str | None, command: str) -> None:
    """Raises `UsageError` for what is not a token that this command has printed."""
    if token is not None and not (token.isascii() and token.isprintable()):
        raise UsageError(f"token: it has characters that no token has; give the line that {command} printed")


def split_token(token: str) -> tuple[str, str]:
    """The name in a token and its secret; a page's token of before has no name."""
    name, colon, secret = token.partition(":")
    return (name, secret) if colon else (DASHBOARD, token)


def make_token(
    path: Path,
    name: str,
    *,
    keep: bool = False,
    samples: SampleRange | None = None,
    life: int = 0,
    hand_over: Callable[[str], object] | None = None,
    by: str = "",
) -> str:
    """Make a token, add its hash to the file, and return the token, which is stored nowhere.

    Args:
        path: The file of tokens. A missing file is made, and only its owner can read it.
        name: A site's name, or `DASHBOARD`.
        keep: Whether the name's last token stays valid until the next token is made. If not, all old tokens
            of the name end.
        samples: Range of the site's number of samples from now on. None leaves the range as it is.
        life: Seconds after which the token expires. 0 means never.
        hand_over: Called with the token before any token changes. Where it fails, all stay as they are. None
            means that the caller hands the token over.
        by: The person who makes it. Empty means the system's user.

    Raises:
        RunError: The file is damaged.
        UsageError: No site can have the name, the file cannot be written, or the token cannot be handed over.
    """
    if name != DASHBOARD:
        check_name("site", name)
    now = time.time()
    token, hashed = _new_token(name, life, now)
    with _changing(path, make=True) as stored:
        if hand_over is not None:
            try:
                hand_over(token)
            except UsageError as error:
                raise UsageError(f"{error}; no token has changed") from None
        before, by = stored.sites.get(name, ()), by or person()
        kept = _last(before) if keep else ()
        stored.sites[name] = (*kept, hashed)
        _note(stored, now, "token.revoke", name, [each for each in before if each not in kept], by)
        _note(stored, now, "token.make" if before else "site.enrol", name, [hashed], by)
        if samples is not None:
            stored.samples[name] = samples
    return token


def claim(path: Path, token: str, key: str, now: float) -> bool:
    """Bind a site's token to the site's key, if it is bound to none; returns whether it is bound to this key.

    Args:
        path: The file of tokens.
        token: The token.
        key: The site's key.
        now: Seconds since 1970.

    Raises:
        RunError: The file is damaged.
        UsageError: The file cannot be written.
    """
    name, secret = split_token(token)
    with _changing(path) as stored:
        tokens = stored.sites.get(name, ())
        own = next((each for each in tokens if each.matches(secret)), None)
        if own is None or own.key:
            return own is not None and own.is_of(key)
        bound = msgspec.structs.replace(own, key=_hash("", key))
        stored.sites[name] = tuple(bound if each is own else each for each in tokens)
        _note(stored, now, "token.key", name, [bound], "")
    return True


def renew(path: Path, token: str, key: str, now: float) -> tuple[str, int] | None:
    """Make a token that takes the place of a site's at its first use, with as long a life.

    The token itself stays valid, as do those that were made by hand; a renewal that was never used ends.

    Args:
        path: The file of tokens.
        token: The token that is to be renewed.
        key: The site's key.
        now: Seconds since 1970.

    Returns:
        The new token, and when it expires. None means that the token is not valid any more, or not of this
        key.

    Raises:
        RunError: The file is damaged.
        UsageError: The file cannot be written.
    """
    name, secret = split_token(token)
    with _changing(path) as stored:
        kept = [each for each in stored.sites.get(name, ()) if not each.expired(now)]
        own = next((each for each in kept if each.matches(secret)), None)
        if own is None or not own.expires or not own.is_of(key):
            return None
        new, hashed = _new_token(name, own.expires - own.made, now, replaces=own.sha256, key=own.key)
        before = stored.sites[name]
        stored.sites[name] = (*(each for each in kept if not each.replaces or each is own), hashed)
        unused = [each for each in before if each not in stored.sites[name]]
        _note(stored, now, "token.revoke", name, unused, "")
        _note(stored, now, "token.renew", name, [hashed], "")
    return new, hashed.expires


def use(path: Path, token: str) -> None:
    """End what a renewal replaces, now that it is used for the first time. Raises as `renew` does."""
    name, secret = split_token(token)
    with _changing(path) as stored:
        by_hash = {each.sha256: each for each in stored.sites.get(name, ())}
        used = next((each for each in by_hash.values() if each.matches(secret)), None)
        if used is None:
            return
        by_hash[used.sha256] = msgspec.structs.replace(used, replaces="")
        # A token may have been renewed again before it was used.
        while used is not None and used.replaces:
            if (used := by_hash.pop(used.replaces, None)) is not None:
                _note(stored, time.time(), "token.revoke", name, [used], "")
        stored.sites[name] = tuple(by_hash.values())


def _last(stored: tuple[HashedToken, ...]) -> tuple[HashedToken, ...]:
    """The last token that was made by hand, and its renewals, which the site may have stored already."""
    by_hand = [i for i, each in enumerate(stored) if not each.replaces]
    return stored[by_hand[-1] if by_hand else 0 :]


def _new_token(
    name: str, life: int, now: float, replaces: str = "", key: str = ""
) -> tuple[str, HashedToken]:
    """A token of a name, and what is stored of it."""
    secret, salt = secrets.token_urlsafe(_BYTES), secrets.token_hex(16)
    made, expires = (int(now), int(now) + life) if life else (0, 0)
    return f"{name}:{secret}", HashedToken(salt, _hash(salt, secret), made, expires, replaces, key)


def _note(
    stored: TokenFile, now: float, action: str, site: str, tokens: Sequence[HashedToken], by: str
) -> None:
    """Add acts to a file, and forget the oldest."""
    acts = (*stored.acts, *(TokenAct(int(now), action, site, each, by) for each in tokens))
    stored.acts = acts[-MOST_ACTS:]


def revoke(path: Path, site: str, by: str = "") -> None:
    """End every token of a site. Raises `UsageError` if it has none.

    Args:
        path: The file of tokens.
        site: The site's name.
        by: The person who revokes them. Empty means the system's user.
    """
    known = _read_if_there(path).sites
    if site not in known:
        others = ", ".join(sorted(known)) or "nobody"
        raise UsageError(f"site {site!r} has no token in {path}; there are tokens of: {others}")
    with _changing(path) as stored:
        _note(stored, time.time(), "site.revoke", site, stored.sites.pop(site, ()), by or person())
        stored.samples.pop(site, None)


def read(path: Path) -> TokenFile:
    """What a file of tokens has. Raises `RunError` if it is not such a file."""
    try:
        return _decode(read_bytes(path, _MOST_BYTES))
    except (msgspec.DecodeError, ValueError, OSError, RecursionError) as error:
        raise RunError(
            f"tokens = {path}: the file cannot be read ({reason_of(error)}); restore it from a copy, "
            "or delete it and make every token again"
        ) from None


def is_whole(data: bytes) -> bool:
    """Whether these are the bytes of a file of tokens."""
    try:
        _decode(data)
    except (msgspec.DecodeError, ValueError):
        return False
    return True


def _decode(data: bytes) -> TokenFile:
    if _BARE_HASH.fullmatch(data):
        return TokenFile({DASHBOARD: (HashedToken("", data.decode().strip()),)})
    return msgspec.json.decode(data, type=TokenFile)


def _read_if_there(path: Path) -> TokenFile:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return TokenFile({})
    except OSError:
        # `read` says why nobody may look at it.
        pass
    return read(path)


@contextmanager
def _changing(path: Path, *, make: bool = False) -> Iterator[TokenFile]:
    """The stored tokens, to be changed within the context; one process at a time, and written at its end.

    A missing file is made only if the caller says so: a server that renews a token would make one without
    the tokens of all other sites.
    """
    try:
        with FileLock(path.with_name(f".{path.name}.lock"), mode=0o600, timeout=LOCK_SECONDS):
            stored = _read_if_there(path) if make else read(path)
            before = msgspec.json.encode(stored)
            yield stored
            if msgspec.json.encode(stored) != before:
                _write(path, stored)
    except OSError as error:
        raise UsageError(f"tokens = {path}: the file cannot be written ({reason_of(error)})") from None


def _write(path: Path, stored: TokenFile) -> None:
    """Replace the file as a whole, readable by its owner only."""
    text = msgspec.json.encode(TokenFile(dict(sorted(stored.sites.items())), stored.samples, stored.acts))
    write_private(path, msgspec.json.format(text, indent=1) + b"\n")


def _hash(salt: str, secret: str) -> str:
    text = f"{salt}:{secret}" if salt else secret
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
