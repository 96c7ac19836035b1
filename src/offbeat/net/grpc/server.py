"""The server's end on gRPC: it authenticates sites, opens a link for each and survives what they send."""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import grpc
from grpc import aio

from offbeat.core.errors import UsageError
from offbeat.net.address import split
from offbeat.net.auth.credentials import Authenticator, ServerCredentials, VerifiedIdentity
from offbeat.net.auth.tls import server_tls
from offbeat.net.grpc.options import (
    ADMITTED,
    FINAL,
    METHOD,
    SERVICE,
    STATUS,
    ChannelOptions,
    channel_options,
    said,
)
from offbeat.net.messages import FromServer, FromSite, Rejected
from offbeat.net.transport import ChannelClosedError, OnChannel
from offbeat.net.wire.connection import CloseReason, Connection
from offbeat.net.wire.encode import encode
from offbeat.net.wire.fields import ProtocolError
from offbeat.net.wire.frames import frames
from offbeat.net.wire.limits import Limits
from offbeat.net.wire.rate_limit import MemoryBudget
from offbeat.net.wire.reader import MessageReader
from offbeat.vectors.allocator import tune_malloc

_log = logging.getLogger(__name__)
Context = aio.ServicerContext[bytes, bytes]
ServerConnection = Connection[FromServer, FromSite]
_STREAMS = 8  # at once on one connection; an honest site has one, and a second while it comes back


async def listen(
    address: str, credentials: ServerCredentials, limits: Limits, on_link: OnChannel
) -> "GrpcListener":
    """Take sites at "HOST:PORT" (port 0: a free one), each of which gets its own run of `on_link`.

    Raises `UsageError` if the address cannot be listened at, or not with these credentials.
    """
    credentials.check(address)
    split(address)
    tune_malloc()
    listener = GrpcListener(Authenticator(credentials), limits, on_link)
    await listener.open(address, credentials)
    return listener


class _ServerStream:
    def __init__(self, context: Context) -> None:
        self._context = context

    async def read(self) -> bytes | None:
        try:
            frame = await self._context.read()
        except (aio.UsageError, aio.BaseError, aio.InternalError) as error:
            raise ChannelClosedError(f"the connection is gone: {error}") from None
        return frame if isinstance(frame, bytes) else None

    async def write(self, frame: bytes) -> None:
        try:
            await self._context.write(frame)
        except (aio.UsageError, aio.BaseError, aio.InternalError) as error:
            raise ChannelClosedError(f"the connection is gone: {error}") from None


