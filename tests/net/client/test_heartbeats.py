"""Heartbeats: three a lease, and none any more to a server that is silent for one."""

import asyncio
from typing import cast

from offbeat.net.client.heartbeats import Liveness
from offbeat.net.messages import FromSite, Heartbeat
from offbeat.net.transport import ClientChannel
from tests.net.support import Patient


class Channel:
    """The site's end of a connection, of which only what it sends counts."""

    def __init__(self) -> None:
        self.sent: list[FromSite] = []
        self.closed: str | None = None

    def send(self, message: FromSite) -> None:
        self.sent.append(message)

    async def close(self, reason: str = "") -> None:
        self.closed = reason


def test_a_server_that_is_silent_for_a_lease_is_left() -> None:
    async def run() -> Channel:
        clock = Patient()
        channel, liveness = Channel(), Liveness(clock, lease=30.0)
        await liveness.send_heartbeats(cast(ClientChannel, channel), Heartbeat)
        return channel

    channel = asyncio.run(run())
    assert channel.closed == "the server is silent"
    assert channel.sent == [Heartbeat()] * 3
