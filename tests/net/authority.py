"""Certificates of a test, signed here."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest


class Authority:
    """A certificate authority of a test."""

    def __init__(self, folder: Path, name: str) -> None:
        crypto = pytest.importorskip("cryptography")
        assert crypto
        from cryptography.hazmat.primitives.asymmetric import ec

        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._issued = self._sign((name,), self._key.public_key(), ca=True)
        self.file = self._save("ca", self._issued)

    def issue(
        self,
        name: str,
        days: float = 1.0,
        host: str | None = None,
        usage: str | None = None,
        common: Sequence[str] | None = None,
        hosts: Sequence[str] = (),
    ) -> tuple[Path, Path]:
        """A certificate and its key, valid for so many days (negative: no more).

        `usage` is "server", "client" or "other", and None for one that does not say. `common` has its common
        names, by default the name alone; `hosts` its alternative names beside the address `host`.
        """
        from cryptography.hazmat.primitives import serialization as s
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._save(
            name,
            self._sign((name,) if common is None else common, key.public_key(), days, host, usage, hosts),
        )
        pem = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
        path = self._folder / f"{self._name}-{name}.key"
        path.write_bytes(pem)
        return certificate, path

    def crl(self, revoked: Iterable[int], encoding: str) -> bytes:
        """A revocation list of these serial numbers, as "PEM" or "DER"."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.serialization import Encoding

        now = datetime.now(UTC)
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, self._name)])
        made = x509.CertificateRevocationListBuilder(name, now, now + timedelta(days=1))
        for number in revoked:
            one = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now).build()
            made = made.add_revoked_certificate(one)
        return made.sign(self._key, hashes.SHA256()).public_bytes(getattr(Encoding, encoding))

    def _save(self, name: str, certificate: object) -> Path:
        from cryptography.hazmat.primitives import serialization as s
        from cryptography.x509 import Certificate

        assert isinstance(certificate, Certificate)
        path = self._folder / f"{self._name}-{name}.pem"
        path.write_bytes(certificate.public_bytes(s.Encoding.PEM))
        return path

    def _sign(
        self, common: Sequence[str], key: object, days: float = 1.0, host: str | None = None,
        usage: str | None = None, hosts: Sequence[str] = (), ca: bool = False,
    ) -> object:  # fmt: skip
        from ipaddress import ip_address

        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.x509.oid import NameOID

        now = datetime.now(UTC)

        def named(*texts: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text) for text in texts])

        built = (
            x509.CertificateBuilder()
            .subject_name(named(*common))
            .issuer_name(named(self._name))
            .public_key(key)  # type: ignore[arg-type]
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=10))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        others: list[x509.GeneralName] = [x509.DNSName(each) for each in hosts]
        if host is not None:
            others.append(x509.IPAddress(ip_address(host)))
        if others:
            built = built.add_extension(x509.SubjectAlternativeName(others), False)
        if usage is not None:
            oid = x509.oid.ExtendedKeyUsageOID
            uses = {"server": oid.SERVER_AUTH, "client": oid.CLIENT_AUTH, "other": oid.CODE_SIGNING}
            built = built.add_extension(x509.ExtendedKeyUsage([uses[usage]]), False)
        return built.sign(self._key, hashes.SHA256())
