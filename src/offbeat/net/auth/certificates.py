"""What a certificate says: what it is for, and whose it is."""

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from offbeat.core.errors import UsageError

SERVER, SITE = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
_UNREADABLE = (
    ValueError, x509.DuplicateExtension, x509.ExtensionNotFound, x509.UnsupportedGeneralNameType,
)  # fmt: skip
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
    except _UNREADABLE:
        # TLS reports what is no certificate.
        return
    if usage not in allowed and ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE not in allowed:
        wanted, name = _USAGE[usage]
        others = [words for each, (words, _) in _USAGE.items() if each in allowed]
        told = f"for {others[0]}" if others else "for other uses"
        raise UsageError(
            f"{option}: this certificate is {told}, not for {wanted}: have one signed whose extendedKeyUsage "
            f"has {name}, or that has none"
        )


def load_certificate(option: str, certificate: bytes) -> x509.Certificate:
    """Read a certificate (PEM). Raises `UsageError`, whose sentence begins with the option."""
    try:
        return x509.load_pem_x509_certificate(certificate)
    except ValueError:
        raise UsageError(f"{option} is no certificate: give one in PEM") from None


def check_pair(option: str, certificate: bytes, other: str, key: bytes) -> None:
    """Check that a key (PEM) is a certificate's, and has no password. Raises `UsageError`."""
    public = load_certificate(option, certificate).public_key()
    try:
        private = load_pem_private_key(key, password=None)
    except (ValueError, TypeError):
        raise UsageError(f"{other} cannot be read: give a PEM key without a password") from None
    if private.public_key() != public:
        raise UsageError(f"{other} is not the key of {option}: give its own")


def names_in(certificate: bytes) -> tuple[str, ...]:
    """The names of a certificate's holder.

    Args:
        certificate: The certificate, as PEM.

    Returns:
        Its common names; where it has none, its alternative names that are names of hosts. A text that is no
        certificate has none.
    """
    try:
        found = x509.load_pem_x509_certificate(certificate)
        common = [str(each.value) for each in found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        if common := [name for name in common if name]:
            return tuple(common)
        other = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except _UNREADABLE:
        return ()
    return tuple(other.get_values_for_type(x509.DNSName)) if len(other) == 1 else tuple(map(str, other))


def hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """The alternative names of a certificate that are names of hosts or addresses."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    return (
        *found.get_values_for_type(x509.DNSName),
        *map(str, found.get_values_for_type(x509.IPAddress)),
    )


def ends_at(certificate: bytes) -> float | None:
    """When a certificate expires, in seconds since 1970; None for a text that is no certificate."""
    try:
        return x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp()
    except ValueError:
        return None


def is_same(certificate: bytes, other: bytes) -> bool:
    """Whether two PEM texts begin with the same certificate."""
    try:
        first, second = (x509.load_pem_x509_certificate(pem) for pem in (certificate, other))
    except ValueError:
        return False
    return first == second


def tls_reason(error: Exception) -> str:
    """The reason of an error of TLS or of a socket, in plain words."""
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return str(reason or type(error).__name__).replace("_", " ").lower()
