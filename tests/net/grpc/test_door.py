"""The door of the sites' port: connections that show no credential are closed, those of sites are not."""

import asyncio
import logging
import re
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from offbeat.net.auth.credentials import ServerCredentials, SiteCredentials
from offbeat.net.grpc.door import Door, connections, peer_of
from offbeat.net.messages import Heartbeat
from offbeat.net.refusal_log import RefusalLog
from tests.net.authority import Authority
from tests.net.support import LIMITS, raw, server, site, status
from tests.sampling import thorough

FEW = replace(LIMITS, connections=4, handshake=2.0)  # 8 connections, 2 of an address without a credential


@contextmanager
def bare(host: str, port: int, number: int) -> Iterator[list[socket.socket]]:
    """Connections that say nothing."""
    held = [socket.create_connection((host.strip("[]"), port)) for _ in range(number)]
    try:
        yield held
    finally:
        for link in held:
            link.close()


async def until(counts: Counter[str], expected: dict[str, int]) -> None:
    async with asyncio.timeout(60):
        while dict(counts) != expected:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("host", ["127.0.0.1", *thorough("[::1]")])
@pytest.mark.parametrize("tls", [True, *thorough(False)])
def test_bare_connections_are_closed_and_counted_and_sites_stay(
    host: str, tls: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    credentials, shown = ServerCredentials(), SiteCredentials(name="north")
    if tls:
        ours = Authority(tmp_path, "ours")
        credentials = ServerCredentials(*ours.issue("server", host=host.strip("[]")))
        shown = SiteCredentials(name="north", ca=ours.file)

    async def story() -> None:
        async with server(credentials, FEW, host=host) as at, site(at.address, shown, FEW) as north:
            with bare(host, at.listener.port, 6) as held:
                await until(at.listener.rejected, {"address": 4, "deadline": 2})
                for link in held:
                    link.settimeout(60)
                    while link.recv(4096):  # gRPC says a few words of HTTP/2 first
                        pass
            north.send(Heartbeat())
            async with asyncio.timeout(60):
                assert isinstance(await north.receive(), Heartbeat)
            assert at.listener.sites == ("north",)

    asyncio.run(story())
    assert len(caplog.records) <= 3


@pytest.mark.thorough
def test_who_goes_on_calling_without_a_credential_is_closed_too() -> None:
    """gRPC's own deadlines end with the first call."""

    async def story() -> None:
        async with server(limits=FEW) as at, raw(at.address) as call:
            assert await call.code() is not None
            await until(at.listener.rejected, {"credential": 1, "deadline": 1})

    asyncio.run(story())


def test_where_few_are_left_the_oldest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[tuple[str, int]] = []
    monkeypatch.setattr("offbeat.net.grpc.door.shut_down", lambda _, peer: closed.append(peer))

    async def story() -> None:
        refusals = RefusalLog()
        door = Door(8, 10.0, refusals)
        found = {(f"10.0.0.{k}", 7): k for k in range(8)}
        with door.admitted("ipv4:10.0.0.0:7"), door.admitted("ipv4:10.0.0.0:7"):
            with door.admitted("ipv4:10.0.0.1:7"):
                door.look(dict(list(found.items())[:6]), 1.0)
                assert closed == []
                door.look(found, 2.0)
                assert refusals.counts == {"full": 2}
                assert {int(host[-1]) for host, _ in closed} < {2, 3, 4, 5}  # the oldest without a credential
            left = {peer: k for peer, k in found.items() if peer not in closed}
            door.look(left, 11.5)
            door.look(left, 12.5)
        assert ("10.0.0.0", 7) not in closed
        assert refusals.counts == {"full": 2, "deadline": 4}
        refusals.close()

    asyncio.run(story())


def test_a_call_that_has_ended_begins_a_new_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.net.grpc.door.shut_down", lambda *_: None)

    async def story() -> None:
        refusals, found = RefusalLog(), {("10.0.0.1", 7): 3}
        door = Door(8, 10.0, refusals)
        door.look(found, 0.0)
        with door.admitted("ipv4:10.0.0.1:7"):
            door.look(found, 100.0)
        door.look(found, 101.0)
        door.look(found, 110.0)
        assert refusals.counts == {}
        door.look(found, 111.5)
        assert refusals.counts == {"deadline": 1}
        refusals.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("words", "peer"),
    [
        ("ipv4:10.0.0.1:80", ("10.0.0.1", 80)),
        ("ipv6:%5B::1%5D:80", ("::1", 80)),
        ("ipv6:[::ffff:10.0.0.1]:80", ("10.0.0.1", 80)),
        ("ipv6:%5Bfe80::1%25eth0%5D:80", ("fe80::1", 80)),
        ("unix:", ("", 0)),
    ],
)
def test_the_peers_that_grpc_names(words: str, peer: tuple[str, int]) -> None:
    assert peer_of(words) == peer


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_the_log_names_a_refused_peer_by_its_address(host: str, caplog: pytest.LogCaptureFixture) -> None:
    """gRPC writes the brackets of an IPv6 address percent-encoded."""

    async def story() -> None:
        async with server(host=host) as opened, raw(opened.address) as call:
            await status(call)

    with caplog.at_level(logging.WARNING, "offbeat.net"):
        asyncio.run(story())
    address = re.escape(host.strip("[]"))
    assert re.search(rf"^refused {address} port \d+: ", caplog.messages[0])


def test_connections_are_found_among_the_descriptors(tmp_path: Path) -> None:
    """Those of one port, at the end that listens; files and other sockets are left alone."""
    with socket.create_server(("127.0.0.1", 0)) as ours, socket.create_server(("127.0.0.1", 0)) as other:
        port = ours.getsockname()[1]
        with bare("127.0.0.1", port, 2) as held, bare("127.0.0.1", other.getsockname()[1], 1):
            accepted = [ours.accept()[0] for _ in held]
            try:
                expected = {
                    link.getsockname(): end.fileno() for link, end in zip(held, accepted, strict=True)
                }
                assert connections(port) == expected
                assert all(end.getsockname()[1] == port for end in accepted)  # still open
            finally:
                for end in accepted:
                    end.close()
