"""The server's end of the gRPC transport: authenticates sites and opens a connection for each."""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from time import time
from typing import Any

import grpc
from grpc import aio

from offbeat.core.errors import UsageError
from offbeat.net import descriptors
from offbeat.net.address import socket_path, split
from offbeat.net.audit import Actor, AuditLog, operator
from offbeat.net.auth.credentials import (
    EXPIRES_KEY,
    FORWARDED_KEY,
    PROCESS_KEY,
    RENEWED_KEY,
    RENEWS_KEY,
    Authenticator,
    ServerCredentials,
    VerifiedIdentity,
)
from offbeat.net.auth.person import owner
from offbeat.net.auth.tls import server_tls
from offbeat.net.auth.tokens import SampleRange
from offbeat.net.clock import SystemClock
from offbeat.net.failed_logins import FailedLogins
from offbeat.net.grpc.door import Door, peer_of, peer_text
from offbeat.net.grpc.health import Health
from offbeat.net.grpc.incumbents import Holder, Incumbents
from offbeat.net.grpc.protocol import (
    ADMITTED,
    FINAL,
    PATH,
    STATUS,
    TIME_KEY,
    VERSION,
    ChannelOptions,
    channel_options,
    wire_version,
)
from offbeat.net.grpc.stream import Context, GrpcStream
from offbeat.net.grpc.throughput import THROUGHPUT, ThroughputService
from offbeat.net.messages import FromServer, FromSite, Heartbeat, Register, Rejected, shorten
from offbeat.net.refusal_log import RefusalLog
from offbeat.net.token_renewal import RenewingServerChannel
from offbeat.net.transport import ChannelClosedError, CloseReason, OnChannel, ProtocolError, ServerChannel
from offbeat.net.versions import METADATA, VERSION_KEY, difference
from offbeat.net.wire.connection import Connection
from offbeat.net.wire.limits import Limits
from offbeat.net.wire.rate_limit import MemoryBudget
from offbeat.net.wire.reader import MessageReader
from offbeat.net.wire.unfinished import UnfinishedBodies
from offbeat.net.wire.writer import MessageWriter
from offbeat.runs.permissions import why_unwritable
from offbeat.vectors.allocator import tune_malloc
from offbeat.version import __version__

_log = logging.getLogger(__name__)
ServerConnection = Connection[FromServer, FromSite]


@dataclass(frozen=True, slots=True)
class RunningConnection:
    """A connection, the task that runs its handler, and the site's process."""

    connection: ServerConnection
    task: asyncio.Task[None]
    holder: Holder


SOCKET_MODE = 0o660
"""Mode of a Unix socket: its owner and its group, such as that of a proxy, may connect."""
# Streams on one HTTP/2 connection. An honest site has one, and a second while it reconnects.
_STREAMS = 8
_MOST_VERSIONS = 10_000
_LONGEST_NAME = 256  # characters of a site's key, and of the name of its process


async def listen(
    address: str,
    credentials: ServerCredentials,
    limits: Limits,
    on_channel: OnChannel,
    audit: AuditLog | None = None,
    unfinished: UnfinishedBodies | None = None,
) -> "GrpcListener":
    """Listen at "HOST:PORT" (port 0: a free one) or "unix:PATH".

    `on_channel` is run for each connection of a site. `audit` takes who comes, who is refused and why; None
    means no audit.
    `unfinished` keeps what came of an update whose connection ended.

    Raises `UsageError` for an address or credentials that cannot be used.
    """
    credentials.check(address)
    tune_malloc()
    audit = audit or AuditLog()
    authenticator = Authenticator(credentials, audit)
    listener = GrpcListener(authenticator, limits, on_channel, audit, unfinished or UnfinishedBodies())
    await listener.open(address, credentials)
    return listener


