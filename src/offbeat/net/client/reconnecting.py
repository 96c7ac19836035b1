"""A connection to the server that is opened again until the run ends."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from offbeat.core.errors import RunError
from offbeat.net.backoff import Backoff
from offbeat.net.clock import Clock
from offbeat.net.messages import Heartbeat
from offbeat.net.transport import ChannelRefusedError, ClientChannel

Connect = Callable[[], Awaitable[ClientChannel]]
"""Opens a connection to the server."""


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

    def hear(self, *, served: bool) -> None:
        """Note that a message has come."""
        self.heard = self.clock.now()
        if served:
            self.served = self.heard

    async def send_heartbeats(self, channel: ClientChannel, make: Callable[[], Heartbeat]) -> None:
        """Send three heartbeats a lease; close the connection of a server that is silent for a lease."""
        while True:
            await self.clock.sleep(self.lease / 3)
            if self.clock.now() - self.heard > self.lease:
                await channel.close("the server is silent")
                return
            channel.send(make())


async def reconnecting(
    connect: Connect,
    serve: Callable[[ClientChannel], Awaitable[str | None]],
    liveness: Liveness,
    backoff: Backoff,
) -> str:
    """Open connections one after another until one ends the run; returns the reason.

    Args:
        connect: Opens a connection.
        serve: Uses it until it ends; returns the reason of the run's end, or None where only the
            connection has ended.
        liveness: Tells whether the server was there.
        backoff: The delays between the attempts.

    Raises:
        RunError: The server refuses the client, or cannot be reached.
    """
    while True:
        reason = "the connection was closed"
        try:
            finished = await serve(await connect())
            if finished is not None:
                return finished
        except ChannelRefusedError as error:
            raise RunError(str(error)) from None
        except OSError as error:  # ChannelClosedError is one
            reason = str(error) or type(error).__name__
        backoff.succeeded(liveness.served)
        await liveness.clock.sleep(backoff.next_delay(liveness.clock.now(), reason))
