"""Frames: envelopes, a chunk of a body with the running checksum of that body, or both.

Frames are put together and taken apart here by hand, in the bytes that protobuf defines for them, because
protobuf would copy a chunk's data twice more. The fields of a frame may come in any order, and unknown ones
are skipped.
"""

from collections.abc import Iterator, Sequence

from google.protobuf.message import DecodeError
from xxhash import xxh3_64

from offbeat.net.wire import wire_pb2 as pb
from offbeat.net.wire.fields import ProtocolError
from offbeat.net.wire.limits import CHUNK

_ENVELOPE, _CHUNK = 0x0A, 0x12  # protobuf's tags: Frame.envelope, Frame.chunk,
_SUM, _DATA = 0x09, 0x12  # Chunk.sum, Chunk.data

FIELDS = 64
"""What a frame has at most: envelopes, its chunk, and what a later version may add."""

Frame = tuple[list[pb.Envelope], int, memoryview | None]
"""Envelopes; a chunk's checksum and data, if there is one."""


def frames(
    envelopes: Sequence[pb.Envelope], body: Sequence[memoryview], size: int = CHUNK
) -> Iterator[bytes]:
    """The frames of messages of which only the last has a body, in chunks of `size` bytes but for its end."""
    head = b"".join(_enclosed(envelope) for envelope in envelopes)
    checksum = xxh3_64()
    for pieces in _cut(body, size):
        for piece in pieces:
            checksum.update(piece)
        yield b"".join((head, _chunk_head(checksum.intdigest(), pieces), *pieces))
        head = b""
    if head:
        yield head


def _enclosed(envelope: pb.Envelope) -> bytes:
    said = envelope.SerializeToString()
    return b"".join((bytes((_ENVELOPE,)), _varint(len(said)), said))


def _chunk_head(checksum: int, pieces: Sequence[memoryview]) -> bytes:
    length = sum(len(piece) for piece in pieces)
    inner = b"".join((bytes((_SUM,)), checksum.to_bytes(8, "little"), bytes((_DATA,)), _varint(length)))
    return b"".join((bytes((_CHUNK,)), _varint(len(inner) + length), inner))


def _cut(parts: Sequence[memoryview], size: int) -> Iterator[list[memoryview]]:
    pieces: list[memoryview] = []
    room = size
    for part in parts:
        while len(part):
            pieces.append(part[:room])
            room -= len(pieces[-1])
            part = part[len(pieces[-1]) :]
            if not room:
                yield pieces
                pieces, room = [], size
    if pieces:
        yield pieces


def parse(frame: bytes, most: int) -> Frame:
    """What a frame holds, whose envelopes have at most so many bytes each. Raises `ProtocolError`."""
    envelopes: list[pb.Envelope] = []
    checksum, data, at, fields = 0, None, 0, 0
    try:
        while at < len(frame):
            fields += 1
            if fields > FIELDS:
                raise ProtocolError(f"a frame with more than {FIELDS} fields", "frame")
            tag, at, end = _field(frame, at)
            if tag == _ENVELOPE:
                if end - at > most:
                    said = f"a message of {end - at} bytes without its tensors: {most} are allowed"
                    raise ProtocolError(said, "size")
                envelopes.append(pb.Envelope.FromString(frame[at:end]))
            elif tag == _CHUNK:
                if data is not None:
                    raise ProtocolError("a frame with two chunks", "frame")
                checksum, data = _read_chunk(frame, at, end)
            at = end
    except DecodeError:
        raise _not_protobuf() from None
    if data is None and not envelopes:
        raise ProtocolError("a frame with neither an envelope nor a chunk", "frame")
    return envelopes, checksum, data


def _field(frame: bytes, at: int) -> tuple[int, int, int]:
    """The tag of the field at a place, where its content begins, and where that ends."""
    tag, at = _read_varint(frame, at)
    match tag & 7:
        case 0:
            _, end = _read_varint(frame, at)
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
    """A chunk's checksum and data: without a copy of the data if it is written as `frames` does."""
    if end - at > 10 and frame[at] == _SUM and frame[at + 9] == _DATA:
        size, start = _read_varint(frame, at + 10)
        if start + size == end:
            return int.from_bytes(frame[at + 1 : at + 9], "little"), memoryview(frame)[start:end]
    chunk = pb.Chunk.FromString(frame[at:end])
    return chunk.sum, memoryview(chunk.data)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(frame: bytes, at: int) -> tuple[int, int]:
    """A number of at most five bytes, and where it ends."""
    number = 0
    for shift, octet in zip(range(0, 35, 7), frame[at : at + 5], strict=False):
        number |= (octet & 0x7F) << shift
        if octet < 0x80:
            return number, at + shift // 7 + 1
    raise _not_protobuf()


def _not_protobuf() -> ProtocolError:
    return ProtocolError("a frame that is not protobuf", "frame")
