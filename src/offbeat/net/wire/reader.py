"""Frames in, messages out: a side's reading of the stream, without sockets or clocks.

After an envelope that announces a body, its chunks follow. Between them may be envelopes of messages
without a body; each is a message at once. How all this is distributed over frames makes no difference. What
breaks the rules is a `ProtocolError`, and ends the conversation.
"""

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, cast

import numpy as np
from torch import Tensor
from xxhash import xxh3_64

from offbeat.net.messages import FromServer, FromSite, Message
from offbeat.net.wire import wire_pb2 as pb
from offbeat.net.wire.bodies import allocate, announced, told_layout
from offbeat.net.wire.decode import FROM_SERVER, FROM_SITE, decode, kind_of
from offbeat.net.wire.fields import ProtocolError
from offbeat.net.wire.frames import parse
from offbeat.net.wire.limits import LEAST_CHUNK, MOST_CHUNK, Limits

M = TypeVar("M", FromSite, FromServer)


@dataclass(slots=True)
class _Body:
    """A body under way: what of each part is still to be filled."""

    envelope: pb.Envelope
    kind: str
    bodies: dict[int, Tensor | bytearray]
    unfilled: list[memoryview]
    left: int
    checksum: xxh3_64


@dataclass(slots=True)
class ReadResult(Generic[M]):
    """What a frame has brought: `messages` that are whole, each with the bytes of its body.

    `announced` are the bytes of a body that it has announced; `has_chunk` says whether it had a part of one.
    """

    messages: list[tuple[M, int]]
    has_chunk: bool
    announced: int = 0


class MessageReader(Generic[M]):
    """Reads what a `peer` says. A site must say `Hello` first, and once."""

    def __init__(self, peer: Literal["site", "server"], limits: Limits) -> None:
        self._allowed = FROM_SITE if peer == "site" else FROM_SERVER
        self._limits = limits
        self._layout = limits.layout
        self._greeted = peer == "server"
        self._hello_came = False
        self._body: _Body | None = None
        self._finished = 0

    @property
    def under_way(self) -> bool:
        """Whether chunks of a body are still to come."""
        return self._body is not None

    def feed(self, frame: bytes) -> ReadResult[M]:
        """What a frame brings. Raises `ProtocolError`."""
        envelopes, checksum, data = parse(frame, self._limits.envelope)
        read: ReadResult[M] = ReadResult([], has_chunk=data is not None)
        for envelope in envelopes:
            self._envelope(envelope, read)
        if data is not None:
            self._chunk(checksum, data, read)
        return read

    def drop(self) -> None:
        """Forget the body under way."""
        self._body = None

    def _envelope(self, envelope: pb.Envelope, read: ReadResult[M]) -> None:
        kind = kind_of(envelope, self._allowed)
        self._greeting(kind)
        told = told_layout(envelope, kind, self._limits)
        sizes = announced(envelope, kind, told or self._layout, self._limits)
        if not sizes:
            read.messages.append((self._message(envelope, kind, {}), 0))
            return
        if self._body is not None:
            raise ProtocolError(f"{kind} announces a body within the body of {self._body.kind}", "frame")
        if kind != "result":
            self._layout = told or self._layout
            if self._layout is None:
                raise ProtocolError(f"{kind} before the model's layout", "layout")
        bodies = allocate(sizes)
        total = sum(sizes.values())
        if not total:
            read.messages.append((self._message(envelope, kind, bodies), 0))
            return
        views = [_writable(vector) for vector in bodies.values() if len(vector)]
        self._body = _Body(envelope, kind, bodies, views, total, xxh3_64())
        read.announced = total

    def _greeting(self, kind: str) -> None:
        if kind == "hello" and self._hello_came:
            raise ProtocolError("a second hello", "handshake")
        if kind != "hello" and not self._greeted:
            raise ProtocolError(f"{kind} before hello", "handshake")
        self._hello_came = self._greeted = True

    def _message(self, envelope: pb.Envelope, kind: str, bodies: dict[int, Tensor | bytearray]) -> M:
        message: Message = decode(envelope, kind, self._layout, bodies)
        return cast(M, message)

    def _chunk(self, checksum: int, data: memoryview, read: ReadResult[M]) -> None:
        body = self._body
        if body is None:
            raise ProtocolError("a chunk that no message has announced", "frame")
        size = len(data)
        if size > body.left:
            raise ProtocolError(f"a chunk of {size} bytes where {body.left} are left", "frame")
        if size > MOST_CHUNK or (size < LEAST_CHUNK and size < body.left):
            raise ProtocolError(
                f"a chunk of {size} bytes: {LEAST_CHUNK} to {MOST_CHUNK} are allowed, fewer at the end",
                "frame",
            )
        body.checksum.update(data)
        if body.checksum.intdigest() != checksum:
            raise ProtocolError("a chunk whose checksum is wrong", "checksum")
        _fill(body.unfilled, data)
        body.left -= size
        if not body.left:
            self._body = None
            message = self._message(body.envelope, body.kind, body.bodies)
            read.messages.append((message, _total(body.envelope)))


def _total(envelope: pb.Envelope) -> int:
    return sum(part.bytes for part in envelope.parts)


def _writable(vector: Tensor | bytearray) -> memoryview:
    if isinstance(vector, bytearray):
        return memoryview(vector)
    return vector.numpy().view(np.uint8).data


def _fill(unfilled: list[memoryview], data: memoryview) -> None:
    """Write data to the first parts that are not full."""
    while len(data):
        room = unfilled[0]
        size = min(len(room), len(data))
        room[:size] = data[:size]
        data = data[size:]
        if size == len(room):
            unfilled.pop(0)
        else:
            unfilled[0] = room[size:]
