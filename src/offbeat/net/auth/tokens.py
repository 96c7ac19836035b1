"""Tokens that prove a name, of a site or of the dashboard: printed once, stored as salted hashes in a file.

A token is "NAME:SECRET" with a secret of 256 random bits. Such a secret cannot be guessed from its hash
however fast the hash is, so plain SHA-256 does: a slow hash is for passwords that people choose, and would
let a stranger keep the server busy. The salt keeps equal files from being recognised. The file is read again
when it changes, so a token is replaced or revoked while the server runs.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from filelock import FileLock

from offbeat.core.errors import RunError, UsageError
from offbeat.net.address import check_name
from offbeat.net.auth.reloading import ReloadingFiles
from offbeat.runs.files import write_private

DASHBOARD = "@dashboard"
"""The name in the token of a live page; no site can have it."""
LOCK_SECONDS = 10.0  # how long to wait for another process that changes the file
_BYTES = 32
_AT_ONCE = 2  # tokens of a name that may be valid at once
_BARE_HASH = re.compile(rb"[0-9a-f]{64}\s*")  # the file of a page token of before there was a salt


class HashedToken(msgspec.Struct, frozen=True):
    """A token as it is stored: hexadecimal salt, and SHA-256 of salt and secret. An empty salt is none."""

    salt: str
    sha256: str

    def matches(self, secret: str) -> bool:
        """Whether this is the hash of a secret."""
        return hmac.compare_digest(self.sha256.encode(), _hash(self.salt, secret).encode())


StoredTokens = dict[str, tuple[HashedToken, ...]]
SampleRange = tuple[int, int]
"""Least and greatest number of training samples that a site may have."""


class TokenFile(msgspec.Struct, omit_defaults=True):
    """What a file of tokens has.

    Attributes:
        sites: The stored tokens by name.
        samples: The range of the numbers of samples by site, of those that have one.
    """

    sites: StoredTokens
    samples: dict[str, SampleRange] = {}


_NOBODY = HashedToken("0" * 32, "0" * 64)  # no secret has this hash


class Tokens:
    """The tokens of a file, as it is now.

    A file that is damaged later is reported in the log, and the tokens read before stay valid.

    Args:
        path: The file; without one there are no tokens.
        required_once_there: Whether a file that is deleted counts as damaged, and not as one without tokens.

    Raises:
        RunError: The file is damaged when it is first read.
    """

    def __init__(self, path: Path, *, required_once_there: bool = False) -> None:
        self._path, self._required = path, False
        self._keep = required_once_there
        self._stored = ReloadingFiles((path,), self._read, "the tokens read before stay valid")

    @property
    def empty(self) -> bool:
        """Whether there is no token."""
        return not self._stored.now().sites

    def name(self, token: str) -> str | None:
        """The name that a token proves; None for a token that is not valid.

        Whether the name is known, and how many tokens it has, makes no difference to the work.
        """
        name, colon, secret = token.partition(":")
        if not colon:
            name, secret = DASHBOARD, token
        stored = self._stored.now().sites.get(name, ())
        matches = [token.matches(secret) for token in (*stored, _NOBODY, _NOBODY)[:_AT_ONCE]]
        return name if any(matches) else None

    def sites(self) -> frozenset[str]:
        """Names of the sites that have a token."""
        return frozenset(self._stored.now().sites) - {DASHBOARD}

    def samples(self, site: str) -> SampleRange | None:
        """The numbers of samples that a site may have; None means any."""
        return self._stored.now().samples.get(site)

    def _read(self) -> TokenFile:
        self._required = self._required or (self._keep and self._path.exists())
        return read(self._path) if self._required else _read_if_there(self._path)


def check_token(token: str | None, command: str) -> None:
    """Raises `UsageError` for what is not a token that this command has printed."""
    if token is not None and not (token.isascii() and token.isprintable()):
        raise UsageError(f"token: it has characters that no token has; give the line that {command} printed")


def enrol(path: Path, site: str, *, keep: bool = False, samples: SampleRange | None = None) -> str:
    """Make a token for a site, as `make_token` does. Raises `UsageError` for a name no site can have."""
    check_name("site", site)
    return make_token(path, site, keep=keep, samples=samples)


def make_token(path: Path, name: str, *, keep: bool = False, samples: SampleRange | None = None) -> str:
    """Make a token, add its hash to the file and return it: it is stored nowhere.

    Args:
        path: The file of tokens; made if there is none, readable by its owner only.
        name: A site's name, or `DASHBOARD`.
        keep: The name's last token stays valid until the next one is made; else all its old ones end.
        samples: Range of the site's number of samples from now on; None leaves it as it is.

    Raises:
        RunError: The file is damaged.
        UsageError: The file cannot be written.
    """
    secret, salt = secrets.token_urlsafe(_BYTES), secrets.token_hex(16)
    with _changing(path) as stored:
        old = stored.sites.get(name, ())[-(_AT_ONCE - 1) :] if keep else ()
        stored.sites[name] = (*old, HashedToken(salt, _hash(salt, secret)))
        if samples is not None:
            stored.samples[name] = samples
    return f"{name}:{secret}"


def revoke(path: Path, site: str) -> None:
    """Delete every token of a site from the file. Raises `UsageError` if it has none."""
    known = _read_if_there(path).sites
    if site not in known:
        others = ", ".join(sorted(known)) or "nobody"
        raise UsageError(f"site {site!r} has no token in {path}; there are tokens of: {others}")
    with _changing(path) as stored:
        stored.sites.pop(site, None)
        stored.samples.pop(site, None)


def read(path: Path) -> TokenFile:
    """What a file of tokens has. Raises `RunError` if it is not such a file."""
    try:
        text = path.read_bytes()
        if _BARE_HASH.fullmatch(text):
            return TokenFile({DASHBOARD: (HashedToken("", text.decode().strip()),)})
        return msgspec.json.decode(text, type=TokenFile)
    except (msgspec.DecodeError, ValueError, OSError) as error:
        raise RunError(
            f"tokens = {path}: the file cannot be read ({error}); restore it from a copy, or delete it and "
            "make every token again"
        ) from None


def _read_if_there(path: Path) -> TokenFile:
    return read(path) if path.exists() else TokenFile({})


@contextmanager
def _changing(path: Path) -> Iterator[TokenFile]:
    """The stored tokens, to be changed within the context; one process at a time, and written at its end."""
    try:
        with FileLock(path.with_name(f".{path.name}.lock"), mode=0o600, timeout=LOCK_SECONDS):
            stored = _read_if_there(path)
            yield stored
            _write(path, stored)
    except OSError as error:
        raise UsageError(f"tokens = {path}: the file cannot be written ({error})") from None


def _write(path: Path, stored: TokenFile) -> None:
    """Replace the file as a whole, readable by its owner only."""
    text = msgspec.json.encode(TokenFile(dict(sorted(stored.sites.items())), stored.samples))
    write_private(path, msgspec.json.format(text, indent=1) + b"\n")


def _hash(salt: str, secret: str) -> str:
    text = f"{salt}:{secret}" if salt else secret
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
