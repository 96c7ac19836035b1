"""The connection of a helper."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from offbeat.core.errors import RunError
from offbeat.net.backoff import Backoff
from offbeat.net.messages import FromServer, FromSite, Heartbeat, Registered
from offbeat.net.secure import helping
from offbeat.net.transport import ChannelClosedError
from offbeat.secure.helper import Helper
from offbeat.secure.helper_file import HelperFile
from tests.net.support import FakeClock

LEASE = 6.0


async def settled() -> None:
    """Let every task that can go on do so."""
    for _ in range(20):
        await asyncio.sleep(0)


class Channel:
    """The helper's end of a connection to a server that registers it, and then says nothing."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock, self.heartbeats, self.registered = clock, list[float](), 0.0
        self.said: list[FromServer] = [Registered(client=-1, run="run", lease=LEASE, plan={})]
        self.closed = asyncio.Event()

    def send(self, message: FromSite) -> None:
        if isinstance(message, Heartbeat):
            self.heartbeats.append(self.clock.now())

    async def receive(self) -> FromServer:
        if self.said:
            await settled()  # heartbeats by the usual lease have begun
            self.registered = self.clock.now()
            return self.said.pop()
        await self.closed.wait()
        raise ChannelClosedError("the server is silent")

    async def close(self, reason: str = "") -> None:
        self.closed.set()


def test_heartbeats_follow_the_lease_that_the_server_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first heartbeat by the usual lease of 60 s would come when a shorter one has ended."""
    monkeypatch.setattr(helping, "_secure_spec", lambda plan: None)

    async def run() -> list[float]:
        clock = FakeClock()
        channel = Channel(clock)

        async def connect() -> Channel:
            if channel.closed.is_set():
                raise OSError("gone")
            return channel

        with HelperFile(tmp_path / "helper.db") as file:
            client = helping.HelperClient(connect, Helper("anna", file), clock)
            helps = asyncio.create_task(client.run(Backoff(1.0, Random(1), clock.now())))
            while not helps.done():
                await settled()
                await clock.advance(0.5)
            assert isinstance(helps.exception(), RunError)
        return [at - channel.registered for at in channel.heartbeats]

    assert asyncio.run(run()) == [LEASE / 3, 2 * LEASE / 3, LEASE]
