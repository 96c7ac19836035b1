"""Who is let in: rules beyond loopback, certificates, tokens, names."""

import asyncio
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from offbeat.core.errors import RunError, UsageError
from offbeat.net.auth.credentials import Authenticator, ServerCredentials, SiteCredentials
from offbeat.net.auth.tokens import TokenProof, Tokens, make_token, revoke
from offbeat.net.grpc.client import connect
from offbeat.net.grpc.server import listen
from offbeat.net.messages import Heartbeat, Rejected
from offbeat.net.transport import (
    ChannelClosedError,
    ChannelRefusedError,
    ClientChannel,
    ProtocolError,
)
from offbeat.net.wire.writer import MessageWriter
from tests.net.authority import Authority
from tests.net.support import LIMITS, Heard, raw, server, site, status, until, write

FILES = (Path("c"), Path("k"))

# ---- what may be started ----


@pytest.mark.parametrize(
    ("credentials", "why"),
    [
        (ServerCredentials(), "TLS is required"),
        (ServerCredentials(tokens=Path("t")), "TLS is required"),
        (ServerCredentials(insecure_any_name=True), "TLS is required"),
        (ServerCredentials(*FILES), "must prove who they are"),
        (ServerCredentials(insecure_plaintext=True), "must prove who they are"),
    ],
)
def test_what_may_not_listen_beyond_loopback(credentials: ServerCredentials, why: str):
    with pytest.raises(UsageError, match=why):
        asyncio.run(listen("0.0.0.0:0", credentials, LIMITS, Heard().on_channel))
    credentials.check("127.0.0.1:0")


@pytest.mark.parametrize(
    "credentials",
    [
        ServerCredentials(*FILES, client_ca=Path("ca")),
        ServerCredentials(*FILES, tokens=Path("t")),
        ServerCredentials(*FILES, insecure_any_name=True),
        ServerCredentials(tokens=Path("t"), insecure_plaintext=True),
    ],
)
def test_what_may_listen_beyond_loopback(credentials: ServerCredentials):
    credentials.check("0.0.0.0:0")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: ServerCredentials(certificate=Path("c")), "cert without key"),
        (lambda: ServerCredentials(key=Path("k")), "key without cert"),
        (lambda: ServerCredentials(client_ca=Path("ca")), "it needs TLS"),
        (lambda: SiteCredentials(certificate=Path("c")), "certificate without key"),
        (lambda: SiteCredentials(name="a/b"), "name = 'a/b'"),
        (lambda: SiteCredentials(token="a\nb"), "token: it has characters"),
        (lambda: SiteCredentials(ca=Path("c"), insecure_plaintext=True), "neither ca nor certificate"),
    ],
)
def test_credentials_that_make_no_sense(make: Callable[[], object], why: str):
    with pytest.raises(UsageError, match=why):
        make()


def test_a_site_speaks_tls_beyond_loopback():
    assert SiteCredentials().tls("10.0.0.1:1")
    assert not SiteCredentials(insecure_plaintext=True).tls("10.0.0.1:1")
    assert not SiteCredentials().tls("127.0.0.1:1")
    assert SiteCredentials(ca=Path("ca")).tls("127.0.0.1:1")


def test_a_token_is_not_shown():
    assert "secret" not in repr(SiteCredentials(token="a:secret"))


# ---- the gate ----


def admitted(
    credentials: ServerCredentials, identity: dict[str, list[bytes]] | None = None, **said: str
) -> str:
    metadata = {{"name": "offbeat-site", "auth": "authorization"}[key]: value for key, value in said.items()}
    return Authenticator(credentials).admit(metadata, identity or {}).site


def test_without_proofs_a_site_says_its_name():
    assert admitted(ServerCredentials(), name="a") == "a"
    for wrong in ("", "a b", "../x", "é"):
        with pytest.raises(ProtocolError, match="not one that a site can have"):
            admitted(ServerCredentials(), name=wrong)
    with pytest.raises(ProtocolError, match="no name"):
        admitted(ServerCredentials())


