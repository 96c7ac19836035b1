"""A simulated network below gRPC's calls: the real listener and the real client, and frames of real bytes.

A call is a pair of streams. A frame arrives after a delay that is drawn, later than the one before it in its
stream and in any order with those of other calls. What a network may do to a call is done to it: it is lost,
with the frames under way; nothing passes for a while; nothing passes any more, and nobody is told. A message
of a site may come twice, the second time late, as if the site had sent it so.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

import grpc
from grpc import aio

from offbeat.net.audit import AuditLog
from offbeat.net.auth.credentials import Authenticator, ServerCredentials, SiteCredentials
from offbeat.net.grpc.client import connect
from offbeat.net.grpc.server import GrpcListener
from offbeat.net.messages import FromServer, FromSite, Heartbeat, Register
from offbeat.net.transport import ClientChannel, OnChannel
from offbeat.net.wire.limits import Limits
from offbeat.net.wire.unfinished import UnfinishedBodies
from tests.system.loop import Process, current_process

LIMITS = Limits(messages_per_second=1e9, handshake=4.0, stall=8.0, drain=1.0)
_LOST = aio.AioRpcError(
    grpc.StatusCode.UNAVAILABLE, aio.Metadata(), aio.Metadata(), details="the call is lost"
)


class Network:
    """The network between a server and its sites.

    Args:
        rng: Draws delays and faults.

    Attributes:
        delay: Most seconds that a frame takes.
        duplicate: Probability in [0, 1] that a message comes twice.
        cut_off: Sites to and from which nothing passes.
        calls: The calls that are open.
        sent: Called with each message that a site sends, before it does.
        received: Called with each message that a site receives.
        counts: How often each fault has happened.
    """

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.delay, self.duplicate = 0.05, 0.0
        self.cut_off: set[str] = set()
        self.calls: list[Call] = []
        self.sent: Callable[[str, FromSite], None] = lambda *_: None
        self.received: Callable[[str, FromServer], None] = lambda *_: None
        self.counts = {"calls": 0, "duplicates": 0, "broken": 0, "half-open": 0}
        self._listener: tuple[GrpcListener, Process | None] | None = None

    async def listen(self, on_channel: OnChannel) -> "Listening":
        """Listen with the real listener of the process that calls."""
        listener = GrpcListener(
            Authenticator(ServerCredentials()), LIMITS, on_channel, AuditLog(), UnfinishedBodies()
        )
        self._listener = listener, current_process()
        return Listening(self, listener)

    def connect(self, site: str) -> Callable[[], Any]:
        """What opens a connection in the name of a site, with the real client."""

        async def connecting() -> ClientChannel:
            channel = await connect("127.0.0.1:1", SiteCredentials(name=site), LIMITS)
            return _Repeating(channel, self, site)

        return connecting

    @contextmanager
    def instead_of_grpc(self) -> Iterator[None]:
        """Open the calls of clients here, in all of a run: patches of single calls overlap, and stay."""
        with patch("offbeat.net.grpc.call.open_channel", lambda *_: _GrpcChannel(self)):
            yield

    def open(self, metadata: Any) -> "Call":
        """A new call, with its handler at the server, if one listens there."""
        call = Call(self, metadata)
        self.calls.append(call)
        self.counts["calls"] += 1
        asyncio.get_running_loop().call_later(self.draw(), self._arrive, call)
        return call

    def _arrive(self, call: "Call") -> None:
        if self._listener is None or not _alive(self._listener[1]):
            call.finish()
            return
        if call.site in self.cut_off or call.over:
            return
        listener, process = self._listener
        assert process is not None
        call.handler = process.start(call.serve(listener))

    def draw(self) -> float:
        """The delay of a frame."""
        return self.rng.random() * self.delay

    def stop_listening(self, listener: GrpcListener) -> None:
        """Nobody listens there any more."""
        if self._listener is not None and self._listener[0] is listener:
            self._listener = None

    def process_died(self, process: Process) -> None:
        """Its calls are lost, as the other ends find out, or not for a long time."""
        for call in list(self.calls):
            if call.client is process or (call.handler is not None and call.server is process):
                if self.rng.random() < 0.8:
                    call.break_off()
                else:
                    call.silence()


class Listening:
    """What `serve` closes."""

    def __init__(self, network: Network, listener: GrpcListener) -> None:
        self._network, self._listener = network, listener

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        self._network.stop_listening(self._listener)
        await self._listener.close()


class Stream:
    """Frames in one direction."""

    def __init__(self, call: "Call") -> None:
        self._call = call
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._at = 0.0

    def put(self, frame: bytes | None) -> None:
        """Send a frame, or None for the end."""
        network, loop = self._call.network, asyncio.get_running_loop()
        self._at = max(self._at + 1e-6, loop.time() + network.draw())
        loop.call_at(self._at, self._arrive, frame)

    def _arrive(self, frame: bytes | None) -> None:
        call = self._call
        if call.silent or call.over:
            return
        if call.site in call.network.cut_off:
            self._at = asyncio.get_running_loop().time() + 0.5  # sent again, in order
            asyncio.get_running_loop().call_at(self._at, self._arrive, frame)
        else:
            self._frames.put_nowait(frame)

    async def get(self) -> Any:
        """The next frame; gRPC's word for the end."""
        frame = await self._frames.get()
        if frame is None:
            self._frames.put_nowait(None)
            return aio.EOF
        return frame


