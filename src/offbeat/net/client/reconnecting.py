"""A connection to the server that is opened again until the run ends."""

from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

from offbeat.core.errors import RunError, reason_of
from offbeat.net.backoff import Backoff
from offbeat.net.client.heartbeats import Liveness
from offbeat.net.transport import ChannelRefusedError, ChannelReplacedError, ClientChannel

Connect = Callable[[], Awaitable[ClientChannel]]
"""Opens a connection to the server."""


@runtime_checkable
class OfSite(Protocol):
    """What opens connections and knows whose they are.

    Attributes:
        site: The site's name. None means that nothing here has it.
    """

    site: str | None


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
        RunError: The server refuses the client, or cannot be reached, or another process replaces each
            connection.
    """
    while True:
        reason = "the connection was closed"
        try:
            finished = await serve(await connect())
            if finished is not None:
                return finished
        except ChannelRefusedError as error:
            raise RunError(str(error)) from None
        except OSError as error:
            # ChannelClosedError is an OSError.
            if isinstance(error, ChannelReplacedError):
                backoff.replaced(liveness.clock.now())
            reason = reason_of(error) or type(error).__name__
        backoff.succeeded(liveness.served)
        await liveness.clock.sleep(backoff.next_delay(liveness.clock.now(), reason))