def test_a_certificates_name_is_the_sites(tmp_path: Path):
    needs, authority = ServerCredentials(*FILES, client_ca=Path("ca")), Authority(tmp_path, "ours")

    def shown(*common: str, hosts: Sequence[str] = (), host: str | None = None) -> dict[str, list[bytes]]:
        certificate, _ = authority.issue("one", common=common, hosts=hosts, host=host)
        return {"x509_pem_cert": [certificate.read_bytes()]}

    assert admitted(needs, shown("a", hosts=["x", "y"])) == "a"
    assert admitted(needs, shown(hosts=["b"])) == "b"
    assert admitted(needs, shown("a"), name="a") == "a"
    with pytest.raises(ProtocolError, match="not one and the same"):
        admitted(needs, shown("a"), name="b")
    for identity in (
        {}, {"x509_pem_cert": [b"none"]}, shown(), shown("a", "b"), shown("a", "a"), shown(hosts=["a", "b"]),
        shown(host="127.0.0.1"), shown(hosts=["a"], host="127.0.0.1"),
    ):  # fmt: skip
        with pytest.raises(ProtocolError, match=r"certificate names [02] sites"):
            admitted(needs, identity)
    for other in ("a b", "../a", "é"):
        with pytest.raises(ProtocolError, match="not one that"):
            admitted(needs, shown(other))


def test_a_token_and_a_certificate_must_agree(tmp_path: Path):
    path = tmp_path / "tokens.json"
    token = make_token(path, "a")
    both = ServerCredentials(*FILES, client_ca=Path("ca"), tokens=path)
    one, other = (
        {"x509_pem_cert": [Authority(tmp_path, name).issue(name)[0].read_bytes()]} for name in ("a", "b")
    )
    assert admitted(both, one, auth=f"Bearer {token}") == "a"
    with pytest.raises(ProtocolError, match="one and the same"):
        admitted(both, other, auth=f"Bearer {token}")
    with pytest.raises(ProtocolError, match="no token"):
        admitted(both, one)
    with pytest.raises(ProtocolError, match="certificate names 0 sites"):
        admitted(both, {}, auth=f"Bearer {token}")


# ---- on a live server ----


def test_tokens_on_a_live_server_and_their_revocation(tmp_path: Path):
    path = tmp_path / "tokens.json"
    token = make_token(path, "a")

    async def refused(address: str, credentials: SiteCredentials, why: str) -> None:
        with pytest.raises(ChannelRefusedError, match=why):
            await connect(address, credentials, LIMITS)

    async def story() -> None:
        async with server(ServerCredentials(tokens=path)) as at:
            async with site(at.address, SiteCredentials(token=token)) as link:
                link.send(Heartbeat())
                assert await link.receive() == Heartbeat()
                assert at.listener.sites == ("a",)
                await refused(at.address, SiteCredentials(name="a"), "no token")
                await refused(at.address, SiteCredentials(token="a:wrong"), "not valid")
                await refused(at.address, SiteCredentials(name="b", token=token), "one and the same")
                await refused(at.address, SiteCredentials(token=token + "x" * 500), "no token")
                revoke(path, "a")
                link.send(Heartbeat())
                said = await link.receive()
                assert isinstance(said, Rejected)
                assert "no longer valid" in said.reason
                await refused(at.address, SiteCredentials(token=token), "token of site a was revoked on 20")
                assert at.listener.rejected == {"credential": 5, "revoked": 1}
            async with site(at.address, SiteCredentials(token=make_token(path, "a"))) as link:
                link.send(Heartbeat())
                assert await link.receive() == Heartbeat()

    asyncio.run(story())


def test_a_damaged_tokens_file_stops_a_server_from_starting(tmp_path: Path):
    path = tmp_path / "tokens.json"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(RunError, match="cannot be read"):
        asyncio.run(listen("127.0.0.1:0", ServerCredentials(tokens=path), LIMITS, Heard().on_channel))


def test_metadata_that_is_too_large_or_given_twice():
    async def story() -> None:
        async with server() as at:
            async with raw(at.address, (("offbeat-site", "x" * 100_000),)) as call:
                assert (await status(call))[0] == "RESOURCE_EXHAUSTED"
            async with raw(at.address, (("offbeat-site", "a"), ("offbeat-site", "b"))) as call:
                assert (await status(call))[0] == "UNAUTHENTICATED"
            assert at.heard.links == []
            async with site(at.address, "a") as link:
                link.send(Heartbeat())
                assert await link.receive() == Heartbeat()

    asyncio.run(story())


