"""The site's end of the gRPC transport."""

import asyncio
import logging
from collections.abc import Mapping
from time import time

from grpc import aio

from offbeat.net.auth.credentials import (
    RENEWED_KEY,
    SiteCredentials,
)
from offbeat.net.grpc.call import admitted, broken, token_ends
from offbeat.net.grpc.stream import BROKEN, Call, GrpcStream
from offbeat.net.messages import FromServer, FromSite
from offbeat.net.proxy import Proxy
from offbeat.net.transport import (
    ClientChannel,
)
from offbeat.net.wire.connection import Connection
from offbeat.net.wire.limits import Limits
from offbeat.net.wire.rate_limit import MemoryBudget
from offbeat.net.wire.reader import MessageReader
from offbeat.net.wire.unfinished import UnfinishedBodies
from offbeat.vectors.allocator import tune_malloc

log = logging.getLogger(__name__)
WARNED_BEFORE = 14 * 86400.0
"""Seconds before the end of a token that is not renewed, from when on the log warns."""


async def connect(
    address: str,
    credentials: SiteCredentials,
    limits: Limits,
    proxy: Proxy | None = None,
    unfinished: UnfinishedBodies | None = None,
) -> ClientChannel:
    """A connection to the server at "HOST:PORT" or "unix:PATH", once it has accepted the site's credential.

    `unfinished` keeps what came of a model whose connection ended, for the next one.

    Raises `ChannelRefusedError` if it has not, `ChannelClosedError` if it cannot be reached or is not
    authentic, `UsageError` for an address or file that cannot be used.
    """
    tune_malloc()
    call, channel, told = await admitted(address, credentials, limits, proxy)
    if not credentials.renewal_key or told.get(RENEWED_KEY) == "0":
        _warn_of_expiry(told, credentials.renewal_key)
    connection = GrpcClientChannel(call, channel, limits, unfinished or UnfinishedBodies())
    await connection.tell_unfinished()
    return connection


class GrpcClientChannel:
    """A `ClientChannel` on a gRPC call."""

    def __init__(
        self, call: Call, channel: aio.Channel, limits: Limits, unfinished: UnfinishedBodies
    ) -> None:
        self._call, self._channel, self._drain = call, channel, limits.drain
        stream = GrpcStream(call, lambda _: broken(call))
        self._connection: Connection[FromSite, FromServer] = Connection(
            "server", stream, MessageReader("server", limits), limits, MemoryBudget(limits.memory), unfinished
        )
        self.send, self.receive = self._connection.send, self._connection.receive
        self.tell_unfinished = self._connection.tell_unfinished

    @property
    def took(self) -> float:
        """Seconds in which the tensors of the last message came, over however many connections."""
        return self._connection.took

    async def close(self, reason: str = "") -> None:
        """Close the connection once the queue is sent."""
        await self._connection.close(reason)
        try:
            async with asyncio.timeout(self._drain):
                await self._call.done_writing()
                await self._call.code()
        except (TimeoutError, *BROKEN):
            self._call.cancel()
        await self._channel.close()


def _warn_of_expiry(told: Mapping[str, str], key: str) -> None:
    """Warn in the log of a token that is not renewed: at once where the server knows another key."""
    if (ends := token_ends(told)) is None:
        return
    left = (ends - time()) / 86400
    if told.get(RENEWED_KEY) == "0":
        shown = "the site's key is another" if key else "this site has shown no key"
        log.warning(
            "the site's token ends in %.1f days, and is not renewed: the server renews it for the key with "
            "which it was used first, and %s. The first --state of the site is lost or not given, or "
            "somebody else has used the kit: ask the server's operator for a new kit",
            left, shown,
        )  # fmt: skip
    elif left < WARNED_BEFORE / 86400:
        log.warning(
            "the site's token ends in %.1f days, and is not renewed: ask the server's operator for a kit, "
            "and give --state DIR with it",
            left,
        )
