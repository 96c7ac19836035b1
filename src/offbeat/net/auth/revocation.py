"""Certificates that no longer count, though their authority signed them and they have not expired.

A file of serial numbers, a certificate on each line as `openssl x509 -noout -serial` prints it:

    serial=3A7F03C2    # north, its laptop was stolen

It is read again when it changes, so a certificate is revoked while the server runs. gRPC for Python cannot be
given a CRL; an authority's CRL is turned into such a file by the command in the deployment guide.
"""

import re
import ssl
from pathlib import Path

from offbeat.core.errors import UsageError
from offbeat.net.auth.reloading import ReloadingFiles

_LINE = re.compile(r"serial=([0-9a-f]{1,64})", re.ASCII | re.IGNORECASE)
_SEQUENCE, _INTEGER, _VERSION = 0x30, 0x02, 0xA0  # tags of DER


class RevocationList:
    """The certificates of a file, as it is now. Raises `UsageError` if it cannot be read when it is first.

    One that cannot be read later is reported in the log, and what was read before goes on to count.
    """

    def __init__(self, path: Path) -> None:
        stays = "the certificates revoked before stay so, and no others are"
        self._serials = ReloadingFiles((path,), lambda: read(path), stays)

    def has(self, number: int) -> bool:
        """Is the certificate with this serial number one of them?"""
        return number in self._serials.now()


def read(path: Path) -> frozenset[int]:
    """The serial numbers of a file. Raises `UsageError` if it is not such a file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(
            f"revoked = {path}: the file cannot be read ({why}); give a file of serial numbers, an empty one "
            "as long as no certificate is revoked"
        ) from None
    return frozenset(
        _number(path, number, text)
        for number, line in enumerate(lines, 1)
        if (text := line.partition("#")[0].strip())
    )


def _number(path: Path, line: int, text: str) -> int:
    match = _LINE.fullmatch(text.replace(":", ""))
    if match is None:
        raise UsageError(
            f"revoked = {path}: line {line} is {text[:80]!r}; give serial=HEX, as `openssl x509 -noout "
            "-serial` prints it, or a comment after #"
        )
    return int(match[1], 16)


def serial(certificate: bytes) -> int:
    """The serial number of a certificate (PEM). Raises `ValueError` if it has none that can be read."""
    der = ssl.PEM_cert_to_DER_cert(certificate.decode("ascii").strip())
    signed, _ = _value(der, _SEQUENCE)  # of the certificate: what is signed, and the signature
    fields, _ = _value(signed, _SEQUENCE)
    if fields[:1] == bytes([_VERSION]):
        _, fields = _value(fields, _VERSION)
    number, _ = _value(fields, _INTEGER)
    return int.from_bytes(number, "big")


def _value(der: bytes, tag: int) -> tuple[bytes, bytes]:
    """The value that `der` begins with, which must have this tag, and what is after it."""
    if len(der) < 2 or der[0] != tag:
        raise ValueError("the certificate is not one")
    size, start = der[1], 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(der[2:start], "big")
    if len(der) < start + size:
        raise ValueError("the certificate is not whole")
    return der[start : start + size], der[start + size :]