def test_a_recorded_handshake_is_worth_nothing_without_the_credential(tmp_path: Path):
    path = tmp_path / "tokens.json"
    token = make_token(path, "a")
    recorded: list[bytes] = []

    async def story() -> None:
        real = MessageWriter.frame

        def recording(self: MessageWriter) -> bytes:
            recorded.append(real(self))
            return recorded[-1]

        async with server(ServerCredentials(tokens=path)) as at:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(MessageWriter, "frame", recording)
                async with site(at.address, SiteCredentials(token=token)):
                    await until(lambda: bool(at.heard.links))
            async with raw(at.address, (("offbeat-site", "a"),)) as call:
                await write(call, *recorded)
                # gRPC says INTERNAL where the server has ended the call before all was written.
                assert (await status(call))[0] in {"UNAUTHENTICATED", "INTERNAL"}
            assert at.listener.rejected == {"credential": 1}
            assert len(at.heard.links) == 1

    asyncio.run(story())
    assert recorded


# ---- certificates ----


def test_mutual_tls_on_a_live_server(tmp_path: Path):
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    credentials = ServerCredentials(*ours.issue("server", host="127.0.0.1"), client_ca=ours.file)
    good = ours.issue("a")

    async def fails(address: str, shown: SiteCredentials) -> None:
        with pytest.raises(ChannelClosedError, match="UNAVAILABLE"):
            await connect(address, shown, LIMITS)

    async def story() -> None:
        async with server(credentials) as at:
            async with site(at.address, SiteCredentials(None, None, ours.file, *good)) as link:
                link.send(Heartbeat())
                assert await link.receive() == Heartbeat()
                assert at.listener.sites == ("a",)
                with pytest.raises(ChannelRefusedError, match="one and the same"):
                    await connect(at.address, SiteCredentials("b", None, ours.file, *good), LIMITS)
                for wrong in (theirs.issue("a"), ours.issue("late", days=-1.0)):
                    await fails(at.address, SiteCredentials(None, None, ours.file, *wrong))
                await fails(at.address, SiteCredentials("a", None, ours.file))  # none at all
                await fails(at.address, SiteCredentials("a"))  # no TLS
                await fails(
                    at.address, SiteCredentials(None, None, theirs.file, *good)
                )  # not the site's server
                link.send(Heartbeat(1, 1))
                assert await link.receive() == Heartbeat(1, 1)
            assert at.heard.links == ["a"]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("common", "hosts", "admitted_as"),
    [
        ((), ("north",), "north"),
        (("north",), ("other",), "north"),
        (("north", "south"), (), None),
        ((), (), None),
    ],
)
def test_the_names_of_a_certificate_on_a_live_server(
    common: Sequence[str], hosts: Sequence[str], admitted_as: str | None, tmp_path: Path
):
    """TLS itself tells a server one common name of several."""
    authority = Authority(tmp_path, "ours")
    credentials = ServerCredentials(*authority.issue("server", host="127.0.0.1"), client_ca=authority.file)
    own = authority.issue("site", common=common, hosts=hosts)

    async def story() -> None:
        async with server(credentials) as at:
            shown = SiteCredentials(None, None, authority.file, *own)
            if admitted_as is None:
                with pytest.raises(ChannelRefusedError, match=r"certificate names [02] sites"):
                    await connect(at.address, shown, LIMITS)
                return
            async with site(at.address, shown):
                await until(lambda: at.heard.links == [admitted_as])

    asyncio.run(story())


def test_a_server_under_another_name_or_with_an_expired_certificate_is_not_spoken_to(tmp_path: Path):
    ours = Authority(tmp_path, "ours")

    async def story() -> None:
        for pair in (ours.issue("one", host="127.0.0.2"), ours.issue("two", days=-1.0, host="127.0.0.1")):
            async with server(ServerCredentials(*pair)) as at:
                with pytest.raises(ChannelClosedError, match="UNAVAILABLE"):
                    await connect(at.address, SiteCredentials("a", "a:token", ours.file), LIMITS)
                assert at.heard.links == []

    asyncio.run(story())