class GrpcListener:
    """A listening server."""

    def __init__(
        self,
        authenticator: Authenticator,
        limits: Limits,
        on_channel: OnChannel,
        audit: AuditLog,
        unfinished: UnfinishedBodies,
    ) -> None:
        self._audit, self._unfinished = audit, unfinished
        self._authenticator, self._limits, self._on_channel = authenticator, limits, on_channel
        self._budget = MemoryBudget(limits.memory)
        # Open connections: all of them, and those of each site.
        self._open, self._open_of = 0, Counter[str]()
        self._logins = FailedLogins()
        self._connections: dict[str, RunningConnection] = {}
        self._incumbents = Incumbents()
        self._refusals = RefusalLog()
        # The version that each site has told last.
        self._versions: dict[str, str | None] = {}
        self._throughput = ThroughputService()
        self._server: aio.Server | None = None
        # As many connections again as sites may have, for peers without a credential yet.
        most = min(2 * limits.connections, descriptors.for_sites())
        self._door = Door(most, limits.handshake, self._refusals)
        self._watching: asyncio.Task[None] | None = None
        # On a Unix socket, a proxy gives the addresses of sites.
        self._on_socket = False
        self.port = 0

    @property
    def rejected(self) -> Counter[str]:
        """The refused connections by the kind of their error."""
        return self._refusals.counts

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that are connected."""
        return tuple(sorted(self._connections))

    def enrolled(self) -> frozenset[str] | None:
        """Names of the sites that have a token; None where sites need none."""
        return self._authenticator.enrolled()

    def expires_in(self) -> dict[str, float]:
        """Seconds until a credential expires, by its owner."""
        return self._authenticator.expires_in()

    def samples(self, site: str) -> SampleRange | None:
        """The numbers of samples that a site may have; None means any."""
        return self._authenticator.samples(site)

    async def open(self, address: str, credentials: ServerCredentials) -> None:
        """Begin to listen. Raises `UsageError` if the address is taken or not this machine's."""
        check_free(address)
        server = aio.server(options=_server_options(self._limits, self._door.most))
        server.add_generic_rpc_handlers((_Methods(self._connect, self._measure, self._refuse), Health()))
        event = {"action": "config.reload", "files": "the server's certificate and key"}
        certificate = credentials.certificate

        def reloaded() -> None:
            self._audit.record(operator("" if certificate is None else owner(certificate)), event)

        tls = server_tls(credentials, reloaded)
        path = socket_path(address)
        try:
            port = server.add_insecure_port(address) if tls is None else server.add_secure_port(address, tls)
        except RuntimeError:
            raise _cannot_listen(address, "it was taken a moment ago") from None
        self._on_socket = path is not None
        if path is not None:
            Path(path).chmod(SOCKET_MODE)
        await server.start()
        self._server = server
        if path is None:
            self.port = port
            self._watching = asyncio.create_task(self._door.watch(port))

    async def close(self) -> None:
        """Close all connections, once their queues are sent, and stop listening."""
        connections = [running.connection for running in self._connections.values()]
        await asyncio.gather(*(connection.close("the server has stopped") for connection in connections))
        if self._server is not None:
            await self._server.stop(self._limits.drain)
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        self._refusals.close()

    async def _connect(self, _requests: Any, context: Context) -> None:
        """Serve one stream, from its credential to its end."""
        site = None
        if self._open >= self._limits.connections:
            ending = CloseReason(f"{self._open} connections are open, more are not allowed", "full")
        else:
            self._open += 1
            try:
                site, ending = await self._serve(context)
            finally:
                self._open -= 1
        self._end(context, site, ending)

    async def _refuse(self, method: str, _requests: Any, context: Context) -> None:
        """Refuse a call of a version of the wire that this server does not know."""
        theirs = wire_version(method)
        spoken = "another one" if theirs is None else f"version {theirs}"
        reason = (
            f"this server has Offbeat {__version__}, which speaks version {VERSION} of the wire, and the "
            f"site speaks {spoken}: install a version of Offbeat that speaks version {VERSION} at the site"
        )
        self._end(context, None, CloseReason(reason, "wire"))

    async def _measure(self, _requests: Any, context: Context) -> None:
        """Measure the throughput of a site that shows its credential."""
        verified, _, ending = self._login(context)
        if verified is not None:
            with self._door.admitted(context.peer()):
                ending = await self._throughput.serve(context, verified.site)
        if ending.kind:
            self._end(context, None if verified is None else verified.site, ending)

    def _end(self, context: Context, site: str | None, ending: CloseReason) -> None:
        """End a call, of a site if it has proved its name; note why it is refused."""
        if ending.kind:
            self._refusals.add(ending.kind, self._peer(context), ending.reason, site)
            event = {"action": "login" if site is None else "site.refuse", "kind": ending.kind}
            actor = Actor(site, "site", self._host(context))
            self._audit.record_repeated(actor, {**event, "reason": ending.reason}, "failed")
        _finish(context, _status(ending), ending.reason)

    def _login(self, context: Context) -> tuple[VerifiedIdentity | None, Mapping[str, str], CloseReason]:
        """Who calls, by the credential that is shown, and the call's metadata; or why it is refused."""
        host = self._host(context)
        if (waits := self._logins.refusal(host)) is not None:
            return None, {}, CloseReason(waits, "logins")
        try:
            metadata = _metadata(context)
            verified = self._authenticator.admit(metadata, _identity(context))
        except ProtocolError as error:
            self._logins.failed(host)
            return None, {}, CloseReason(str(error), error.kind)
        self._logins.succeeded(host)
        return verified, metadata, CloseReason("")

    async def _serve(self, context: Context) -> tuple[str | None, CloseReason]:
        """Serve a connection to its end; returns the site's name, if it has proved one, and the reason."""
        verified, metadata, refused = self._login(context)
        if verified is None:
            return None, refused
        if verified.token is not None and verified.token.unused:
            await asyncio.to_thread(verified.token.use)
        site, most = verified.site, self._limits.of_a_site
        if self._open_of[site] >= most:
            return site, CloseReason(f"site {site} has {most} connections, more are not allowed", "site")
        self._open_of[site] += 1
        try:
            with self._door.admitted(context.peer()):
                return site, await self._serve_site(context, verified, metadata)
        finally:
            self._open_of[site] -= 1
            if not self._open_of[site]:
                del self._open_of[site]

    def _host(self, context: Context) -> str:
        """The address of the peer, or what the proxy before this server says it is."""
        return _forwarded_host(context) if self._on_socket else peer_of(context.peer())[0]

    def _peer(self, context: Context) -> str:
        """The peer as the log names it."""
        if self._on_socket:
            return self._host(context) or "a peer at the socket"
        return peer_text(peer_of(context.peer()))

    async def _serve_site(
        self, context: Context, verified: VerifiedIdentity, metadata: Mapping[str, str]
    ) -> CloseReason:
        stream, reader = GrpcStream(context, _broken), MessageReader[FromSite]("site", self._limits)
        connection: ServerConnection = Connection(
            verified.site, stream, reader, self._limits, self._budget, self._unfinished, verified.valid
        )
        try:
            key = metadata.get(RENEWS_KEY, "")[:_LONGEST_NAME]
            # The key is durable here before a site is told that the token is renewed for it.
            token, bound = verified.token, None
            if token is not None:
                bound = await asyncio.to_thread(token.claim, key)
            told = [(EXPIRES_KEY, f"{token.expires}")] if token is not None and token.expires else []
            if bound is not None:
                told.append((RENEWED_KEY, f"{bound:d}"))
            await context.send_initial_metadata((*ADMITTED, *METADATA, (TIME_KEY, f"{time():.0f}"), *told))
            if self._on_socket:
                await _send_at_once(stream)
            if isinstance(first := await connection.registered(), Register):
                self._check_samples(connection, first.samples)
            holder = Holder(metadata.get(PROCESS_KEY, "")[:_LONGEST_NAME], bound is True)
            self._check_incumbent(connection, holder)
            if connection.ending is None:
                self._tell_version(verified.site, metadata.get(VERSION_KEY))
                actor = Actor(verified.site, "site", self._host(context))
                self._audit.record_repeated(actor, {"action": "site.connect"})
                if bound is False:
                    self._tell_of_key(context, verified.site, key)
                await self._handle(connection, verified, holder, renews=bool(key) and bound is not False)
            ending = await connection.ended()
            if ending.kind:
                await _reject(stream, ending, self._limits.drain)
            return ending
        except asyncio.CancelledError:
            # gRPC reports a lost connection so.
            connection.abort(CloseReason("the connection is lost"))
            raise
        finally:
            await connection.ended()

    def _check_samples(self, connection: ServerConnection, samples: int) -> None:
        """End the connection of a site whose number of samples is not one that it is enrolled with."""
        least, most = self.samples(connection.site) or (samples, samples)
        if not least <= samples <= most:
            site = connection.site
            reason = f"samples = {samples} is not allowed: site {site} is enrolled with {least} to {most}"
            connection.abort(CloseReason(reason, "samples"))

    def _check_incumbent(self, connection: ServerConnection, holder: Holder) -> None:
        """End the connection of a process that does not replace the one that is connected."""
        older = self._connections.get(connection.site)
        if older is not None and connection.ending is None:
            refused = self._incumbents.refusal(connection.site, older.holder, holder)
            if refused is not None:
                connection.abort(refused)

    def _tell_version(self, site: str, version: str | None) -> None:
        """Warn of a site whose version differs from this server's, once for each version that it tells."""
        if self._versions.get(site) == version:
            return
        if len(self._versions) >= _MOST_VERSIONS:
            self._versions.clear()
        self._versions[site] = version
        if (told := difference(__version__, version)) is not None:
            _log.warning("another version of Offbeat: %s", told, extra={"site": site})

    def _tell_of_key(self, context: Context, site: str, key: str) -> None:
        """Tell the log, the metrics and the audit of a site whose token is bound to another key."""
        reason = (
            f"site {site} has {'another key than' if key else 'not'} the one of its token's first use, "
            "so its token is not renewed: its state is lost, or somebody else has its kit; ask the site, and "
            "give it a new kit (offbeat enrol)"
        )
        self._refusals.add("key", self._peer(context), reason, site)
        actor, event = Actor(site, "site", self._host(context)), {"action": "token.key", "reason": reason}
        self._audit.record_repeated(actor, event, "failed")

    async def _handle(
        self, connection: ServerConnection, verified: VerifiedIdentity, holder: Holder, *, renews: bool
    ) -> None:
        """Replace an older connection of this site, and run the handler of this one to its end."""
        site = connection.site
        channel: ServerChannel = connection
        renewing: asyncio.Task[None] | None = None
        if renews and verified.token is not None and verified.token.expires:
            channel = renewer = RenewingServerChannel(connection, verified.token, SystemClock())
            renewing = asyncio.create_task(renewer.renew())
        older = self._connections.get(site)
        task = asyncio.create_task(self._run(connection, channel, older, holder))
        self._connections[site] = running = RunningConnection(connection, task, holder)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            connection.abort(CloseReason("the connection is lost"))
            await task
            raise
        finally:
            if renewing is not None:
                renewing.cancel()
            if self._connections.get(site) is running:
                del self._connections[site]
            reason = connection.ending.reason if connection.ending is not None else ""
            self._audit.record_repeated(Actor(site, "site"), {"action": "site.disconnect", "reason": reason})

    async def _run(
        self,
        connection: ServerConnection,
        channel: ServerChannel,
        older: RunningConnection | None,
        holder: Holder,
    ) -> None:
        if older is not None:
            reason = f"a newer connection of site {connection.site} has replaced this one"
            if older.holder.process == holder.process:
                ending = CloseReason(reason)
            else:
                ending = CloseReason(f"{reason}: does another process run with its credential?", "replaced")
            older.connection.abort(ending)
            await asyncio.wait([older.task])
        try:
            await connection.tell_unfinished()
            await self._on_channel(channel)
        except ChannelClosedError:
            pass
        except Exception:
            _log.exception("the connection failed", extra={"site": connection.site})
            connection.abort(CloseReason("the server failed to handle a message of this site", "ours"))
        await connection.close()


