"""The throughput of a site's connection is measured at the real server, for those with a credential alone."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from offbeat.net.auth.credentials import ServerCredentials, SiteCredentials
from offbeat.net.auth.tokens import make_token
from offbeat.net.checks import CheckResult, run_checks
from offbeat.net.grpc import throughput as module
from offbeat.net.grpc.client import connect
from offbeat.net.grpc.throughput import THROUGHPUT, measure
from offbeat.net.messages import Register, UpdateAck, UpdateSubmission
from offbeat.net.site_checks import SITE_CHECKS, SiteSetUp
from offbeat.net.transport import ChannelClosedError
from tests.net.support import LIMITS, server

NORTH = SiteCredentials(name="north")
THE_CHECK = [check for check in SITE_CHECKS if check.name == "throughput"]


async def checked(address: str, credentials: SiteCredentials) -> CheckResult:
    """The result of the check of a site's throughput."""
    set_up = SiteSetUp(address, credentials)
    (result,) = await asyncio.to_thread(lambda: list(run_checks(THE_CHECK, set_up)))
    return result


def test_some_megabytes_go_both_ways_beside_a_connection_that_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_BYTES", 2**20)
    torch = pytest.importorskip("torch")

    async def story() -> None:
        async with server() as at:
            own = await connect(at.address, NORTH, LIMITS)
            own.send(Register(10, 1))
            found = await measure(at.address, NORTH, LIMITS)
            assert found is not None
            assert found.up > 1e5
            assert found.down > 1e5
            own.send(UpdateSubmission(3, 1, torch.zeros(2), torch.zeros(0, dtype=torch.int64)))
            assert await own.receive() == UpdateAck(3, True)
            await own.close()
            assert at.heard.links == ["north"]

    asyncio.run(story())


def test_without_a_credential_it_is_refused(tmp_path: Path):
    make_token(tmp_path / "tokens.json", "north")

    async def story() -> None:
        async with server(ServerCredentials(tokens=tmp_path / "tokens.json")) as at:
            for wrong in (SiteCredentials(token="north:wrong"), NORTH):
                with pytest.raises(ChannelClosedError, match=r"the token is not valid|no token"):
                    await measure(at.address, wrong, LIMITS)
            result = await checked(at.address, NORTH)
            assert (result.passed, "no token" in result.text) == (False, True)
            assert at.listener.rejected["credential"] == 3

    asyncio.run(story())


def test_one_at_a_time_and_one_of_a_site_in_a_while(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_BYTES", 2**17)

    async def story() -> None:
        async with server() as at:
            assert await measure(at.address, NORTH, LIMITS) is not None
            with pytest.raises(ChannelClosedError, match="measures the throughput of a site at this moment"):
                await measure(at.address, NORTH, LIMITS)
            result = await checked(at.address, NORTH)
            assert result.passed, "the site has no fault"
            assert result.text.startswith("not measured: the server measures the throughput of a site")
            assert await measure(at.address, SiteCredentials(name="east"), LIMITS) is not None
            assert at.listener.rejected == {"busy": 2}

    asyncio.run(story())


def test_while_another_site_is_measured_the_check_says_so_and_does_not_fail():
    async def story() -> None:
        async with server() as at, aio.insecure_channel(at.address) as channel:
            call: Any = channel.stream_stream(THROUGHPUT)(metadata=NORTH.metadata())
            await call.initial_metadata()
            result = await checked(at.address, SiteCredentials(name="east"))
            assert result.passed
            assert "not measured: the server measures the throughput of a site at this moment" in result.text
            call.cancel()

    asyncio.run(story())


def test_a_site_that_measures_on_and_on_is_told_when_it_may_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_BYTES", 2**17)
    now = 0.0

    async def story() -> None:
        nonlocal now
        async with server() as at:
            at.listener._throughput = module.ThroughputService(lambda: now)
            for _ in range(12):
                assert await measure(at.address, NORTH, LIMITS) is not None
                now += 60.0
            with pytest.raises(ChannelClosedError, match=r"of north 12 times in an hour.*again in 48 min"):
                await measure(at.address, NORTH, LIMITS)
            assert (await checked(at.address, NORTH)).passed
            assert await measure(at.address, SiteCredentials(name="east"), LIMITS) is not None
            now = 3601.0
            assert await measure(at.address, NORTH, LIMITS) is not None
            with pytest.raises(ChannelClosedError, match="has just done so"):
                await measure(at.address, NORTH, LIMITS)

    asyncio.run(story())


async def flood(address: str, chunks: int) -> grpc.StatusCode:
    """Send more than a measurement may have."""
    async with aio.insecure_channel(address) as channel:
        call: Any = channel.stream_stream(THROUGHPUT)(metadata=NORTH.metadata())
        try:
            for _ in range(chunks):
                await call.write(bytes(2**16))
            await call.done_writing()
        except (aio.AioRpcError, asyncio.InvalidStateError):
            pass
        code: grpc.StatusCode = await call.code()
        return code


def test_who_sends_more_is_cut_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_BYTES", 2**18)

    async def story() -> None:
        async with server() as at:
            assert await flood(at.address, 50) is not grpc.StatusCode.OK
            assert at.listener.rejected == {"size": 1}

    asyncio.run(story())


def test_a_slow_line_is_a_fault(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("offbeat.net.site_checks.LEAST_THROUGHPUT", 1e15)
    monkeypatch.setattr(module, "MOST_BYTES", 2**17)

    async def story() -> None:
        async with server() as at:
            result = await checked(at.address, NORTH)
            assert not result.passed
            assert "ask the network's operator, or train with a codec" in result.text

    asyncio.run(story())