def test_a_certificate_that_is_replaced_serves_new_connections(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Real files on loopback: good ones, half a change, damaged ones, good ones again."""
    first, second, third = (Authority(tmp_path, name) for name in ("first", "second", "third"))
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"

    def install(pair: tuple[Path, Path]) -> None:
        for source, target in zip(pair, (certificate, key), strict=True):
            shutil.copy(source, target.with_suffix(".new"))
            target.with_suffix(".new").replace(target)

    async def serves(address: str, authority: Authority, others: tuple[Authority, ...]) -> None:
        async with site(address, SiteCredentials("a", None, authority.file)) as link:
            link.send(Heartbeat())
            assert await link.receive() == Heartbeat()
        for other in others:
            with pytest.raises(ChannelClosedError, match="UNAVAILABLE"):
                await connect(address, SiteCredentials("a", None, other.file), LIMITS)

    def errors() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]

    async def story() -> None:
        install(first.issue("server", host="127.0.0.1"))
        async with (
            server(ServerCredentials(certificate, key)) as at,
            site(at.address, SiteCredentials("long", None, first.file)) as long,
        ):
            await serves(at.address, first, (second,))
            install(second.issue("server", host="127.0.0.1"))
            await serves(at.address, second, (first,))
            shutil.copy(third.issue("server", host="127.0.0.1")[0], certificate)  # whose key is not there yet
            await serves(at.address, second, (first, third))
            assert len(errors()) == 1
            assert re.search(
                r"cert = .*server.pem, .*: they cannot be used \(key values mismatch\)", errors()[0]
            )
            certificate.write_text("damaged", encoding="utf-8")
            await serves(at.address, second, (third,))
            key.unlink()
            await serves(at.address, second, (third,))
            assert [("is not a PEM file" in e, "cannot be read" in e) for e in errors()[1:]] == [
                (True, False), (False, True),
            ]  # fmt: skip
            install(third.issue("server", host="127.0.0.1"))
            await serves(at.address, third, (first, second))
            assert len(errors()) == 3
            long.send(Heartbeat(1, 1))
            assert await long.receive() == Heartbeat(1, 1)

    asyncio.run(story())


def test_a_client_ca_that_is_replaced_decides_about_new_sites(tmp_path: Path):
    ours, first, second = (Authority(tmp_path, name) for name in ("ours", "first", "second"))
    client_ca = tmp_path / "clients.pem"

    async def comes(address: str, authority: Authority) -> None:
        shown = SiteCredentials(None, None, ours.file, *authority.issue("a"))
        async with site(address, shown) as link:
            link.send(Heartbeat())
            assert await link.receive() == Heartbeat()

    async def story() -> None:
        shutil.copy(first.file, client_ca)
        pair = ours.issue("server", host="127.0.0.1")
        async with server(ServerCredentials(*pair, client_ca=client_ca)) as at:
            await comes(at.address, first)
            shutil.copy(second.file, client_ca)
            await comes(at.address, second)
            with pytest.raises(ChannelClosedError, match="UNAVAILABLE"):
                await comes(at.address, first)

    asyncio.run(story())


@pytest.mark.parametrize("what", ["certificate", "key", "folder"])
def test_a_certificate_that_is_taken_away_and_given_back_ends_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
):
    authority = Authority(tmp_path, "ca")
    made = authority.issue("server", host="127.0.0.1")
    folder = tmp_path / "tls"
    folder.mkdir()
    cert, key = (shutil.copy(file, folder / f"server{file.suffix}") for file in made)
    place = {"certificate": Path(cert), "key": Path(key), "folder": folder}[what]
    shown = SiteCredentials("north", ca=authority.file)

    async def story() -> None:
        async with server(ServerCredentials(Path(cert), Path(key))) as at:
            for _ in range(2):
                async with site(at.address, shown) as open_before:
                    place.rename(tmp_path / "away")
                    for name in ("east", "east"):
                        async with site(at.address, replace(shown, name=name)):
                            await until(lambda: at.heard.links[-1:] == ["east"])
                    (tmp_path / "away").rename(place)
                    open_before.send(Heartbeat())
                    assert await open_before.receive() == Heartbeat()

    asyncio.run(story())
    said = [r.getMessage() for r in caplog.records if "the certificate read before" in r.getMessage()]
    assert len(said) == 2, "once for each time"


def test_a_certificate_with_another_key_is_refused_at_the_start(tmp_path: Path):
    ours = Authority(tmp_path, "ours")
    (certificate, _), (_, key) = ours.issue("one"), ours.issue("two")
    with pytest.raises(UsageError, match=r"key = .*two.key: they cannot be used .*its own key"):
        asyncio.run(listen("127.0.0.1:0", ServerCredentials(certificate, key), LIMITS, Heard().on_channel))


def test_files_that_are_no_certificates(tmp_path: Path):
    (tmp_path / "junk").write_text("junk", encoding="utf-8")
    for path, why in ((tmp_path / "none", "cannot be read"), (tmp_path / "junk", "not a PEM file")):
        with pytest.raises(UsageError, match=why):
            asyncio.run(listen("127.0.0.1:0", ServerCredentials(path, path), LIMITS, Heard().on_channel))
        with pytest.raises(UsageError, match=why):
            asyncio.run(connect("127.0.0.1:1", SiteCredentials(ca=path), LIMITS))


# ---- what a certificate is for ----


@pytest.mark.parametrize(
    ("servers", "sites", "says"),
    [
        ("server", "client", None),
        (None, None, None),
        (
            "server",
            "server",
            "^access.certificate = .*: this certificate is for servers, not for .*clientAuth",
        ),
        ("server", "other", "^access.certificate = .*: this certificate is for other uses, not for sites"),
        ("client", "client", "^cert = .*: this certificate is for sites, not for servers: .*serverAuth"),
    ],
)
def test_a_certificate_is_for_a_server_or_for_a_site(
    servers: str | None, sites: str | None, says: str | None, tmp_path: Path
):
    authority = Authority(tmp_path, "ca")
    cert, key = authority.issue("server", host="127.0.0.1", usage=servers)
    own_cert, own_key = authority.issue("north", usage=sites)

    async def story() -> None:
        async with server(ServerCredentials(cert, key, client_ca=authority.file)) as at:
            shown = SiteCredentials(ca=authority.file, certificate=own_cert, key=own_key)
            async with site(at.address, shown):
                await until(lambda: at.heard.links == ["north"])

    if says is None:
        asyncio.run(story())
        return
    with pytest.raises(UsageError, match=says):
        asyncio.run(story())


def test_the_servers_own_certificate_is_no_sites(tmp_path: Path):
    authority = Authority(tmp_path, "ca")
    cert, key = authority.issue("server", host="127.0.0.1")

    async def story() -> None:
        async with server(ServerCredentials(cert, key, client_ca=authority.file)) as at:
            shown = SiteCredentials(ca=authority.file, certificate=cert, key=key)
            with pytest.raises(ChannelRefusedError, match="the server's own certificate is no site's"):
                await connect(at.address, shown, LIMITS)

    asyncio.run(story())


# ---- what one site, or one address, may take ----


async def end_of(link: ClientChannel) -> ChannelClosedError:
    """How a link ended; a last message may come before."""
    try:
        while True:
            assert isinstance(await link.receive(), Rejected)
    except ChannelClosedError as error:
        return error


def test_a_site_outside_its_enrolments_range_of_samples_is_refused(tmp_path: Path):
    tokens = tmp_path / "tokens.json"
    token, free = make_token(tokens, "a", samples=(20, 30)), make_token(tokens, "b")

    async def story() -> None:
        async with server(ServerCredentials(tokens=tokens)) as at:
            async with site(at.address, SiteCredentials(token=token)) as link:  # which has 10 samples
                ending = await end_of(link)
                assert isinstance(ending, ChannelRefusedError)
                assert "samples = 10 is not allowed: site a is enrolled with 20 to 30" in str(ending)
            assert at.listener.rejected == {"samples": 1}
            assert (at.listener.samples("a"), at.listener.samples("b")) == ((20, 30), None)
            make_token(tokens, "a", samples=(1, 10), keep=True)
            for shown in (token, free):
                async with site(at.address, SiteCredentials(token=shown)):
                    await until(lambda shown=shown: at.heard.links[-1:] == [shown[0]])  # type: ignore[misc]

    asyncio.run(story())


def test_one_credential_does_not_take_all_connections(tmp_path: Path):
    tokens = tmp_path / "tokens.json"
    a, b = make_token(tokens, "a"), make_token(tokens, "b")

    async def story() -> None:
        limits = replace(LIMITS, connections=6)
        async with server(ServerCredentials(tokens=tokens), limits) as at, AsyncExitStack() as stack:
            for _ in range(limits.of_a_site):
                link = await connect(at.address, SiteCredentials(token=a), LIMITS)
                stack.push_async_callback(link.close)
            for _ in range(8):
                with pytest.raises(ChannelClosedError, match="site a has 4 connections") as caught:
                    await connect(at.address, SiteCredentials(token=a), LIMITS)
                assert not isinstance(caught.value, ChannelRefusedError)  # it may try again
            async with site(at.address, SiteCredentials(token=b)):
                await until(lambda: at.heard.links == ["b"])
            assert at.listener.rejected == {"site": 8}
            await stack.aclose()
            async with site(at.address, SiteCredentials(token=a)):
                await until(lambda: at.heard.links == ["b", "a"])

    asyncio.run(story())


def test_failed_logins_are_limited_and_summarised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("offbeat.net.failed_logins.MOST", 5)
    tokens, checked = tmp_path / "tokens.json", list[str]()
    right = make_token(tokens, "a")
    proof = Tokens.proof

    def counting(self: Tokens, token: str) -> TokenProof | None:
        checked.append(token)
        return proof(self, token)

    monkeypatch.setattr(Tokens, "proof", counting)

    async def story() -> None:
        async with server(ServerCredentials(tokens=tokens)) as at:
            for _ in range(20):
                with pytest.raises(ChannelClosedError):
                    await connect(at.address, SiteCredentials(token="a:wrong"), LIMITS)
            assert at.listener.rejected == {"credential": 5, "logins": 15}
            with pytest.raises(ChannelClosedError, match=r"5 logins from 127\.0\.0\.1 have failed") as caught:
                await connect(at.address, SiteCredentials(token=right), LIMITS)
            assert not isinstance(caught.value, ChannelRefusedError)

    asyncio.run(story())
    assert len(set(checked)) == 1
    assert len(checked) == 5
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("refused")]
    assert len(lines) == 2
    assert re.search(r"refused 20 more \(credential 4, logins 16\)", lines[1])


def test_a_duplicate_process_is_told_which_site_it_is():
    async def story() -> None:
        async with server() as at, site(at.address, "north") as older:
            await until(lambda: bool(at.heard.links))
            async with site(at.address, "north"):
                end = await end_of(older)
                assert "a newer connection of site north has replaced this one" in str(end)
                assert not isinstance(end, ChannelRefusedError)

    asyncio.run(story())


def test_of_two_processes_with_one_credential_the_one_that_was_there_first_stays():
    """Whichever is replaced last; a process that connects again replaces its own connection only."""

    async def story() -> None:
        async with server() as at:
            first, second = SiteCredentials("north"), SiteCredentials("north")
            async with AsyncExitStack() as links:
                for shown in (first, first, second, first, second, first):
                    number = len(at.heard.links) + 1
                    await links.enter_async_context(site(at.address, shown))
                    await until(lambda number=number: len(at.heard.links) == number)
                await until(lambda: at.listener.rejected == {"replaced": 4})
                for _ in range(3):
                    late = await links.enter_async_context(site(at.address, second))
                    end = await end_of(late)
                    assert isinstance(end, ChannelRefusedError)
                    assert "was there first and stays: run one process for each site" in str(end)
                assert at.listener.rejected == {"replaced": 4, "duplicate": 3}
                assert at.listener.sites == ("north",)

    asyncio.run(story())
