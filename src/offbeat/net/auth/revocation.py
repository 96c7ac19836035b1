"""Certificates that are revoked, though their authority signed them and they have not expired.

The file is the authority's certificate revocation list (CRL, as PEM or DER), or a list of serial numbers, one
a line as `openssl x509 -noout -serial` prints it:

    serial=3A7F03C2    # north, its laptop was stolen

It is read again when it changes, so a certificate is revoked while the server runs. gRPC for Python cannot be
given a CRL, so the server looks up the certificate of each connection itself.
"""

import re
from collections.abc import Callable
from pathlib import Path

from cryptography import x509

from offbeat.core.errors import UsageError, reason_of
from offbeat.documents import read_bytes
from offbeat.net.auth.reloading import ReloadingFiles

_MOST_BYTES = 2**26  # of a list
_LINE = re.compile(r"serial=([0-9a-f]{1,64})", re.ASCII | re.IGNORECASE)
_PEM, _DER = b"-----BEGIN X509 CRL-----", b"\x30"  # how a CRL has or begins with


class RevocationList:
    """The serial numbers of revoked certificates of a file, as it is now.

    A file that cannot be read later is reported in the log, and the numbers read before stay in force.

    Args:
        path: The file.
        authority: The certificates (PEM) of the authorities, one of which must have signed a CRL.
        on_reload: Called whenever the file was read again.

    Raises:
        UsageError: The file cannot be read when it is first.
    """

    def __init__(self, path: Path, authority: Path, on_reload: Callable[[], None] = lambda: None) -> None:
        message = "the certificates revoked before stay so, and no others are"
        again = lambda _: on_reload()  # noqa: E731
        self._serials = ReloadingFiles((path,), lambda: read(path, authority), message, again)

    def __contains__(self, number: int) -> bool:
        """Whether the certificate with this serial number is revoked."""
        return number in self._serials.now()


def read(path: Path, authority: Path) -> frozenset[int]:
    """The serial numbers of a file. Raises `UsageError` if it is neither a CRL nor a list of them."""
    try:
        data = read_bytes(path, _MOST_BYTES)
        if _PEM in data or data.startswith(_DER):
            crl = x509.load_pem_x509_crl(data) if _PEM in data else x509.load_der_x509_crl(data)
            _check_signature(path, crl, authority)
            return frozenset(revoked.serial_number for revoked in crl)
        lines = data.decode().splitlines()
    except UsageError:
        raise
    except (OSError, ValueError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else "neither a CRL nor text"
        raise UsageError(
            f"revoked = {path}: the file cannot be read ({reason}); give a CRL (PEM or DER) or a list of "
            "serial numbers, an empty one as long as no certificate is revoked"
        ) from None
    return frozenset(
        _number(path, number, text)
        for number, line in enumerate(lines, 1)
        if (text := line.partition("#")[0].strip())
    )


def serial(certificate: bytes) -> int:
    """The serial number of a certificate (PEM). Raises `ValueError` if it cannot be read."""
    return x509.load_pem_x509_certificate(certificate).serial_number


def _check_signature(path: Path, crl: x509.CertificateRevocationList, authority: Path) -> None:
    for certificate in x509.load_pem_x509_certificates(read_bytes(authority)):
        key = certificate.public_key()
        if certificate.subject == crl.issuer and crl.is_signature_valid(key):  # type: ignore[arg-type]
            return
    raise UsageError(f"revoked = {path}: no certificate of client-ca = {authority} has signed this CRL")


def _number(path: Path, line: int, text: str) -> int:
    match = _LINE.fullmatch(text.replace(":", ""))
    if match is None:
        raise UsageError(
            f"revoked = {path}: line {line} is {text[:80]!r}; give serial=HEX, as `openssl x509 -noout "
            "-serial` prints it, or a comment after #"
        )
    return int(match[1], 16)