class GrpcListener:
    """A server that listens. `rejected` counts, by a word for the reason, what was refused."""

    def __init__(self, gate: Authenticator, limits: Limits, on_link: OnChannel) -> None:
        self._gate, self._limits, self._on_link = gate, limits, on_link
        self._pool = MemoryBudget(limits.memory)
        self._open = 0
        self._links: dict[str, tuple[ServerConnection, asyncio.Event]] = {}
        self._rejected: Counter[str] = Counter()
        self._server: aio.Server | None = None
        self.port = 0

    @property
    def rejected(self) -> Mapping[str, int]:
        """What was refused so far, by a word for the reason."""
        return dict(self._rejected)

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that are connected."""
        return tuple(sorted(self._links))

    async def open(self, address: str, credentials: ServerCredentials) -> None:
        """Begin to listen. Raises `UsageError` if the address is taken or not this machine's."""
        check_free(address)
        server = aio.server(options=_server_options(self._limits))
        method: Any = grpc.stream_stream_rpc_method_handler(self._converse)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),))
        tls = server_tls(credentials)
        try:
            if tls is None:
                self.port = server.add_insecure_port(address)
            else:
                self.port = server.add_secure_port(address, tls)
        except RuntimeError:
            raise _cannot_listen(address, "it was taken just now") from None
        await server.start()
        self._server = server

    async def close(self) -> None:
        """End all links, once their last messages are sent, and listen no more."""
        links = [link for link, _ in self._links.values()]
        await asyncio.gather(*(link.close("the server has stopped") for link in links))
        if self._server is not None:
            await self._server.stop(self._limits.drain)

    async def _converse(self, _requests: Any, context: Context) -> None:
        """One stream, from its credential to its end."""
        if self._open >= self._limits.connections:
            full = CloseReason(f"{self._open} connections are open, no more are taken", "full")
            self._refuse(context, full)
            return
        self._open += 1
        try:
            ending = await self._serve(context)
        finally:
            self._open -= 1
        if ending.kind:
            self._refuse(context, ending)
        else:
            _finish(context, grpc.StatusCode.CANCELLED, ending.reason)

    async def _serve(self, context: Context) -> CloseReason:
        try:
            proof = self._gate.admit(_metadata(context), _identity(context))
        except ProtocolError as violation:
            return CloseReason(str(violation), violation.kind)
        receiver: MessageReader[FromSite] = MessageReader("site", self._limits)
        pipe = _ServerStream(context)
        link: ServerConnection = Connection(proof.site, pipe, receiver, self._limits, self._pool, proof.valid)
        link.start()
        try:
            ending = await self._lead(link, proof, context)
            if ending.kind:
                await link.ended()
                await _tell(pipe, ending, self._limits.drain)
            return ending
        except asyncio.CancelledError:  # gRPC's word for a connection that is gone
            link.end(CloseReason("the connection is gone"))
            raise
        finally:
            await link.ended()
            await link.release()

    async def _lead(self, link: ServerConnection, proof: VerifiedIdentity, context: Context) -> CloseReason:
        """Wait for the hello, take the place of an older link of this site, and run the link to its end."""
        await context.send_initial_metadata(ADMITTED)
        try:
            async with asyncio.timeout(self._limits.handshake):
                await link.greeted()
        except TimeoutError:
            link.end(CloseReason(f"no hello within {self._limits.handshake:g} s", "deadline"))
        if link.ending is not None:
            return link.ending
        gone = asyncio.Event()
        older, self._links[proof.site] = self._links.get(proof.site), (link, gone)
        task = asyncio.create_task(self._run(link, older))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            link.end(CloseReason("the connection is gone"))
            await task
            raise
        finally:
            gone.set()
            if self._links.get(proof.site) == (link, gone):
                del self._links[proof.site]
        return await link.ended()

    async def _run(
        self, link: ServerConnection, older: tuple[ServerConnection, asyncio.Event] | None
    ) -> None:
        if older is not None:
            older[0].end(CloseReason("a newer connection of this site has taken its place", "replaced"))
            await older[1].wait()
        try:
            await self._on_link(link)
        except ChannelClosedError:
            pass
        except Exception:
            _log.exception("the link of site %s failed", link.site)
            link.end(CloseReason("the server failed to handle what this site said", "ours"))
        await link.close()

    def _refuse(self, context: Context, ending: CloseReason) -> None:
        self._rejected[ending.kind] += 1
        _log.warning("refused %s: %s", context.peer(), ending.reason)
        _finish(context, _status(ending), ending.reason)


async def _tell(pipe: _ServerStream, ending: CloseReason, seconds: float) -> None:
    """Say what is wrong in a last message too: a status can be lost on a peer that is still sending."""
    last = encode(Rejected(ending.reason, _status(ending) in FINAL)).envelope
    with suppress(TimeoutError, ChannelClosedError):
        async with asyncio.timeout(seconds):
            await pipe.write(next(frames([last], ())))


def _status(ending: CloseReason) -> grpc.StatusCode:
    return STATUS.get(ending.kind, grpc.StatusCode.INVALID_ARGUMENT)


def _finish(context: Context, status: grpc.StatusCode, reason: str) -> None:
    """Say how it ended; `abort` would too, but keep its traceback, and all that hangs on it, for ever."""
    context.set_code(status)
    context.set_details(said(reason))


def check_free(address: str) -> None:
    """Whether one could listen there. Raises `UsageError`; gRPC would complain in lines of its own."""
    host, port = split(address)
    why = "the name has no address"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise _cannot_listen(address, str(error.strerror)) from None
    for family, kind, protocol, _, place in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(place)
            except OSError as error:
                why = str(error.strerror)
            else:
                return
    raise _cannot_listen(address, why)


def _cannot_listen(address: str, why: str) -> UsageError:
    return UsageError(
        f"address {address}: it cannot be listened at ({why}); give an address of this machine and a port "
        "that is free, or end what listens there"
    )


def _server_options(limits: Limits) -> ChannelOptions:
    milliseconds = int(limits.handshake * 1000)
    return [
        *channel_options(limits),
        ("grpc.so_reuseport", 0),  # or a second server at the same port would share it in silence
        ("grpc.server_handshake_timeout_ms", milliseconds),
        ("grpc.max_connection_idle_ms", max(milliseconds, 1000)),
        ("grpc.max_concurrent_streams", _STREAMS),
        ("grpc.http2.min_ping_interval_without_data_ms", int(limits.keepalive * 500)),
    ]


def _metadata(context: Context) -> dict[str, str]:
    """The text metadata of a call; a key given twice is refused."""
    found: dict[str, str] = {}
    for key, value in context.invocation_metadata() or ():
        if isinstance(value, str):
            if key in found:
                raise ProtocolError("a metadata key is given twice", "credential")
            found[key] = value
    return found


def _identity(context: Context) -> Mapping[str, list[bytes]]:
    return {str(key): list(values) for key, values in context.auth_context().items()}
