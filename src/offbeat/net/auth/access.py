"""Who may look: tokens, of which only the hash is kept, and what may be open to a network at all."""

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
from pathlib import Path

from offbeat.core.errors import UsageError
from offbeat.net.address import is_loopback
from offbeat.net.auth.reloading import ReloadingFiles

_HASH = re.compile(r"[0-9a-f]{64}")
_LONGEST = 512  # characters of an Authorization header worth reading


def token_hash(token: str) -> str:
    """The SHA-256 of a token, in hex. Tokens are 256 random bits, so that no slower hash is needed."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def make_token(path: Path) -> str:
    """A new token: its hash goes to a file that only the owner can read, the token to whoever asked for it.

    A token made before for that file is no longer good. Raises `UsageError` if the file cannot be written.
    """
    token = secrets.token_urlsafe(32)
    beside = path.with_name(path.name + ".new")
    try:
        beside.unlink(missing_ok=True)
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(token_hash(token) + "\n")
        beside.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write the token's hash to {path}: {error}") from None
    return token


def read_token_hash(path: Path) -> str:
    """The hash that `make_token` wrote. Raises `UsageError` for any other file."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read a token's hash from {path}: {error}") from None
    if not _HASH.fullmatch(text):
        raise UsageError(f"{path} is not the hash of a token: make a new one")
    return text


class PageToken:
    """The token of a live page, as its file has it now; none as long as there has been no file.

    Raises `UsageError` if the file cannot be used when it is first read. One that is damaged or taken away
    later is reported in the log, and the token before goes on to count.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._found = path, False
        self._hash = ReloadingFiles(
            (path,), self._read, "whoever could look before still can, and nobody else"
        )

    def hash(self) -> str | None:
        """The hash of the token that a request must carry."""
        return self._hash.now()

    def _read(self) -> str | None:
        self._found = self._found or self._path.exists()
        return read_token_hash(self._path) if self._found else None


def authorised(header: str | None, known: str) -> bool:
    """Does an Authorization header carry the token of this hash, as bearer or as password of any user?"""
    if header is None or len(header) > _LONGEST:
        return False
    kind, _, rest = header.partition(" ")
    if kind.lower() == "bearer":
        token = rest.strip()
    elif kind.lower() == "basic":
        try:
            token = base64.b64decode(rest, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return False
    else:
        return False
    return hmac.compare_digest(token_hash(token), known)


def check_exposure(host: str, *, token: bool, tls: bool, plain: bool) -> None:
    """Beyond loopback a page needs a token, and TLS or the word that it may go unencrypted (`plain`)."""
    if is_loopback(host):
        return
    if not token:
        raise UsageError(
            f"dashboard on {host} needs a token, because others can reach it: "
            "make one, or listen on 127.0.0.1"
        )
    if not tls and not plain:
        raise UsageError(
            f"dashboard on {host} needs TLS, because the token would cross the network readable: give a "
            "certificate and its key, listen on 127.0.0.1, or accept that with --dashboard-unencrypted"
        )
