"""The call of a site to its server: the channel, the credential, and what its errors mean."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack

import grpc
from grpc import aio

from offbeat.net.address import socket_path, split
from offbeat.net.auth.certificates import SITE, check_usage
from offbeat.net.auth.credentials import EXPIRES_KEY, SiteCredentials, pem
from offbeat.net.grpc.protocol import ADMITTED, FINAL, PATH, STATUS, VERSION, channel_options
from offbeat.net.grpc.stream import Call
from offbeat.net.proxy import Proxy
from offbeat.net.transport import (
    ChannelClosedError,
    ChannelRefusedError,
    CredentialRefusedError,
    CredentialRevokedError,
)
from offbeat.net.versions import METADATA
from offbeat.net.wire.limits import Limits
from offbeat.version import __version__

_LONGEST_TIME = 13  # digits of seconds since 1970
_REFUSALS: dict[grpc.StatusCode, type[ChannelRefusedError]] = {
    STATUS["credential"]: CredentialRefusedError,
    STATUS["revoked"]: CredentialRevokedError,
}


async def greeting(
    address: str, credentials: SiteCredentials, limits: Limits, proxy: Proxy | None = None
) -> dict[str, str]:
    """The metadata with which the server accepts the site's credential; the site does not take part.

    Raises as `connect` does.
    """
    call, channel, told = await admitted(address, credentials, limits, proxy)
    call.cancel()
    await channel.close()
    return told


async def admitted(
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


def token_ends(told: Mapping[str, str]) -> int | None:
    """When the site's token expires, in seconds since 1970, as the server tells it; None for never."""
    ends = told.get(EXPIRES_KEY, "")
    return int(ends) if ends.isdecimal() and len(ends) < _LONGEST_TIME else None


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
        check_usage(credentials.shown, certificate, SITE)
    tls = grpc.ssl_channel_credentials(
        root_certificates=None if credentials.ca is None else pem(credentials.ca),
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
