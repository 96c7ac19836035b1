"""Connections one after another: what ends them, and what a server that only refuses counts for."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import cast

import pytest

from offbeat.core.errors import RunError
from offbeat.net.backoff import Backoff
from offbeat.net.client.heartbeats import Liveness
from offbeat.net.client.reconnecting import reconnecting
from offbeat.net.transport import (
    ChannelClosedError,
    ChannelRefusedError,
    ChannelReplacedError,
    ClientChannel,
)
from tests.net.support import Patient


async def _connect() -> ClientChannel:
    return cast(ClientChannel, None)  # nothing is sent on it


def connected(serve: Callable[[Liveness], Awaitable[str | None]], give_up_after: float | None = 100.0) -> str:
    liveness = Liveness(Patient())

    async def run() -> str:
        backoff = Backoff(give_up_after, Random(1), liveness.clock.now())
        return await reconnecting(_connect, lambda _: serve(liveness), liveness, backoff)

    return asyncio.run(run())


def test_a_lost_connection_is_opened_again_until_the_run_has_ended() -> None:
    ends: list[str | Exception | None] = [None, ChannelClosedError("gone"), OSError("no route"), "converged"]

    async def serve(liveness: Liveness) -> str | None:
        end = ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    assert connected(serve) == "converged"
    assert not ends


def test_a_server_that_refuses_the_client_ends_it() -> None:
    async def serve(liveness: Liveness) -> str | None:
        raise ChannelRefusedError("the token is unknown")

    with pytest.raises(RunError, match=r"^the token is unknown$"):
        connected(serve)


@pytest.mark.parametrize(("served", "attempts"), [(False, range(2, 20)), (True, range(200, 201))])
def test_only_a_server_that_has_registered_the_client_was_there(served: bool, attempts: range) -> None:
    made = 0

    async def serve(liveness: Liveness) -> str | None:
        nonlocal made
        made += 1
        if made == 200:
            raise ChannelRefusedError("enough")
        liveness.hear(served=served)
        return None

    with pytest.raises(RunError, match="enough" if served else "no server for 100 s"):
        connected(serve)
    assert made in attempts


def replaced_every(seconds: float, times: int) -> int:
    """How often a client connects that another process replaces so often, and that is refused at last."""
    connections = 0

    async def serve(liveness: Liveness) -> str | None:
        nonlocal connections
        connections += 1
        if connections > times:
            raise ChannelRefusedError("enough")
        liveness.hear(served=True)
        await liveness.clock.sleep(seconds)
        raise ChannelReplacedError("a newer connection of site north has replaced this one")

    with pytest.raises(
        RunError, match="enough" if seconds > 60 else r"replaced the connection 5 times within 10 minutes"
    ):
        connected(serve, None)
    return connections


def test_two_processes_with_one_credential_do_not_replace_each_other_for_ever() -> None:
    assert replaced_every(1.0, 20) == 5


def test_a_connection_that_is_replaced_now_and_then_is_opened_again() -> None:
    assert replaced_every(300.0, 20) == 21
