"""What a certificate is for: its extended key usage, if it has one."""

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from offbeat.core.errors import UsageError

SERVER, SITE = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
_USAGE = {SERVER: ("servers", "serverAuth"), SITE: ("sites", "clientAuth")}


def check_usage(option: str, certificate: bytes, usage: x509.ObjectIdentifier) -> None:
    """Check that a certificate (PEM) is for a `SERVER` or for a `SITE`; one that does not say is for both.

    TLS refuses others too, but tells neither side why.

    Raises:
        UsageError: It is not; the sentence begins with the option.
    """
    try:
        found = x509.load_pem_x509_certificate(certificate).extensions
        allowed = found.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (ValueError, x509.ExtensionNotFound):  # what is no certificate TLS reports
        return
    if usage not in allowed and ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE not in allowed:
        wanted, name = _USAGE[usage]
        others = [words for each, (words, _) in _USAGE.items() if each in allowed]
        told = f"for {others[0]}" if others else "for other uses"
        raise UsageError(
            f"{option}: this certificate is {told}, not for {wanted}: have one signed whose extendedKeyUsage "
            f"has {name}, or that has none"
        )


def is_same(certificate: bytes, other: bytes) -> bool:
    """Whether two PEM texts begin with the same certificate."""
    try:
        first, second = (x509.load_pem_x509_certificate(pem) for pem in (certificate, other))
    except ValueError:
        return False
    return first == second
