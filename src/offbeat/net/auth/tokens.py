"""Tokens that prove a site's name: made once, printed once, kept as salted hashes in a file.

A token is "SITE:SECRET" with a secret of 256 random bits. Such a secret cannot be guessed from its hash
however fast the hash is, so plain SHA-256 does: a slow hash is for passwords that people choose, and would
let a stranger keep the server busy. The salt keeps equal files from being recognised. The file is read again
when it changes, so a token is replaced or revoked while the server runs.
"""

import fcntl
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from offbeat.core.errors import RunError, UsageError
from offbeat.net.auth.reloading import ReloadingFiles
from offbeat.net.wire.fields import is_name
from offbeat.runs.files import sync_directory

_BYTES = 32
_AT_ONCE = 2  # tokens of a site that may be valid at once


@dataclass(frozen=True, slots=True)
class Hashed:
    """A token as it is kept: hexadecimal salt and SHA-256 of salt and secret."""

    salt: str
    sha256: str


class Tokens:
    """The tokens of a file, as it is now. Raises `RunError` if it is damaged when it is first read.

    One that is damaged later is reported in the log, and what was read before goes on to count.
    """

    def __init__(self, path: Path) -> None:
        self._sites = ReloadingFiles((path,), lambda: _kept(path), "the tokens read before go on to count")

    def site(self, token: str) -> str | None:
        """The site whose token this is; none if it is nobody's."""
        name, _, secret = token.partition(":")
        matches = [_matches(hashed, secret) for hashed in self._sites.now().get(name, ())]
        return name if any(matches) else None


def enrol(path: Path, site: str, *, keep: bool = False) -> str:
    """Make a token for a site, write its hash to the file and return it: it is nowhere else.

    With `keep` the site's last token stays valid too, until the next one is made; else none of the old ones
    does. Raises `UsageError` for a name that no site can have, `RunError` for a damaged file.
    """
    if not is_name(site):
        raise UsageError(
            f"site {site!r}: a name has 1 to 63 letters, digits, dots, underscores and hyphens of ASCII, and "
            "begins with a letter or digit"
        )
    secret, salt = secrets.token_urlsafe(_BYTES), secrets.token_hex(16)
    with _alone(path):
        sites = _kept(path)
        old = sites.get(site, ())[-(_AT_ONCE - 1) :] if keep else ()
        sites[site] = (*old, Hashed(salt, _hash(salt, secret)))
        _write(path, sites)
    return f"{site}:{secret}"


def revoke(path: Path, site: str) -> None:
    """Make every token of a site worthless. Raises `UsageError` if it has none."""
    with _alone(path):
        sites = _kept(path)
        if site not in sites:
            others = ", ".join(sorted(sites)) or "nobody"
            raise UsageError(f"site {site!r} has no token in {path}; there are tokens of: {others}")
        del sites[site]
        _write(path, sites)


def read(path: Path) -> dict[str, tuple[Hashed, ...]]:
    """The hashes of a file by site. Raises `RunError` if it is not such a file."""
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
        return {
            str(site): tuple(Hashed(str(one["salt"]), str(one["sha256"])) for one in kept)
            for site, kept in parsed["sites"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise RunError(
            f"tokens = {path}: the file cannot be read ({error}); restore it from a copy, or delete it and "
            "enrol every site again"
        ) from None


def _kept(path: Path) -> dict[str, tuple[Hashed, ...]]:
    """What a file holds; nothing as long as there is none."""
    return read(path) if path.exists() else {}


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Whoever else changes the file waits: of two at once, the later would undo what the earlier did."""
    try:
        directory = os.open(path.parent, os.O_RDONLY)
    except FileNotFoundError:  # so there is nothing to change either
        yield
        return
    except OSError as error:
        raise _cannot_write(path, error) from None
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _write(path: Path, sites: Mapping[str, tuple[Hashed, ...]]) -> None:
    """Replace the file as a whole, readable by its owner only. Raises `UsageError` where that fails."""
    text = json.dumps(
        {"sites": {s: [asdict(one) for one in kept] for s, kept in sorted(sites.items())}}, indent=1
    )
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise _cannot_write(path, error) from None


def _cannot_write(path: Path, error: OSError) -> UsageError:
    return UsageError(f"tokens = {path}: the file cannot be written ({error})")


def _hash(salt: str, secret: str) -> str:
    return hashlib.sha256(f"{salt}:{secret}".encode("utf-8", "replace")).hexdigest()


def _matches(kept: Hashed, secret: str) -> bool:
    return hmac.compare_digest(kept.sha256.encode(), _hash(kept.salt, secret).encode())
