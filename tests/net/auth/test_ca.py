"""A server's own certificate authority: what it signs, renewal, and what is wrong with its files."""

import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from cryptography import x509

from offbeat.core.errors import UsageError
from offbeat.net.auth.ca import RENEWED_BEFORE, OwnAuthority, check_host, covers
from offbeat.net.auth.certificate_renewal import renew_certificate
from offbeat.net.auth.certificates import SERVER, check_usage
from offbeat.net.auth.credentials import Authenticator, ServerCredentials
from offbeat.net.auth.tls import server_tls
from offbeat.net.auth.tokens import make_token

HOSTS = ("fl.example.org", "127.0.0.1", "[::1]")


@pytest.fixture
def own(tmp_path: Path) -> OwnAuthority:
    authority = OwnAuthority(tmp_path / "run")
    authority.issue(HOSTS)
    return authority


def loaded(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def handshake(own: OwnAuthority, host: str) -> str:
    """A TLS handshake in memory with the server's name checked; returns the version of TLS."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=own.ca)
    server.load_cert_chain(own.certificate, own.key)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(down, up, server_hostname=host),
        server.wrap_bio(up, down, server_side=True),
    ]
    for _ in range(3):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return str(ends[1].version())


@pytest.mark.parametrize("host", ["fl.example.org", "127.0.0.1", "::1"])
def test_a_client_that_trusts_the_authority_takes_the_certificate(own: OwnAuthority, host: str) -> None:
    assert handshake(own, host) == "TLSv1.3"
    check_usage("cert", own.certificate.read_bytes(), SERVER)


def test_a_client_refuses_another_name_and_another_authority(own: OwnAuthority, tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        handshake(own, "127.0.0.2")
    other = OwnAuthority(tmp_path / "other")
    other.issue(HOSTS)
    own.ca.write_bytes(other.ca.read_bytes())
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        handshake(own, "127.0.0.1")


def test_the_files_are_their_owners_alone_and_last_as_long_as_said(own: OwnAuthority) -> None:
    for path in (own.directory, own.ca.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in own.ca.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    now = datetime.now(UTC)
    assert timedelta(days=3649) < loaded(own.ca).not_valid_after_utc - now <= timedelta(days=3650)
    assert timedelta(days=364) < own.expires - now <= timedelta(days=365)
    assert own.names == ("fl.example.org", "127.0.0.1", "::1")


def test_a_renewal_keeps_names_key_and_authority(own: OwnAuthority) -> None:
    before, authority, key = loaded(own.certificate), own.ca.read_bytes(), own.key.read_bytes()
    own.issue()
    after = loaded(own.certificate)
    assert after.serial_number != before.serial_number
    assert own.names == ("fl.example.org", "127.0.0.1", "::1")
    assert (own.ca.read_bytes(), own.key.read_bytes()) == (authority, key)
    own.issue(["other.example.org"])
    assert own.names == ("other.example.org",)


def test_the_running_server_renews_thirty_days_before_the_end_and_reads_it_again(
    own: OwnAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    credentials = server_tls(ServerCredentials(own.certificate, own.key))
    assert credentials is not None
    first = own.expires
    renew_certificate(own, first - RENEWED_BEFORE - timedelta(minutes=1))
    assert own.expires == first
    renew_certificate(own, first - RENEWED_BEFORE + timedelta(minutes=1))
    assert own.expires > first + timedelta(days=300)
    assert "the server's certificate is renewed, until" in caplog.text


def test_a_certificate_that_cannot_be_renewed_is_reported_and_stays(
    own: OwnAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    own.ca_key.unlink()
    before = own.certificate.read_bytes()
    renew_certificate(own, own.expires)
    assert "cannot be renewed" in caplog.text
    assert "ca.key is missing" in caplog.text
    assert own.certificate.read_bytes() == before


def test_the_server_tells_what_ends_when(own: OwnAuthority) -> None:
    tokens = own.directory / "tokens.json"
    make_token(tokens, "forever")
    make_token(tokens, "north", life=100)
    found = Authenticator(ServerCredentials(own.certificate, own.key, tokens=tokens)).expires_in()
    assert found.keys() == {"north", "@server"}
    assert 0 < found["north"] <= 100
    assert 364 * 86400 < found["@server"] <= 365 * 86400
    make_token(tokens, "north", keep=True)
    assert Authenticator(ServerCredentials(tokens=tokens)).expires_in() == {}


def test_no_certificate_outlives_its_authority(own: OwnAuthority) -> None:
    ends = loaded(own.ca).not_valid_after_utc
    own.issue(now=ends - timedelta(days=7))
    assert own.expires == ends
    with pytest.raises(UsageError, match="the certificate authority expired on"):
        own.issue(now=ends)


@pytest.mark.parametrize("missing", ["ca.pem", "server.pem", "server.key", "server.pem server.key"])
def test_what_a_crash_left_unwritten_is_made_by_the_same_command(own: OwnAuthority, missing: str) -> None:
    """The authority's key comes first, so all that can be missing is made again from it."""
    for name in missing.split():
        (own.ca.parent / name).unlink()
    own.issue(HOSTS)
    assert handshake(own, "127.0.0.1") == "TLSv1.3"


def test_damaged_files_are_named(own: OwnAuthority) -> None:
    for path in (own.key, own.ca_key, own.certificate, own.ca):
        whole = path.read_bytes()
        path.write_bytes(whole[:50])
        with pytest.raises(UsageError, match=rf"{path.name} cannot be read as a"):
            own.issue()
        path.write_bytes(whole)
    own.ca_key.write_bytes(own.key.read_bytes())
    with pytest.raises(UsageError, match=r"ca\.key is not the key of ca\.pem"):
        own.issue()


@pytest.mark.parametrize(
    "host", ["", "a_b", "-a", "1.2.3", "fl.example.org:7117", "a..b", "x" * 64, "*", "ä.de"]
)
def test_what_is_no_host_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(UsageError, match=r"--host .* is not allowed"):
        OwnAuthority(tmp_path).issue([host])
    assert not list(tmp_path.iterdir())


def test_hosts_are_compared_as_they_are_written_in_certificates() -> None:
    assert check_host("FL.Example.ORG") == "fl.example.org"
    assert covers(("::1",), "[0:0:0:0:0:0:0:1]")
    assert covers(("*.example.org",), "fl.example.org")
    assert not covers(("*.example.org",), "a.b.example.org")
    assert not covers(("fl.example.org",), "example.org")
