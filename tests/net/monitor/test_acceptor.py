"""The page among connections that say nothing: they are limited and counted, and it goes on answering."""

import asyncio
import gc
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from offbeat.net import descriptors
from offbeat.net.auth.tls import page_tls
from offbeat.net.monitor import acceptor
from offbeat.net.monitor.http import MonitorAddress, Watched, dashboard
from offbeat.net.refusal_log import RefusalLog
from tests.net.authority import Authority
from tests.net.page_token import page_token


def nothing() -> Any:
    raise AssertionError("no snapshot is asked for")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "for_page", lambda: 8)  # 2 of one address that have said nothing


@contextmanager
def bare(url: str, number: int, source: str = "127.0.0.1") -> Iterator[None]:
    """Connections that say nothing."""
    port = int(url.rstrip("/").rpartition(":")[2])
    with ExitStack() as stack:
        for _ in range(number):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), source_address=(source, 0)))
        yield


async def until(refusals: RefusalLog, **expected: int) -> None:
    async with asyncio.timeout(60):
        while refusals.counts != {f"page {kind}": count for kind, count in expected.items()}:
            await asyncio.sleep(0.02)


async def answers(url: str, trusted: ssl.SSLContext | None = None) -> int:
    timeout = aiohttp.ClientTimeout(60)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(url + "page.css", ssl=trusted or True) as answer,
    ):
        return answer.status


@pytest.mark.parametrize("tls", [False, True])
def test_of_one_address_the_oldest_that_has_said_nothing_makes_room(
    tls: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context, trusted = None, None
    if tls:
        ours = Authority(tmp_path, "ours")
        context = page_tls(*ours.issue("page", host="127.0.0.1"))
        trusted = ssl.create_default_context(cafile=str(ours.file))

    async def story() -> None:
        refusals = RefusalLog("page ")
        async with dashboard(Watched(nothing, tmp_path), MonitorAddress(tls=context), refusals) as url:
            with bare(url, 60):
                await until(refusals, address=58)
                assert await answers(url, trusted) == 200
                await until(refusals, address=59)
                assert await answers(url, trusted) == 200
            assert await answers(url, trusted) == 200

    asyncio.run(story())
    assert len(caplog.records) <= 2


def test_of_many_addresses_too(tmp_path: Path) -> None:
    async def story() -> None:
        refusals = RefusalLog("page ")
        async with dashboard(Watched(nothing, tmp_path), MonitorAddress(), refusals) as url:
            with ExitStack() as stack:
                for k in range(2, 7):
                    stack.enter_context(bare(url, 2, f"127.0.0.{k}"))
                await until(refusals, full=2)
                assert await answers(url) == 200

    asyncio.run(story())


def test_a_closed_connection_of_tls_leaves_no_buffer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Thousands would keep 256 KiB each until the garbage collector comes; what is free is given back."""
    monkeypatch.setattr(acceptor, "DEADLINE", 1.0)
    trimmed: list[bool] = []
    monkeypatch.setattr(acceptor, "trim", lambda: trimmed.append(True))
    ours = Authority(tmp_path, "ours")
    context = page_tls(*ours.issue("page", host="127.0.0.1"))

    async def story() -> None:
        refusals = RefusalLog("page ")
        async with dashboard(Watched(nothing, tmp_path), MonitorAddress(tls=context), refusals) as url:
            with bare(url, 60):
                await until(refusals, address=58)
                async with asyncio.timeout(60):
                    while sum(type(own).__name__ == "SSLProtocol" for own in gc.get_objects()) > 8:
                        await asyncio.sleep(0.02)
            async with asyncio.timeout(60):
                while not trimmed:
                    await asyncio.sleep(0.02)

    gc.collect()
    gc.disable()
    try:
        asyncio.run(story())
    finally:
        gc.enable()


def test_who_is_admitted_is_not_closed_and_beyond_the_limit_new_ones_are(tmp_path: Path) -> None:
    async def story() -> None:
        refusals = RefusalLog("page ")
        async with dashboard(Watched(nothing, tmp_path), MonitorAddress(), refusals) as url:
            port = int(url.rstrip("/").rpartition(":")[2])
            readers = []
            for _ in range(8):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /page.css HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
                readers.append((reader, writer))
            with bare(url, 3):
                await until(refusals, full=3)
            for reader, writer in readers:
                writer.write(b"GET /icon.svg HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert b"<svg" in await reader.read()
                writer.close()
                await writer.wait_closed()

    asyncio.run(story())


def test_without_an_admitted_request_a_connection_has_a_deadline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A wrong token admits nobody."""
    monkeypatch.setattr(acceptor, "DEADLINE", 1.0)

    async def story() -> None:
        refusals = RefusalLog("page ")
        listen = MonitorAddress(token=page_token(tmp_path, "a-token-of-the-test"))
        async with (
            dashboard(Watched(nothing, tmp_path), listen, refusals) as url,
            aiohttp.ClientSession() as session,
        ):
            async with session.get(url) as answer:
                assert answer.status == 401
                await answer.read()  # the connection stays open
            with bare(url, 1):
                await until(refusals, deadline=2)
            headers = {"Authorization": "Bearer a-token-of-the-test"}
            async with session.get(url + "page.css", headers=headers) as answer:
                assert answer.status == 200

    asyncio.run(story())
