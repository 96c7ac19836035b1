"""A server's own certificate authority: it signs the server's certificate, and renews it.

The authority is in the folder `tls` of a state directory. Only the owner can read the files, the certificates
too, like all files of a state directory. A person who has `ca.key` can be the server to every site.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from filelock import FileLock

from offbeat.core.errors import UsageError, reason_of
from offbeat.documents import read_bytes
from offbeat.net.auth.certificates import hosts_of
from offbeat.runs.durable_files import make_directory, write_private

FOLDER = "tls"
"""The folder of a state directory that has the authority's files."""
CA_LIFE, SERVER_LIFE = timedelta(days=3650), timedelta(days=365)
RENEWED_BEFORE = timedelta(days=30)
"""How long before its end the server's certificate is renewed."""
# A site's clock may be late by so much.
_SKEW = timedelta(days=1)
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_DNS_NAME = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*", re.ASCII | re.IGNORECASE)
_LONGEST_NAME, _LONGEST_COMMON_NAME = 253, 64


@dataclass(frozen=True, slots=True)
class OwnAuthority:
    """The files of a state directory's own certificate authority, which need not be there.

    Attributes:
        directory: The state directory.
    """

    directory: Path

    @property
    def ca(self) -> Path:
        """The authority's certificate (PEM)."""
        return self.directory / FOLDER / "ca.pem"

    @property
    def ca_key(self) -> Path:
        """Its private key."""
        return self.directory / FOLDER / "ca.key"

    @property
    def certificate(self) -> Path:
        """The server's certificate (PEM)."""
        return self.directory / FOLDER / "server.pem"

    @property
    def key(self) -> Path:
        """The server's private key."""
        return self.directory / FOLDER / "server.key"

    @property
    def exists(self) -> bool:
        """Whether there is an authority."""
        return self.ca.exists()

    @property
    def names(self) -> tuple[str, ...]:
        """The names and addresses that the server's certificate is for. Raises `UsageError`."""
        return hosts_of(_certificate(self.certificate))

    @property
    def expires(self) -> datetime:
        """When the server's certificate expires. Raises `UsageError`."""
        return _certificate(self.certificate).not_valid_after_utc

    @property
    def fingerprint(self) -> str:
        """The SHA-256 fingerprints of all certificates in the authority's file. Raises `UsageError`."""
        return fingerprints(_certificates(self.ca))

    def issue(self, hosts: Sequence[str] = (), now: datetime | None = None) -> None:
        """Sign a certificate of the server, which takes the place of the one before.

        The authority is made where there is none. The server's key stays, so that one file changes: whenever
        the process dies, key and certificate fit.

        Args:
            hosts: Names and addresses by which sites reach the server. None given means those of the
                certificate before.
            now: The time. None means the system's.

        Raises:
            UsageError: A host is none, none is given or known, or a file cannot be read or written.
        """
        hosts = tuple(dict.fromkeys(map(check_host, hosts)))
        if not hosts and not self.certificate.exists():
            raise UsageError(
                f"{self.directory} has no certificate yet: give --host NAME, by which sites reach the server"
            )
        now = now or datetime.now(UTC)
        try:
            make_directory(self.directory)
            make_directory(self.directory / FOLDER)
            with FileLock(self.directory / FOLDER / ".lock", mode=0o600, timeout=10.0):
                hosts = hosts or self.names
                self._make_authority(now)
                key = _key(self.key) if self.key.exists() else _new_key(self.key)
                signed = _sign_server(_certificate(self.ca), _key(self.ca_key), key, hosts, now)
                write_private(self.certificate, signed.public_bytes(Encoding.PEM))
        except OSError as error:
            raise UsageError(f"{self.directory / FOLDER} cannot be written: {reason_of(error)}") from None

    def renew_if_due(self, now: datetime | None = None) -> bool:
        """Renew the server's certificate if it ends soon; returns whether it did. Raises `UsageError`."""
        now = now or datetime.now(UTC)
        if self.expires - now > RENEWED_BEFORE:
            return False
        self.issue(now=now)
        return True

    def _make_authority(self, now: datetime) -> None:
        """Make the authority's key and certificate, as far as they are missing."""
        if self.ca.exists() and not self.ca_key.exists():
            raise UsageError(
                f"{self.ca_key} is missing, and only the key of the authority that sites trust can sign: put "
                "it back, or delete the folder and make every kit again"
            )
        if not self.ca.exists():
            key = _key(self.ca_key) if self.ca_key.exists() else _new_key(self.ca_key)
            write_private(self.ca, _sign_authority(key, now).public_bytes(Encoding.PEM))


def check_host(host: str) -> str:
    """A name or an address as a certificate has it. Raises `UsageError` for what is neither."""
    bare = host.removeprefix("[").removesuffix("]")
    try:
        return str(ip_address(bare))
    except ValueError:
        pass
    if len(host) > _LONGEST_NAME or not _DNS_NAME.fullmatch(host) or host.rpartition(".")[2].isdigit():
        raise UsageError(
            f"--host {host[:80]!r} is not allowed: give a name of letters, digits, hyphens and dots, such as "
            "fl.example.org, or an IP address, without a port"
        )
    return host.lower()


def covers(hosts: Sequence[str], host: str) -> bool:
    """Whether a certificate for these hosts is for a host."""
    wanted = check_host(host)
    star = f"*.{wanted.partition('.')[2]}"
    return wanted in hosts or (star in hosts and not wanted[0].isdigit())


def fingerprints(certificates: Sequence[x509.Certificate]) -> str:
    """The SHA-256 fingerprint of each certificate, as `openssl x509 -fingerprint -sha256` prints it.

    There are commas between: whoever trusts several certificates compares several.
    """
    return ", ".join(each.fingerprint(hashes.SHA256()).hex(":").upper() for each in certificates)


def _certificate(path: Path) -> x509.Certificate:
    """The first certificate of a file: in one with several, the others sign it."""
    return _certificates(path)[0]


def _certificates(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(read_bytes(path))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} cannot be read as a certificate ({reason_of(error)}): restore it from a copy"
        ) from None


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(read_bytes(path), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"{path} cannot be read as a key ({reason_of(error)}): restore it from a copy"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UsageError(f"{path} is no key of an elliptic curve: restore it from a copy")
    return key


def _new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A new key, durable in its file."""
    key = ec.generate_private_key(ec.SECP256R1())
    write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return key


def _sign_authority(key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    """The authority's certificate, signed by itself; its name is random, so that two can be told apart."""
    name = _named(f"Offbeat CA {os.urandom(4).hex()}")
    uses = _key_usage(key_cert_sign=True)
    return (
        _begun(name, name, key, now, now + CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(uses, critical=True)
        .sign(key, hashes.SHA256())
    )


def _sign_server(
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
    now: datetime,
) -> x509.Certificate:
    """A certificate of the server, for these hosts."""
    if ca.public_key() != ca_key.public_key():
        raise UsageError("ca.key is not the key of ca.pem: restore both from one copy")
    ends = min(now + SERVER_LIFE, ca.not_valid_after_utc)
    if ends <= now:
        raise UsageError(
            f"the certificate authority expired on {ends:%Y-%m-%d}: delete its folder, and make every kit "
            "again"
        )
    named = next((host for host in hosts if len(host) <= _LONGEST_COMMON_NAME), "Offbeat server")
    issuer_key_id = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    return (
        _begun(_named(named), ca.subject, key, now, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key_id), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, ends: datetime
) -> x509.CertificateBuilder:
    """What both kinds of certificate have."""
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature, key_cert_sign=key_cert_sign, crl_sign=key_cert_sign,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