class _Methods(grpc.GenericRpcHandler):
    """The method of the service, and that of its throughput; other versions of the wire get a reason."""

    def __init__(self, connect: Any, measure: Any, refuse: Any) -> None:
        self._connect: Any = grpc.stream_stream_rpc_method_handler(connect)
        self._measure: Any = grpc.stream_stream_rpc_method_handler(measure)
        self._refuse = refuse

    def service(self, call: grpc.HandlerCallDetails) -> Any:
        """The handler of a call; None if there is no such method."""
        if call.method == PATH:
            return self._connect
        if call.method == THROUGHPUT:
            return self._measure
        if not call.method.startswith("/offbeat."):
            return None
        refuse: Any = grpc.stream_stream_rpc_method_handler(partial(self._refuse, call.method))
        return refuse


async def _broken(error: Exception | None) -> ChannelClosedError:
    lost = "the peer has closed the connection" if error is None else f"the connection is lost: {error}"
    return ChannelClosedError(lost)


async def _send_at_once(stream: GrpcStream) -> None:
    """Send a message after the initial metadata: nginx keeps metadata back that no message follows."""
    first = MessageWriter()
    first.put(Heartbeat())
    with suppress(ChannelClosedError):
        await stream.write(first.frame())


async def _reject(stream: GrpcStream, ending: CloseReason, seconds: float) -> None:
    """Send the reason as a last message too: a peer that is still sending can lose the status."""
    last = MessageWriter()
    # A site that was accepted before tries again where its credential is not known: the status tells that.
    last.put(Rejected(ending.reason, _status(ending) in FINAL and ending.kind != "credential"))
    with suppress(TimeoutError, ChannelClosedError):
        async with asyncio.timeout(seconds):
            await stream.write(last.frame())


