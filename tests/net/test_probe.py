"""Why a server cannot be reached: the sentence, and whether another attempt is of use."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from offbeat.core.errors import RunError, UsageError
from offbeat.net.auth.credentials import ServerCredentials, SiteCredentials
from offbeat.net.client.connector import ServerConnector
from offbeat.net.grpc.client import connect
from offbeat.net.probe import UnreachableError, probe
from offbeat.net.proxy import Proxy
from offbeat.net.transport import ChannelClosedError
from tests.net.authority import Authority
from tests.net.connect_proxy import connect_proxy
from tests.net.support import LIMITS, server

HOST = "127.0.0.1"
NAMED = SiteCredentials(name="north")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"), "other")


async def raised(connector: ServerConnector) -> Exception:
    """What an attempt to connect raises."""
    with pytest.raises((UsageError, RunError, ChannelClosedError)) as caught:
        await connector()
    return caught.value


CASES: dict[
    str, tuple[Callable[[Authority, Authority], Any], Callable[[Authority, Authority], Any], type, str]
]
CASES = {
    "a forgotten authority": (
        lambda ours, other: ServerCredentials(*ours.issue("server", host=HOST)),
        lambda ours, other: NAMED,
        UsageError, "speaks TLS, and this site does not: give --set access.ca=FILE",
    ),
    "another authority": (
        lambda ours, other: ServerCredentials(*ours.issue("server", host=HOST)),
        lambda ours, other: SiteCredentials("north", ca=other.file),
        UsageError, "not signed by the authority of access.ca = .*, but by CN=ours",
    ),
    "another host": (
        lambda ours, other: ServerCredentials(*ours.issue("named", hosts=("fl.example.org",))),
        lambda ours, other: SiteCredentials("north", ca=ours.file),
        UsageError, r"is not for 127\.0\.0\.1; it is for fl\.example\.org",
    ),
    "an expired certificate": (
        lambda ours, other: ServerCredentials(*ours.issue("old", days=-1, host=HOST)),
        lambda ours, other: SiteCredentials("north", ca=ours.file),
        RunError, r"has expired \(.* to .*\): ask its operator",
    ),
    "a server without TLS": (
        lambda ours, other: ServerCredentials(),
        lambda ours, other: SiteCredentials("north", ca=ours.file),
        UsageError, "speaks without TLS, and this site with it",
    ),
    "no certificate of the site": (
        lambda ours, other: ServerCredentials(*ours.issue("server", host=HOST), client_ca=ours.file),
        lambda ours, other: SiteCredentials("north", ca=ours.file),
        UsageError, "takes no site without a certificate, and this site has none: give access",
    ),
    "a foreign certificate of the site": (
        lambda ours, other: ServerCredentials(*ours.issue("server", host=HOST), client_ca=ours.file),
        lambda ours, other: SiteCredentials("north", None, ours.file, *other.issue("north")),
        UsageError, "does not take access.certificate = .*other-north.pem: have one signed",
    ),
    "an expired certificate of the site": (
        lambda ours, other: ServerCredentials(*ours.issue("server", host=HOST), client_ca=ours.file),
        lambda ours, other: SiteCredentials("north", None, ours.file, *ours.issue("north", days=-1)),
        UsageError, "access.certificate = .* is valid from .* to .*, not now: ask for another",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", list(CASES))
def test_a_mistake_in_tls_is_told_as_one_and_ends_at_once(case: str, authority: Authority, other: Authority):
    make_server, make_site, kind, told = CASES[case]

    async def story() -> None:
        async with server(make_server(authority, other)) as at:
            error = await raised(ServerConnector(at.address, make_site(authority, other)))
        assert type(error) is kind, error
        with pytest.raises(kind, match=told):
            raise error
        assert "\n" not in str(error)

    asyncio.run(story())


@pytest.mark.parametrize("tls", [False, True])
def test_what_may_pass_is_tried_again(tls: bool, authority: Authority):
    given = SiteCredentials("north", ca=authority.file if tls else None)
    with socket.socket() as free:
        free.bind((HOST, 0))
        address = f"{HOST}:{free.getsockname()[1]}"
        assert type(asyncio.run(raised(ServerConnector(address, given)))) is ChannelClosedError
    gone = asyncio.run(raised(ServerConnector("no-such-host.invalid:1", given)))
    assert type(gone) is ChannelClosedError
    assert "the name has no address" in str(gone)


@asynccontextmanager
async def answering(answer: bytes | None) -> AsyncIterator[str]:
    """A server that answers everything with these bytes, and closes; None means that it says nothing."""
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if answer is None:
            await ended.wait()
        else:
            await reader.read(1)
            writer.write(answer)
        writer.close()

    listening = await asyncio.start_server(serve, HOST, 0)
    try:
        yield f"{HOST}:{listening.sockets[0].getsockname()[1]}"
    finally:
        ended.set()
        listening.close()


@pytest.mark.parametrize(
    ("answer", "lasting", "told"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", True, "speaks no HTTP/2: give the port of the sites"),
        (b"", False, "accepts connections, and closes them"),
        (None, False, "accepts connections, and says nothing for 0.1 s"),
    ],
)
def test_what_listens_may_be_no_server_of_sites(answer: bytes | None, lasting: bool, told: str):
    async def story() -> None:
        async with answering(answer) as address:
            with pytest.raises(UnreachableError, match=told) as caught:
                await asyncio.to_thread(probe, address, NAMED, None, 0.1)
            assert (caught.value.step, caught.value.lasting) == ("HTTP/2", lasting)

    asyncio.run(story())


def test_a_page_with_tls_is_no_server_of_sites(authority: Authority):
    async def story() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority.issue("server", host=HOST))
        listening = await asyncio.start_server(lambda _, writer: None, HOST, 0, ssl=context)
        address = f"{HOST}:{listening.sockets[0].getsockname()[1]}"
        with pytest.raises(UnreachableError, match="does not speak HTTP/2 over TLS") as caught:
            await asyncio.to_thread(probe, address, SiteCredentials("north", ca=authority.file))
        listening.close()
        assert caught.value.lasting

    asyncio.run(story())


def test_all_steps_are_passed(authority: Authority, tmp_path: Path):
    async def story() -> None:
        certificate = ServerCredentials(*authority.issue("server", host=HOST))
        async with server(certificate) as at, connect_proxy() as proxy:
            given = SiteCredentials("north", ca=authority.file)
            found = await asyncio.to_thread(probe, at.address, given, Proxy(HOST, proxy.port))
            assert list(found) == ["address", "proxy", "TLS", "HTTP/2"]
            assert found["TLS"].endswith("GMT")
            assert proxy.asked == [f"CONNECT {at.address} HTTP/1.1"]
            assert at.heard.links == []

    asyncio.run(story())


def test_a_failure_is_probed_once(authority: Authority, monkeypatch: pytest.MonkeyPatch):
    probes: list[str] = []

    def counted(address: str, *given: Any) -> Any:
        probes.append(address)
        return probe(address, *given)

    monkeypatch.setattr("offbeat.net.client.connector.probe", counted)

    async def story() -> None:
        certificate = authority.issue("server", host=HOST)
        async with AsyncExitStack() as first:
            at = await first.enter_async_context(server(ServerCredentials(*certificate)))
            connector = ServerConnector(at.address, SiteCredentials("north", ca=authority.file))
            await (await connector()).close()
        for _ in range(3):
            assert "cannot be reached" in str(await raised(connector))
        assert len(probes) == 1
        connector._address = ""  # another server, whose certificate has expired
        async with server(ServerCredentials(*authority.issue("old", days=-1, host=HOST))) as at:
            connector._address = at.address
            for kind in (RunError, ChannelClosedError, ChannelClosedError):
                error = await raised(connector)
                assert type(error) is kind
            assert len(probes) == 2

    asyncio.run(story())


# ---- proxies ----


@pytest.mark.parametrize(
    ("login", "answer", "kind", "told"),
    [
        ("anna:right", None, UsageError, "answers 407: it asks for a user and a password, or does not take"),
        (None, 403, RunError, "answers 403: it does not allow this address"),
        (None, 503, ChannelClosedError, "answers 503: it refuses to connect"),
        (None, 999, ChannelClosedError, "answers 999"),
    ],
)
def test_a_proxy_that_refuses_is_told_in_one_sentence(
    login: str | None, answer: int | None, kind: type[Exception], told: str, caplog: pytest.LogCaptureFixture
):
    async def story() -> None:
        async with server() as at, connect_proxy(login, answer) as proxy:
            given = Proxy(HOST, proxy.port, "anna", "wr/ng-secret")
            error = await raised(ServerConnector(at.address, NAMED, given))
        assert type(error) is kind, error
        assert told in str(error)
        assert "secret" not in str(error) + caplog.text

    asyncio.run(story())


@pytest.mark.parametrize("tls", [False, True])
def test_a_site_behind_a_proxy_with_a_password_takes_part(tls: bool, authority: Authority):
    async def story() -> None:
        certificate = ServerCredentials(*authority.issue("server", host=HOST)) if tls else None
        given = SiteCredentials("north", ca=authority.file if tls else None)
        async with server(certificate) as at, connect_proxy("an na:p@ss:/?#%") as proxy:
            channel = await connect(at.address, given, LIMITS, Proxy(HOST, proxy.port, "an na", "p@ss:/?#%"))
            await channel.close()
            assert proxy.asked == [f"CONNECT {at.address} HTTP/1.1"]

    asyncio.run(story())


def test_a_proxy_that_cannot_be_reached_is_named():
    error = asyncio.run(
        raised(ServerConnector("fl.example.org:7117", NAMED, Proxy(HOST, 1, "anna", "secret")))
    )
    assert type(error) is ChannelClosedError
    assert str(error).startswith("the proxy 127.0.0.1:1 cannot be reached")
