"""Heartbeats to the server, and when it was last heard: a server that is silent for a lease is left."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from offbeat.net.clock import Clock
from offbeat.net.messages import Heartbeat
from offbeat.net.transport import ClientChannel


@dataclass
class Liveness:
    """When the server was last heard, in seconds of the clock."""

    clock: Clock
    lease: float = 60.0
    """Seconds of silence after which either side takes the other for gone."""
    heard: float = 0.0
    """When the last message came."""
    served: float = 0.0
    """When the last one came from a server that had registered this client."""
    accepted: bool = False
    """Whether a server has registered this client."""
    _sending: asyncio.Task[None] | None = field(default=None, repr=False)

    def hear(self, *, served: bool) -> None:
        """Note that a message has come."""
        self.heard = self.clock.now()
        if served:
            self.served, self.accepted = self.heard, True

    def start_heartbeats(self, channel: ClientChannel, make: Callable[[], Heartbeat]) -> None:
        """Send heartbeats by the present lease, in place of those that are sent.

        To be called anew when the server has told its lease: a heartbeat that waits would come too late for a
        shorter one.
        """
        if self._sending is not None:
            self._sending.cancel()
        self._sending = asyncio.create_task(self.send_heartbeats(channel, make))

    async def end_heartbeats(self) -> None:
        """Send no heartbeat any more."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
            self._sending = None

    async def send_heartbeats(self, channel: ClientChannel, make: Callable[[], Heartbeat]) -> None:
        """Send three heartbeats a lease; close the connection of a server that is silent for a lease."""
        while True:
            await self.clock.sleep(self.lease / 3)
            if self.clock.now() - self.heard > self.lease:
                await channel.close("the server is silent")
                return
            channel.send(make())