def _status(ending: CloseReason) -> grpc.StatusCode:
    return STATUS.get(ending.kind, grpc.StatusCode.INVALID_ARGUMENT)


def _finish(context: Context, status: grpc.StatusCode, reason: str) -> None:
    """Set the status of a call; `abort` would keep its traceback, and all that it refers to, for ever."""
    context.set_code(status)
    context.set_details(shorten(reason))


def check_free(address: str) -> None:
    """Raises `UsageError` if the address cannot be listened on; gRPC would print lines of its own."""
    if (path := socket_path(address)) is not None:
        _check_socket(address, Path(path))
        return
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


def _check_socket(address: str, path: Path) -> None:
    """Raises `UsageError` if there can be no socket of this name; one that nobody listens on is replaced."""
    if (why := why_unwritable(path.parent)) is not None:
        raise _cannot_listen(address, why)
    if not path.exists() and not path.is_symlink():
        return
    if not path.is_socket():
        raise _cannot_listen(address, "another file has this name")
    with socket.socket(socket.AF_UNIX) as other:
        other.settimeout(1.0)
        try:
            other.connect(str(path))
        except ConnectionRefusedError:
            # The server that made the socket has died.
            return
        except OSError as error:
            raise _cannot_listen(address, str(error.strerror or error)) from None
    raise _cannot_listen(address, "another process listens there")


