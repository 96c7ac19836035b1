"""Frames: an envelope, or a chunk of a body with the running checksum of that body.

A chunk is written and read here by hand, in the bytes that protobuf defines for it, because protobuf would
copy its data twice more. One that another encoder wrote in another order of fields is read by protobuf.
"""

from collections.abc import Iterator, Sequence

from google.protobuf.message import DecodeError
from xxhash import xxh3_64

from offbeat.net import wire_pb2 as pb
from offbeat.net.fields import Violation
from offbeat.net.limits import CHUNK

_CHUNK, _SUM, _DATA = 0x12, 0x09, 0x12  # protobuf's tags: Frame.chunk, Chunk.sum, Chunk.data


def envelope_frame(envelope: pb.Envelope) -> bytes:
    """The frame of an envelope."""
    return pb.Frame(envelope=envelope).SerializeToString()


def chunk_frame(total: int, pieces: Sequence[memoryview]) -> bytes:
    """The frame of a chunk whose data are these pieces; `total` is the checksum so far."""
    length = _varint(sum(len(piece) for piece in pieces))
    inner = b"".join((bytes((_SUM,)), total.to_bytes(8, "little"), bytes((_DATA,)), length))
    size = len(inner) + sum(len(piece) for piece in pieces)
    return b"".join((bytes((_CHUNK,)), _varint(size), inner, *pieces))


def chunk_frames(parts: Sequence[memoryview], size: int = CHUNK) -> Iterator[bytes]:
    """The frames of a body: its parts, one after the other, in chunks of `size` bytes but for the last."""
    checksum = xxh3_64()
    for pieces in _cut(parts, size):
        for piece in pieces:
            checksum.update(piece)
        yield chunk_frame(checksum.intdigest(), pieces)


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


def parse(frame: bytes) -> pb.Envelope | tuple[int, memoryview]:
    """An envelope, or a chunk's checksum and data. Raises `Violation`."""
    chunk = _plain_chunk(frame)
    if chunk is not None:
        return chunk
    try:
        parsed = pb.Frame.FromString(frame)
    except DecodeError:
        raise Violation("a frame that is not protobuf", "frame") from None
    kind = parsed.WhichOneof("kind")
    if kind == "envelope":
        return parsed.envelope
    if kind == "chunk":
        return parsed.chunk.sum, memoryview(parsed.chunk.data)
    raise Violation("a frame with neither an envelope nor a chunk", "frame")


def _plain_chunk(frame: bytes) -> tuple[int, memoryview] | None:
    """A chunk that is written as `chunk_frame` does, without a copy; none if it is anything else."""
    if not frame or frame[0] != _CHUNK:
        return None
    size, at = _read_varint(frame, 1)
    if at + size != len(frame) or size < 10 or frame[at] != _SUM or frame[at + 9] != _DATA:
        return None
    length, start = _read_varint(frame, at + 10)
    if start + length != len(frame):
        return None
    return int.from_bytes(frame[at + 1 : at + 9], "little"), memoryview(frame)[start:]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(frame: bytes, at: int) -> tuple[int, int]:
    """A number of at most five bytes, and where it ends; a number that no length can be if there is none."""
    number = 0
    for shift in range(0, 35, 7):
        if at >= len(frame):
            break
        octet = frame[at]
        at += 1
        number |= (octet & 0x7F) << shift
        if octet < 0x80:
            return number, at
    return len(frame) + 1, at
