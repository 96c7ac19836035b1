"""Frames in, messages out, without sockets or clocks.

The chunks of a body follow the envelope that announces it. Between them may be envelopes of messages without
a body, each a whole message. The distribution over frames makes no difference. In a frame the fields may come
in any order, and unknown ones are skipped. Whatever breaks the rules raises `ProtocolError`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Literal, TypeVar, cast

import torch
from google.protobuf.message import DecodeError
from torch import Tensor

from offbeat.net.messages import FromServer, FromSite, Message
from offbeat.net.transport import ProtocolError, Transfer, transfer
from offbeat.net.wire import wire_pb2 as pb
from offbeat.net.wire.bodies import BODIES, allocate, announced, read_layout
from offbeat.net.wire.fields import FROM_SERVER, FROM_SITE
from offbeat.net.wire.limits import LEAST_CHUNK, MOST_CHUNK, Limits
from offbeat.net.wire.serialization import deserialize, kind_of, read_fields
from offbeat.net.wire.unfinished import IncomingBody
from offbeat.net.wire.writer import (
    ACKNOWLEDGED_TAG,
    CHUNK_TAG,
    DATA_TAG,
    ENVELOPE_TAG,
    SUM_TAG,
    UNFINISHED_TAG,
)

UNFINISHED = 2
"""Unfinished bodies that a frame may tell of: each may be compared with a body that is sent."""
FIELDS = 64
"""Fields of a frame, at most: envelopes, its chunk, and fields of later versions."""
_WITH_MODEL = ("task_assignment", "model_response", "evaluation_request", "run_finished")
M = TypeVar("M", FromSite, FromServer)


@dataclass(slots=True)
class _UnderWay:
    """A body that has not come whole: `message` makes the message of it then."""

    envelope: pb.Envelope
    body: IncomingBody
    message: Callable[[], Message]


@dataclass(slots=True)
class ReadResult(Generic[M]):
    """The whole messages that a frame completes, each with the bytes of its body.

    `chunk` is the number of bytes of a body that are in it, `announced` a body that the frame announces and
    `whole` one that it completes. `unfinished` is what the peer has of bodies that were sent to it.
    `acknowledged` is how many bytes of bodies have come to the peer over the connection.
    """

    messages: list[tuple[M, int]]
    chunk: int = 0
    announced: IncomingBody | None = None
    whole: IncomingBody | None = None
    unfinished: list[pb.Body] = field(default_factory=list)
    acknowledged: int | None = None


class MessageReader(Generic[M]):
    """Reads the frames of a `peer`. A site must register first, and once, unless it is `registered`.

    Before the chunks of a body that goes on behind an offset, `resume` must fill in what came before.
    """

    def __init__(self, peer: Literal["site", "server"], limits: Limits, *, registered: bool = False) -> None:
        self._allowed = FROM_SITE if peer == "site" else FROM_SERVER
        self._limits, self._layout = limits, limits.layout
        self._checks_order = peer == "site" and not registered
        self._registered = False
        self._body: _UnderWay | None = None
        # What the envelope says of a body that goes on, until it was filled in.
        self._resumed: pb.Body | None = None

    @property
    def under_way(self) -> bool:
        """Whether chunks of a body are still to come."""
        return self._body is not None

    @property
    def body(self) -> IncomingBody | None:
        """The body that has not come whole; None means none."""
        return None if self._body is None else self._body.body

    @property
    def resumes(self) -> bool:
        """Whether a body was announced that goes on, and what came before is not filled in yet."""
        return self._resumed is not None

    @property
    def transfer(self) -> Transfer | None:
        """The message whose body has not come whole; None means none."""
        if self._body is None:
            return None
        envelope, body = self._body.envelope, self._body.body
        return transfer(getattr(envelope, body.kind), body.received, body.size, body.received)

    def feed(self, frame: bytes) -> ReadResult[M]:
        """Read a frame. Raises `ProtocolError`."""
        parsed = parse(frame, self._limits.envelope)
        read: ReadResult[M] = ReadResult([], 0 if parsed.data is None else len(parsed.data))
        read.unfinished, read.acknowledged = parsed.unfinished, parsed.acknowledged
        for envelope in parsed.envelopes:
            self._envelope(envelope, read)
        if parsed.data is not None:
            self._chunk(parsed.checksum, parsed.data, read)
        return read

    def resume(self, fill: Callable[[IncomingBody, pb.Body], None]) -> None:
        """Fill in what is here of the body that goes on, if it does. Raises `ProtocolError`."""
        if self._body is not None and self._resumed is not None:
            fill(self._body.body, self._resumed)
            self._resumed = None

    def drop(self) -> IncomingBody | None:
        """Give up a body that has not come whole."""
        under_way, self._body = self._body, None
        return None if under_way is None or self._resumed is not None else under_way.body

    def _envelope(self, envelope: pb.Envelope, read: ReadResult[M]) -> None:
        kind = kind_of(envelope, self._allowed)
        self._check_order(kind)
        content = getattr(envelope, kind)
        has_layout = kind in _WITH_MODEL and content.HasField("layout")
        layout = read_layout(content.layout, self._limits) if has_layout else None
        fields = read_fields(kind, content)
        if kind not in BODIES and not envelope.HasField("body"):
            read.messages.append((cast(M, deserialize(kind, fields, None, {})), 0))
            return
        parts = announced(kind, envelope.body.parts, layout or self._layout, self._limits)
        if parts and self._body is not None:
            raise ProtocolError(f"{kind} announces a body within the body of {self._body.body.kind}", "frame")
        if parts and kind not in ("update_submission", "unmask_share"):
            self._layout = layout or self._layout
            if self._layout is None:
                raise ProtocolError(f"{kind} before the model's layout", "layout")
        bodies = {kind: allocate(part) for kind, part in parts.items()}
        total = sum(part.bytes for part in parts.values())
        message = partial(deserialize, kind, fields, self._layout, bodies)
        if not total:
            read.messages.append((cast(M, message()), total))
            return
        views = [_writable(bodies[kind]) for kind, part in parts.items() if part.bytes]
        told = tuple((part.kind, part.type, part.bytes) for part in parts.values())
        read.announced = IncomingBody(kind, told, views)
        self._body = _UnderWay(envelope, read.announced, message)
        if envelope.body.offset:
            if envelope.body.offset >= total:
                raise ProtocolError(f"{kind} goes on behind its end", "size")
            self._resumed = envelope.body

    def _check_order(self, kind: str) -> None:
        if self._checks_order and (kind == "register") == self._registered:
            raise ProtocolError(
                "a second register" if self._registered else f"{kind} before register", "handshake"
            )
        self._registered = True

    def _chunk(self, checksum: int, data: memoryview, read: ReadResult[M]) -> None:
        if self._body is None or self._resumed is not None:
            raise ProtocolError("a chunk that no message has announced", "frame")
        body, size = self._body.body, len(data)
        left = body.size - body.received
        if size > left:
            raise ProtocolError(f"a chunk of {size} bytes where {left} are left", "frame")
        if size > MOST_CHUNK or (size < LEAST_CHUNK and size < left):
            raise ProtocolError(
                f"a chunk of {size} bytes: {LEAST_CHUNK} to {MOST_CHUNK} are allowed, fewer at the end",
                "frame",
            )
        body.checksum.update(data)
        if body.checksum.intdigest() != checksum:
            raise ProtocolError("a chunk whose checksum is wrong", "checksum")
        body.add(data)
        if size == left:
            message, self._body, read.whole = self._body.message, None, body
            read.messages.append((cast(M, message()), body.size))


def _writable(vector: Tensor | bytearray) -> memoryview:
    if isinstance(vector, bytearray):
        return memoryview(vector)
    # NumPy has no bfloat16.
    return vector.view(torch.uint8).numpy().data


# ---- frames ----


@dataclass(slots=True)
class ParsedFrame:
    """The envelopes of a frame, the checksum and data of its chunk, if it has one, and unfinished bodies."""

    envelopes: list[pb.Envelope] = field(default_factory=list)
    checksum: int = 0
    data: memoryview | None = None
    unfinished: list[pb.Body] = field(default_factory=list)
    acknowledged: int | None = None


def parse(frame: bytes, most: int) -> ParsedFrame:
    """The content of a frame, whose envelopes have at most `most` bytes each. Raises `ProtocolError`."""
    parsed, at, fields = ParsedFrame(), 0, 0
    try:
        while at < len(frame):
            fields += 1
            if fields > FIELDS:
                raise ProtocolError(f"a frame with more than {FIELDS} fields", "frame")
            tag, at, end = _next_field(frame, at)
            if tag == ACKNOWLEDGED_TAG:
                parsed.acknowledged, _ = _read_varint(frame, at, 10)
            if tag in (ENVELOPE_TAG, UNFINISHED_TAG) and end - at > most:
                raise ProtocolError(
                    f"a message of {end - at} bytes without its tensors: {most} are allowed", "size"
                )
            if tag == ENVELOPE_TAG:
                parsed.envelopes.append(pb.Envelope.FromString(frame[at:end]))
            elif tag == UNFINISHED_TAG:
                parsed.unfinished.append(pb.Body.FromString(frame[at:end]))
                if len(parsed.unfinished) > UNFINISHED:
                    raise ProtocolError(f"more than {UNFINISHED} unfinished bodies", "frame")
            elif tag == CHUNK_TAG:
                if parsed.data is not None:
                    raise ProtocolError("a frame with two chunks", "frame")
                parsed.checksum, parsed.data = _read_chunk(frame, at, end)
            at = end
    except DecodeError:
        raise _not_protobuf() from None
    if parsed.data is None and not parsed.envelopes and parsed.acknowledged is None:
        raise ProtocolError("a frame with neither an envelope nor a chunk", "frame")
    return parsed


def _next_field(frame: bytes, at: int) -> tuple[int, int, int]:
    """The tag of the field at an offset, and the offsets of its content's begin and end."""
    tag, at = _read_varint(frame, at)
    match tag & 7:
        case 0:
            _, end = _read_varint(frame, at, 10)
        case 1:
            end = at + 8
        case 2:
            size, at = _read_varint(frame, at)
            end = at + size
        case 5:
            end = at + 4
        case _:
            raise _not_protobuf()
    if end > len(frame):
        raise _not_protobuf()
    return tag, at, end


def _read_chunk(frame: bytes, at: int, end: int) -> tuple[int, memoryview]:
    """A chunk's checksum and data: the data is not copied if the chunk is encoded as `writer` does it."""
    if end - at > 10 and frame[at] == SUM_TAG and frame[at + 9] == DATA_TAG:
        size, start = _read_varint(frame, at + 10)
        if start + size == end:
            return int.from_bytes(frame[at + 1 : at + 9], "little"), memoryview(frame)[start:end]
    chunk = pb.Chunk.FromString(frame[at:end])
    return chunk.sum, memoryview(chunk.data)


def _read_varint(frame: bytes, at: int, most: int = 5) -> tuple[int, int]:
    """A number of at most this many bytes, and the offset of its end."""
    if at < len(frame) and (number := frame[at]) < 0x80:
        return number, at + 1
    number = 0
    for shift, octet in zip(range(0, 7 * most, 7), frame[at : at + most], strict=False):
        number |= (octet & 0x7F) << shift
        if octet < 0x80:
            return number, at + shift // 7 + 1
    raise _not_protobuf()


def _not_protobuf() -> ProtocolError:
    return ProtocolError("a frame that is not protobuf", "frame")
