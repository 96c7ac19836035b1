"""The site's end of the gRPC transport."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from time import time

import grpc
from grpc import aio

from offbeat.net.address import socket_path, split
from offbeat.net.auth.certificates import SITE, check_usage
from offbeat.net.auth.credentials import (
    EXPIRES_KEY,
    RENEWED_KEY,
    SiteCredentials,
    authorities,
    pem,
)
from offbeat.net.grpc.protocol import ADMITTED, FINAL, PATH, STATUS, VERSION, channel_options
from offbeat.net.grpc.stream import BROKEN, Call, GrpcStream
from offbeat.net.messages import FromServer, FromSite
from offbeat.net.proxy import Proxy
from offbeat.net.transport import (
    ChannelClosedError,
    ChannelRefusedError,
    ClientChannel,
    CredentialRefusedError,
    CredentialRevokedError,
)
from offbeat.net.versions import METADATA
from offbeat.net.wire.connection import Connection
from offbeat.net.wire.limits import Limits
from offbeat.net.wire.rate_limit import MemoryBudget
from offbeat.net.wire.reader import MessageReader
from offbeat.net.wire.unfinished import UnfinishedBodies
from offbeat.vectors.allocator import tune_malloc
from offbeat.version import __version__

log = logging.getLogger(__name__)
WARNED_BEFORE = 14 * 86400.0
"""Seconds before the end of a token that is not renewed, from when on the log warns."""
_LONGEST_TIME = 13  # digits of seconds since 1970
_REFUSALS: dict[grpc.StatusCode, type[ChannelRefusedError]] = {
    STATUS["credential"]: CredentialRefusedError,
    STATUS["revoked"]: CredentialRevokedError,
}


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
    call, channel, told = await _admitted(address, credentials, limits, proxy)
    if not credentials.renewal_key or told.get(RENEWED_KEY) == "0":
        _warn_of_expiry(told, credentials.renewal_key)
    connection = GrpcClientChannel(call, channel, limits, unfinished or UnfinishedBodies())
    await connection.tell_unfinished()
    return connection


async def greeting(
    address: str, credentials: SiteCredentials, limits: Limits, proxy: Proxy | None = None
) -> dict[str, str]:
    """The metadata with which the server accepts the site's credential; the site does not take part.

    Raises as `connect` does.
    """
    call, channel, told = await _admitted(address, credentials, limits, proxy)
    call.cancel()
    await channel.close()
    return told


async def _admitted(
    address: str, credentials: SiteCredentials, limits: Limits, proxy: Proxy | None
) -> tuple[Call, aio.Channel, dict[str, str]]:
    """A call that the server has accepted, its channel, and the server's metadata."""
    channel = open_channel(address, credentials, limits, proxy)
    call: Call = channel.stream_stream(PATH)(metadata=(*credentials.metadata(), *METADATA))
    async with AsyncExitStack() as on_failure:
        on_failure.push_async_callback(channel.close)
        try:
            async with asyncio.timeout(limits.handshake):
                metadata = await call.initial_metadata()
        except TimeoutError:
            raise ChannelClosedError(f"{address} has not answered within {limits.handshake:g} s") from None
        except aio.AioRpcError:
            raise await broken(call) from None
        if not set(ADMITTED) <= set(metadata):
            raise await broken(call)
        told = {key: value for key, value in metadata if isinstance(value, str)}
        on_failure.pop_all()
    return call, channel, told


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


def token_ends(told: Mapping[str, str]) -> int | None:
    """When the site's token expires, in seconds since 1970, as the server tells it; None for never."""
    ends = told.get(EXPIRES_KEY, "")
    return int(ends) if ends.isdecimal() and len(ends) < _LONGEST_TIME else None


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


def open_channel(
    address: str, credentials: SiteCredentials, limits: Limits, proxy: Proxy | None = None
) -> aio.Channel:
    """A channel to the server, which connects at its first call.

    Raises `UsageError` for an address or file that cannot be used.
    """
    if socket_path(address) is None:
        split(address)
    options: list[tuple[str, int | str]] = [
        *channel_options(limits),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", int(proxy is not None)),
        # Each channel has a connection of its own.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if proxy is not None:
        options.append(("grpc.http_proxy", proxy.url))
    if not credentials.tls(address):
        return aio.insecure_channel(address, options=options)
    certificate = None if credentials.certificate is None else pem(credentials.certificate)
    if certificate is not None:
        check_usage(f"certificate = {credentials.certificate}", certificate, SITE)
    tls = grpc.ssl_channel_credentials(
        root_certificates=None if credentials.ca is None else authorities(credentials.ca),
        private_key=None if credentials.key is None else pem(credentials.key),
        certificate_chain=certificate,
    )
    return aio.secure_channel(address, tls, options=options)


async def broken(call: Call) -> ChannelClosedError:
    """The error of a call that is over; its status may wait for messages that are never read."""
    try:
        async with asyncio.timeout(1.0):
            code, details = await call.code(), await call.details()
    except TimeoutError:
        return ChannelClosedError("the connection has ended")
    what = details or "no reason given"
    if code in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED):
        return ChannelClosedError(f"the server has closed the connection: {what}")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return ChannelRefusedError(
            f"the server does not work with this site's Offbeat {__version__}, which speaks version "
            f"{VERSION} of the wire ({what}): install versions of Offbeat that speak the same one"
        )
    if code in FINAL:
        return _REFUSALS.get(code, ChannelRefusedError)(f"the server has refused this site: {what}")
    return ChannelClosedError(f"the connection has ended ({code.name}): {what}")