class Call:
    """One call: what a client's end and a server's end have in common."""

    def __init__(self, network: Network, metadata: Any) -> None:
        self.network, self.metadata = network, metadata
        self.site = str(dict(metadata).get("offbeat-site", ""))
        self.client, self.server = current_process(), None
        self.up, self.down = Stream(self), Stream(self)
        self.handler: asyncio.Task[Any] | None = None
        self.silent = self.over = False
        self.status: tuple[grpc.StatusCode, str] = grpc.StatusCode.OK, ""
        loop = asyncio.get_running_loop()
        self.admitted: asyncio.Future[Any] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()  # at the client
        self.lost = False  # at the client

    async def serve(self, listener: GrpcListener) -> None:
        """The server's handler."""
        self.server = current_process()
        try:
            await listener._connect(None, _ServerEnd(self))  # type: ignore[arg-type]
        finally:
            self.down.put(None)
            asyncio.get_running_loop().call_later(self.network.delay, self.finish)

    def finish(self) -> None:
        """The call has ended, and the client knows how; not where nothing passes."""
        if self.silent or self.over or not _alive(self.server):
            return
        if self.site in self.network.cut_off:
            asyncio.get_running_loop().call_later(0.5, self.finish)
        else:
            self._close()

    def break_off(self) -> None:
        """The call is lost at both ends; what is under way is lost too."""
        if self.over:
            return
        self.network.counts["broken"] += 1
        self.lost = True
        if self.handler is not None and _alive(self.server):
            self.handler.cancel()
        self._close()

    def silence(self) -> None:
        """Nothing passes any more, and nobody is told."""
        self.network.counts["half-open"] += 1
        self.silent = True

    def _close(self) -> None:
        self.over = True
        if self in self.network.calls:
            self.network.calls.remove(self)
        for future in (self.admitted, self.ended):
            if not future.done():
                future.set_result(None)
        self.down._frames.put_nowait(None)


def _alive(process: Process | None) -> bool:
    return process is None or process.alive


class _ServerEnd:
    """A `ServicerContext`."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def invocation_metadata(self) -> Any:
        return self._call.metadata

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    def peer(self) -> str:
        return f"ipv4:10.0.0.1:{1000 + len(self._call.site)}"

    async def send_initial_metadata(self, metadata: Any) -> None:
        def tell() -> None:
            if not (call.admitted.done() or call.silent or call.over):
                call.admitted.set_result(metadata)

        call = self._call
        asyncio.get_running_loop().call_later(call.network.draw(), tell)

    def set_code(self, code: grpc.StatusCode) -> None:
        self._call.status = code, self._call.status[1]

    def set_details(self, details: str) -> None:
        self._call.status = self._call.status[0], details

    async def read(self) -> Any:
        return await self._call.up.get()

    async def write(self, frame: bytes) -> None:
        if _alive(current_process()):
            self._call.down.put(frame)
        await asyncio.sleep(0)


class _ClientEnd:
    """A `StreamStreamCall`."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def initial_metadata(self) -> Any:
        metadata = await self._call.admitted
        if metadata is None:
            raise _LOST
        return metadata

    async def read(self) -> Any:
        frame = await self._call.down.get()
        if frame is aio.EOF and self._call.lost:
            raise _LOST
        return frame

    async def write(self, frame: bytes) -> None:
        if self._call.over:
            raise asyncio.InvalidStateError("the call has ended")
        if _alive(current_process()):
            self._call.up.put(frame)
        await asyncio.sleep(0)

    async def done_writing(self) -> None:
        if _alive(current_process()):
            self._call.up.put(None)

    async def code(self) -> grpc.StatusCode:
        await asyncio.shield(self._call.ended)
        return grpc.StatusCode.UNAVAILABLE if self._call.lost else self._call.status[0]

    async def details(self) -> str:
        await asyncio.shield(self._call.ended)
        return "the call is lost" if self._call.lost else self._call.status[1]

    def cancel(self) -> None:
        self._call.break_off()


class _GrpcChannel:
    """An `aio.Channel` with one call."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._call: Call | None = None

    def stream_stream(self, _path: str) -> Callable[..., _ClientEnd]:
        def call(metadata: Any) -> _ClientEnd:
            self._call = self._network.open(metadata)
            return _ClientEnd(self._call)

        return call

    async def close(self) -> None:
        if self._call is not None and not self._call.silent and _alive(current_process()):
            self._call.break_off()


class _Repeating:
    """A site's channel that sends a message twice now and then, the second time late."""

    def __init__(self, channel: ClientChannel, network: Network, site: str) -> None:
        self._channel, self._network, self._site = channel, network, site

    @property
    def took(self) -> float:
        """Seconds in which the tensors of the last message came."""
        return self._channel.took

    def send(self, message: FromSite) -> None:
        """Send a message; a `Register` once."""
        if _alive(current_process()):
            self._network.sent(self._site, message)
        self._channel.send(message)
        rng, repeats = self._network.rng, not isinstance(message, Register | Heartbeat)
        if repeats and self._network.duplicate and rng.random() < self._network.duplicate:
            self._network.counts["duplicates"] += 1
            asyncio.get_running_loop().call_later(rng.random() * 3.0, self._channel.send, message)

    async def receive(self) -> FromServer:
        """The next message."""
        message = await self._channel.receive()
        if _alive(current_process()):
            self._network.received(self._site, message)
        return message

    async def close(self, reason: str = "") -> None:
        """Close the connection."""
        await self._channel.close(reason)
