"""Bit packing of integers, many at a time, and a reader of untrusted payloads.

A section of a payload is a string of bits, most significant first, filled up with zeros to whole bytes.
"""

import numpy as np
import numpy.typing as npt

from offbeat.codec.validation import Floats, is_finite, pieces
from offbeat.core.codec import PayloadError


def pack(numbers: npt.NDArray[np.integer | np.bool_], width: int) -> bytes:
    """Pack each number, in [0, 2^width), into `width` bits."""
    parts = []
    # A piece is a multiple of 8 numbers, so only the last one can end within a byte.
    for piece in pieces(len(numbers)):
        part = numbers[piece]
        bits = np.empty((len(part), width), np.uint8)
        for column in range(width):
            bits[:, column] = (part >> (width - 1 - column)) & 1
        parts.append(np.packbits(bits).tobytes())
    return b"".join(parts)


def unpack(data: memoryview, count: int, width: int) -> npt.NDArray[np.int32]:
    """Unpack `count` numbers of `width` < 32 bits from the bytes of `pack`."""
    numbers = np.zeros(count, np.int32)
    octets = np.frombuffer(data, np.uint8)
    for piece in pieces(count):
        n = piece.stop - piece.start
        first = piece.start * width // 8
        here = octets[first : first + (n * width + 7) // 8]
        bits = np.unpackbits(here, count=n * width).reshape(n, width)
        part = numbers[piece]
        for column in range(width):
            part |= bits[:, column].astype(np.int32) << (width - 1 - column)
    return numbers


class Reader:
    """Reader of a payload; raises `PayloadError` for missing or spare bytes and for non-zero padding."""

    def __init__(self, payload: bytes) -> None:
        self._data = memoryview(payload)

    @property
    def left(self) -> int:
        """Bytes not yet read."""
        return len(self._data)

    def take(self, length: int) -> memoryview:
        """Read the next `length` bytes."""
        if length > self.left:
            raise PayloadError(f"the payload is too short: {length} more bytes expected, {self.left} left")
        taken, self._data = self._data[:length], self._data[length:]
        return taken

    def count(self, most: int) -> int:
        """Read a number of four bytes from 1 to `most`."""
        number = int.from_bytes(self.take(4), "little")
        if not 1 <= number <= most:
            raise PayloadError(f"the payload says {number} values: the vector has {most}")
        return number

    def norm(self) -> float:
        """Read a float32 that is finite and not negative."""
        norm = float(np.frombuffer(self.take(4), "<f4")[0])
        if not (np.isfinite(norm) and not np.signbit(norm)):
            raise PayloadError(f"the payload's norm is {norm}: it must be finite and not negative")
        return norm

    def floats(self, count: int) -> Floats:
        """Read `count` float32 that are finite."""
        values = np.frombuffer(self.take(4 * count), "<f4").astype(np.float32)
        if not is_finite(values):
            raise PayloadError("the payload has values that are not finite")
        return values

    def numbers(self, count: int, width: int) -> npt.NDArray[np.int32]:
        """Read a section of `count` numbers of `width` bits."""
        data = self.take((count * width + 7) // 8)
        spare = -count * width % 8
        if spare and data[-1] & ((1 << spare) - 1):
            raise PayloadError("the payload's spare bits are not zero")
        return unpack(data, count, width)

    def end(self) -> None:
        """Raise `PayloadError` unless every byte has been read."""
        if self.left:
            raise PayloadError(f"the payload is too long: {self.left} bytes left over")
