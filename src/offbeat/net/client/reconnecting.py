"""A connection to the server that is opened again until the run ends."""

from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

from offbeat.core.errors import OffbeatError, RunError, UsageError, reason_of
from offbeat.net.backoff import Backoff
from offbeat.net.client.heartbeats import Liveness
from offbeat.net.transport import (
    ChannelRefusedError,
    ClientChannel,
    CredentialRefusedError,
    CredentialRevokedError,
)

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
    *,
    known: bool = False,
) -> str:
    """Open connections one after another until one ends the run; returns the reason.

    A server that had accepted the client, and does not any more, may have lost a file, or its certificate may
    have expired. Its operator can mend that, so the client tries again, as without a server. Only a
    credential that somebody has ended ends the client.

    Args:
        connect: Opens a connection.
        serve: Uses it until it ends; returns the reason of the run's end, or None where only the
            connection has ended.
        liveness: Tells whether the server was there.
        backoff: The delays between the attempts.
        known: Whether the server has accepted the client before, in another process.

    Raises:
        RunError: The server refuses the client, or cannot be reached.
        UsageError: The client's credential was revoked.
    """
    while True:
        reason = "the connection was closed"
        try:
            finished = await serve(await _connected(connect, accepted=known or liveness.accepted))
            if finished is not None:
                return finished
        except CredentialRevokedError as error:
            raise UsageError(str(error)) from None
        except ChannelRefusedError as error:
            if not (isinstance(error, CredentialRefusedError) and (known or liveness.accepted)):
                raise RunError(str(error)) from None
            reason = str(error)
        except OSError as error:
            # ChannelClosedError is an OSError.
            reason = reason_of(error) or type(error).__name__
        backoff.succeeded(liveness.served)
        await liveness.clock.sleep(backoff.next_delay(liveness.clock.now(), reason))


async def _connected(connect: Connect, *, accepted: bool) -> ClientChannel:
    """A connection. An error that no attempt mends is that of an attempt for a client that was accepted."""
    try:
        return await connect()
    except OffbeatError as error:
        if not accepted:
            raise
        raise ConnectionError(str(error)) from None
