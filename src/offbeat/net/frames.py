"""Frames: an envelope, a chunk of a body with the running checksum of that body, or both.

Frames are put together and taken apart here by hand, in the bytes that protobuf defines for them, because
protobuf would copy a chunk's data twice more. What another encoder wrote in another order, protobuf reads.
"""

from collections.abc import Iterator, Sequence

from google.protobuf.message import DecodeError
from xxhash import xxh3_64

from offbeat.net import wire_pb2 as pb
from offbeat.net.fields import Violation
from offbeat.net.limits import CHUNK

_ENVELOPE, _CHUNK = 0x0A, 0x12  # protobuf's tags: Frame.envelope, Frame.chunk,
_SUM, _DATA = 0x09, 0x12  # Chunk.sum, Chunk.data

Frame = tuple[pb.Envelope | None, int, memoryview | None]
"""An envelope, if there is one; a chunk's checksum and data, if there is one."""


def frames(envelope: pb.Envelope, body: Sequence[memoryview], size: int = CHUNK) -> Iterator[bytes]:
    """The frames of a message: its envelope, with its body in chunks of `size` bytes but for the last."""
    said = envelope.SerializeToString()
    head = b"".join((bytes((_ENVELOPE,)), _varint(len(said)), said))
    checksum = xxh3_64()
    for pieces in _cut(body, size):
        for piece in pieces:
            checksum.update(piece)
        yield b"".join((head, _chunk_head(checksum.intdigest(), pieces), *pieces))
        head = b""
    if head:
        yield head


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


def parse(frame: bytes) -> Frame:
    """What a frame holds. Raises `Violation`."""
    try:
        return _plain(frame) or _any(frame)
    except DecodeError:
        raise Violation("a frame that is not protobuf", "frame") from None


def _any(frame: bytes) -> Frame:
    """A frame in whatever order it was written."""
    parsed = pb.Frame.FromString(frame)
    envelope = parsed.envelope if parsed.HasField("envelope") else None
    if parsed.HasField("chunk"):
        return envelope, parsed.chunk.sum, memoryview(parsed.chunk.data)
    if envelope is None:
        raise Violation("a frame with neither an envelope nor a chunk", "frame")
    return envelope, 0, None


def _plain(frame: bytes) -> Frame | None:
    """A frame that is written as `frames` does, its chunk without a copy; none if it is anything else."""
    at, envelope = 0, None
    if frame and frame[0] == _ENVELOPE:
        size, start = _read_varint(frame, 1)
        at = start + size
        if at > len(frame):
            return None
        envelope = pb.Envelope.FromString(frame[start:at])
        if at == len(frame):
            return envelope, 0, None
    if at + 11 > len(frame) or frame[at] != _CHUNK:
        return None
    size, at = _read_varint(frame, at + 1)
    if at + size != len(frame) or size < 11 or frame[at] != _SUM or frame[at + 9] != _DATA:
        return None
    length, start = _read_varint(frame, at + 10)
    if start + length != len(frame):
        return None
    return envelope, int.from_bytes(frame[at + 1 : at + 9], "little"), memoryview(frame)[start:]


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