def _cannot_listen(address: str, why: str) -> UsageError:
    return UsageError(
        f"cannot listen on {address} ({why}): give an address of this machine and a free port, or end the "
        "process that listens there"
    )


def _server_options(limits: Limits, most: int) -> ChannelOptions:
    # The door's deadline comes first, since the door counts what it closes.
    milliseconds = int(limits.handshake * 2000)
    return [
        *channel_options(limits),
        # Otherwise a second server would share the port in silence.
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", most),
        ("grpc.server_handshake_timeout_ms", milliseconds),
        ("grpc.max_connection_idle_ms", max(milliseconds, 1000)),
        ("grpc.max_concurrent_streams", _STREAMS),
        ("grpc.http2.min_ping_interval_without_data_ms", int(limits.keepalive * 500)),
    ]


def _metadata(context: Context) -> dict[str, str]:
    """The text metadata of a call; a key given twice is refused."""
    metadata: dict[str, str] = {}
    for key, value in context.invocation_metadata() or ():
        if isinstance(value, str):
            if key in metadata and key != FORWARDED_KEY:
                # Each proxy on the way may add a forwarding header of its own.
                raise ProtocolError("a metadata key is given twice", "credential")
            metadata[key] = value
    return metadata


def _forwarded_host(context: Context) -> str:
    """The address of the site from the proxy before this server: the last one; "" without one."""
    told = [value for key, value in context.invocation_metadata() or () if key == FORWARDED_KEY]
    host = str(told[-1]).rpartition(",")[2].strip() if told else ""
    try:
        return str(ip_address(host))
    except ValueError:
        return ""


def _identity(context: Context) -> Mapping[str, list[bytes]]:
    return {str(key): list(values) for key, values in context.auth_context().items()}
