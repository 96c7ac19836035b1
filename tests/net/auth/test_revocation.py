"""A site's certificate that no longer counts: refused at the door, and where it is inside already."""

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from offbeat.core.errors import UsageError
from offbeat.net.auth.credentials import Authenticator, ServerCredentials, SiteCredentials
from offbeat.net.auth.revocation import read, serial
from offbeat.net.auth.tokens import make_token
from offbeat.net.grpc.client import connect
from offbeat.net.grpc.server import listen
from offbeat.net.messages import Heartbeat, Rejected
from offbeat.net.transport import ChannelRefusedError, ProtocolError
from tests.net.authority import Authority
from tests.net.support import LIMITS, Heard, server, site

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not here")
CA = Path("ca.pem")  # which only a CRL needs


def printed(certificate: Path) -> str:
    """As `openssl x509 -noout -serial` prints it."""
    done = subprocess.run(
        ["openssl", "x509", "-noout", "-serial", "-in", str(certificate)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def kept(pair: tuple[Path, Path], name: str) -> tuple[Path, Path]:
    """Files that the next certificate of the same name does not take the place of."""
    certificate, key = (file.with_stem(name) for file in pair)
    return shutil.copy(pair[0], certificate), shutil.copy(pair[1], key)


def test_a_certificate_is_revoked_while_the_server_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On real TLS: an open connection ends with its next message, a new one is refused, others go on."""
    ours, revoked = Authority(tmp_path, "ours"), tmp_path / "revoked.txt"
    revoked.write_text("# nobody yet\n", encoding="utf-8")
    credentials = ServerCredentials(
        *ours.issue("server", host="127.0.0.1"), client_ca=ours.file, revoked=revoked
    )
    north, south = kept(ours.issue("north"), "north-1"), ours.issue("south")
    again = ours.issue("north")  # the same name, another serial number

    def shown(pair: tuple[Path, Path]) -> SiteCredentials:
        return SiteCredentials(None, None, ours.file, *pair)

    async def beats(credentials: SiteCredentials, address: str) -> None:
        async with site(address, credentials) as link:
            link.send(Heartbeat())
            assert await link.receive() == Heartbeat()

    async def refused(address: str, credentials: SiteCredentials) -> None:
        with pytest.raises(ChannelRefusedError, match="certificate is revoked"):
            await connect(address, credentials, LIMITS)

    async def story() -> None:
        async with (
            server(credentials) as at,
            site(at.address, shown(south)) as other,
            site(at.address, shown(north)) as stolen,
        ):
            stolen.send(Heartbeat())
            assert await stolen.receive() == Heartbeat()
            revoked.write_text(printed(north[0]).strip() + "  # its laptop is gone\n", encoding="utf-8")
            stolen.send(Heartbeat())
            said = await stolen.receive()
            assert isinstance(said, Rejected)
            assert not said.final, "the next attempt is told that it is revoked"
            assert said.reason == "the credential of north is no longer valid"
            await refused(at.address, shown(north))
            assert at.listener.rejected == {"credential": 1, "revoked": 1}
            await beats(shown(again), at.address)
            revoked.write_text("serial=xyz\n", encoding="utf-8")
            await refused(at.address, shown(north))
            revoked.unlink()
            await refused(at.address, shown(north))
            revoked.write_text(printed(again[0]), encoding="utf-8")
            await refused(at.address, shown(again))
            await beats(shown(north), at.address)
            other.send(Heartbeat(1, 1))
            assert await other.receive() == Heartbeat(1, 1)

    asyncio.run(story())
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 2
    assert "line 1 is 'serial=xyz'" in errors[0]
    assert "revoked.txt: the file cannot be read" in errors[1]
    assert all(
        error.endswith("the certificates revoked before stay so, and no others are") for error in errors
    )


def test_a_token_beside_it_does_not_help(tmp_path: Path) -> None:
    ours, revoked, tokens = Authority(tmp_path, "ours"), tmp_path / "revoked", tmp_path / "tokens.json"
    certificate = ours.issue("a")[0]
    revoked.write_text(printed(certificate), encoding="utf-8")
    gate = Authenticator(
        ServerCredentials(Path("c"), Path("k"), client_ca=Path("ca"), tokens=tokens, revoked=revoked)
    )
    said = {"authorization": f"Bearer {make_token(tokens, 'a')}"}
    identity = {"x509_pem_cert": [certificate.read_bytes()]}
    with pytest.raises(ProtocolError, match="is revoked"):
        gate.admit(said, identity)
    other = {"x509_pem_cert": [ours.issue("a")[0].read_bytes()]}
    proof = gate.admit(said, other)
    assert proof.valid()
    make_token(tokens, "a")  # the token is another one now
    assert not proof.valid()
    for broken in ({}, {"x509_pem_cert": [b"none"]}, {"x509_pem_cert": [b"\xff"]}):
        with pytest.raises(ProtocolError, match="certificate names 0 sites"):
            gate.admit(said, broken)


def test_serial_numbers_are_those_that_the_authority_gave(tmp_path: Path) -> None:
    from cryptography import x509

    ours = Authority(tmp_path, "ours")
    for _ in range(20):
        pem = ours.issue("a")[0].read_bytes()
        assert serial(pem) == x509.load_pem_x509_certificate(pem).serial_number
    lines = pem.splitlines()
    for broken in (b"", b"\n".join([lines[0], lines[-1]]), b"\n".join([lines[0], lines[1], lines[-1]])):
        with pytest.raises(ValueError):  # noqa: PT011  whatever it says: it is nobody's
            serial(broken)


def test_the_file(tmp_path: Path) -> None:
    path = tmp_path / "revoked"
    path.write_text("\n# north\nserial=0A1b\n  serial=3A:7F:03 # south\n\n", encoding="utf-8")
    assert read(path, CA) == {0x0A1B, 0x3A7F03}
    path.write_text("", encoding="utf-8")
    assert read(path, CA) == frozenset()
    for wrong in (
        "0A1B",
        "serial=",
        "serial=0x1",
        "serial=-1",
        "name=north",
        "serial=1 serial=2",
        "serial=" + "1" * 65,
    ):
        path.write_text(f"serial=1\n{wrong}\n", encoding="utf-8")
        with pytest.raises(UsageError, match=r"revoked = .*revoked: line 2 is .*; give serial=HEX"):
            read(path, CA)


def test_a_file_that_is_not_there_stops_a_server_from_starting(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    credentials = ServerCredentials(*ours.issue("server"), client_ca=ours.file, revoked=tmp_path / "none")
    with pytest.raises(UsageError, match=r"revoked = .*none: the file cannot be read \(No such file"):
        asyncio.run(listen("127.0.0.1:0", credentials, LIMITS, Heard().on_channel))
    (tmp_path / "none").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="neither a CRL nor text"):
        Authenticator(credentials)


def test_it_needs_certificates() -> None:
    with pytest.raises(UsageError, match=r"revoked = r: only certificates .*client-ca"):
        ServerCredentials(Path("c"), Path("k"), tokens=Path("t"), revoked=Path("r"))


def test_an_authoritys_crl_is_read_if_it_is_signed_by_the_client_ca(tmp_path: Path) -> None:
    ours, numbers = Authority(tmp_path, "ours"), {5, 0xFF00, 2**159 - 3}
    pem, der = tmp_path / "crl.pem", tmp_path / "crl.der"
    pem.write_bytes(ours.crl(numbers, "PEM"))
    der.write_bytes(ours.crl(numbers, "DER"))
    assert read(pem, ours.file) == read(der, ours.file) == numbers
    pem.write_bytes(ours.crl(set(), "PEM"))
    assert read(pem, ours.file) == frozenset()
    both = tmp_path / "both.pem"
    both.write_bytes(Authority(tmp_path, "theirs").file.read_bytes() + ours.file.read_bytes())
    assert read(der, both) == numbers
    namesake = tmp_path / "namesake"
    namesake.mkdir()
    for other in (Authority(tmp_path, "theirs"), Authority(namesake, "ours")):
        with pytest.raises(UsageError, match=r"no certificate of client-ca = .* has signed this CRL"):
            read(der, other.file)
    der.write_bytes(der.read_bytes()[:-40])
    with pytest.raises(UsageError, match="neither a CRL nor text"):
        read(der, ours.file)
