"""A connection to the server that is opened again until the run ends."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol, runtime_checkable

from offbeat.core.errors import OffbeatError, RunError, UsageError, reason_of
from offbeat.net.backoff import Backoff, NotGettingThroughError
from offbeat.net.client.heartbeats import Liveness
from offbeat.net.client.sent_log import SentLog
from offbeat.net.client.transfers import Transfers
from offbeat.net.messages import Leave, Register
from offbeat.net.transport import (
    ChannelClosedError,
    ChannelRefusedError,
    ClientChannel,
    CredentialRefusedError,
    CredentialRevokedError,
    Transfer,
)

LASTING = 30.0
"""Seconds after which a connection was of use that has brought no update to the server."""
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
    hello: Callable[[], Register],
    serve: Callable[[ClientChannel], Awaitable[str | None]],
    liveness: Liveness,
    backoff: Backoff,
    *,
    known: bool = False,
    sent_log: SentLog | None = None,
) -> str:
    """Open connections one after another until one ends the run; returns the reason.

    A server that had accepted the client, and does not any more, may have lost a file, or its certificate may
    have expired. Its operator can mend that, so the client tries again, as without a server. Only a
    credential that somebody has ended ends the client.

    Args:
        connect: Opens a connection.
        hello: Makes the client's registration.
        serve: Uses it until it ends; returns the reason of the run's end, or None where only the
            connection has ended.
        liveness: Tells how long the server was there.
        backoff: The delays between the attempts.
        known: Whether the server has accepted the client before, in another process.
        sent_log: Records each message before it leaves. None means that nothing is recorded.

    Raises:
        RunError: The server refuses the client, or cannot be reached, or a message does not get through. Then
            the server is told that the client leaves.
        UsageError: The client's credential was revoked.
    """
    transfers, clock = Transfers(sent_log), liveness.clock
    while True:
        reason, begun = "the connection was closed", clock.now()
        under_way: tuple[Transfer, ...] = ()
        try:
            connection = await _connected(connect, accepted=known or liveness.accepted)
            finished = await serve(transfers.watch(connection))
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
            if isinstance(error, ChannelClosedError):
                under_way = error.transfers
            reason = reason_of(error) or type(error).__name__
        registered = liveness.accepted and liveness.served >= begun
        if registered:
            backoff.was_there()
        if registered and (transfers.acknowledged or liveness.served - begun >= LASTING):
            backoff.succeeded(liveness.served)
        failed = transfers.ended(clock.now(), under_way, registered=registered)
        try:
            delay = backoff.next_delay(clock.now(), reason, failed)
        except NotGettingThroughError as error:
            await _leave(connect, transfers, hello(), str(error))
            raise
        await clock.sleep(delay)


async def _connected(connect: Connect, *, accepted: bool) -> ClientChannel:
    """A connection. An error that no attempt mends is that of an attempt for a client that was accepted."""
    try:
        return await connect()
    except OffbeatError as error:
        if not accepted:
            raise
        raise ConnectionError(str(error)) from None


async def _leave(connect: Connect, transfers: Transfers, hello: Register, reason: str) -> None:
    """Tell the server why the client leaves, so that it gives the client's task to others."""
    with suppress(OSError):
        channel = transfers.watch(await connect())
        channel.send(hello)
        channel.send(Leave(reason))
        await channel.close()
