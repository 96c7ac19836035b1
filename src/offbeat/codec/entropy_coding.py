"""Entropy coding: a Golomb code of the indices of r of d coordinates, close to log2 C(d, r) bits.

Of the coordinates and those left out, the fewer are coded, n ≤ d/2 of them. If each is in with probability
p = n/d, the gaps between them are geometric, and the best code that gives each gap whole bits is Golomb's
with m ≈ ln 2 / p: a gap g is ⌊g/m⌋ in unary and g mod m in truncated binary. For m = 1 this is the bitmap.

Here the parts of all gaps come one after the other, so that none has to be read before the next: a section
of the remainders' leading bits, one of the last bit of those that have one more, and one of the unary
numbers, q zeros and a one each. r and d are known to both sides, so m is too: it is computed with integers,
and so the same on every machine. For p near 0.38 neither m = 1 nor m = 2 fits well: the code takes 4.4 %
more than log2 C(d, r) there, and less elsewhere. No set takes more than n (1 + ⌈log2 m⌉) + (d − n)/m bits and
three part-filled bytes, also where the indices are not spread evenly.

`encode_gamma` is Elias' gamma code for many numbers at once, where all are at most a known one.

A number x takes ⌊log2 x⌋ + 1 bits in unary for its length, and ⌊log2 x⌋ bits after its leading one; the
longest numbers need no end of the unary part. The first bits of all numbers come first, then the second bits
of those that have one, and so on: the lengths are the code's, but nothing has to be read in order.
"""

import numpy as np
import numpy.typing as npt

from offbeat.codec.bitpacking import Reader, pack
from offbeat.core.codec import PayloadError
from offbeat.core.types import Indices


def encode_indices(indices: Indices | None, size: int) -> bytes:
    """Encode ascending indices below `size`; empty for all of them (None) and for none."""
    if indices is None:
        return b""
    if 2 * len(indices) > size:
        indices = _others(indices, size)
    n = len(indices)
    if n == 0:
        return b""
    m = _parameter(n, size)
    width, short = _binary(m)
    quotients, remainders = np.divmod(np.diff(indices, prepend=-1) - 1, m)
    longer = remainders >= short
    remainders[longer] += short
    extra = (remainders & 1)[longer] if m > 1 else remainders[:0]
    remainders[longer] >>= 1
    ends = np.cumsum(quotients + 1)
    unary = np.zeros(int(ends[-1]), np.uint8)
    unary[ends - 1] = 1
    return pack(remainders, width) + pack(extra, 1) + np.packbits(unary).tobytes()


def decode_indices(reader: Reader, count: int, size: int) -> Indices | None:
    """Decode `count` ascending indices below `size` from the rest of the payload; None means all."""
    n = min(count, size - count)
    if n == 0:
        reader.end()
        return None if count else np.empty(0, np.int64)
    m = _parameter(n, size)
    width, short = _binary(m)
    gaps = reader.numbers(n, width).astype(np.int64)
    if m > 1:
        longer = gaps >= short
        extra = reader.numbers(int(np.count_nonzero(longer)), 1)
        gaps[longer] = 2 * gaps[longer] + extra - short
    gaps += m * _unary(reader, n, most=n + (size - n) // m)
    gaps += 1
    indices: Indices = np.cumsum(gaps) - 1
    if indices[-1] >= size:
        raise PayloadError(f"the payload has index {indices[-1]}: the vector has {size} values")
    return indices if n == count else _others(indices, size)


def _unary(reader: Reader, count: int, most: int) -> Indices:
    """Decode `count` unary numbers, together at most `most` bits, from the rest of the payload."""
    length = reader.left
    if length > (most + 7) // 8:
        raise PayloadError(f"the payload is too long: {length} bytes left for at most {most} bits")
    ends = np.flatnonzero(np.unpackbits(np.frombuffer(reader.take(length), np.uint8)))
    if len(ends) != count or length != ends[-1] // 8 + 1:
        raise PayloadError(f"the payload's {length} last bytes are not {count} gaps between indices")
    return np.diff(ends, prepend=-1) - 1


def _parameter(n: int, size: int) -> int:
    """Golomb parameter m = ⌈−log(2 − p) / log(1 − p)⌉ with p = n/size (Gallager and Van Voorhis 1975).

    Computed from its expansion at small p, ln 2 / p − (1 + ln 2)/2, to 1 % of a unit.
    """
    return max(1, -(-(69_315 * size - 84_657 * n) // (100_000 * n)))


def _binary(m: int) -> tuple[int, int]:
    """Truncated binary of numbers below m: the bits of the short codes, and the number of short codes."""
    return max(0, (m - 1).bit_length() - 1), (1 << (m - 1).bit_length()) - m


def _others(indices: Indices, size: int) -> Indices:
    """Complement of the indices."""
    out: npt.NDArray[np.bool_] = np.ones(size, np.bool_)
    out[indices] = False
    return np.flatnonzero(out)


Numbers = npt.NDArray[np.int32]


def gamma_bits(numbers: Numbers, most: int) -> int:
    """Number of bits of the code of numbers from 1 to `most`."""
    lengths = _lengths(numbers)
    unary = np.minimum(lengths + 1, most.bit_length() - 1)
    return int(unary.sum(dtype=np.int64) + lengths.sum(dtype=np.int64))


def encode_gamma(numbers: Numbers, most: int) -> bytes:
    """Encode numbers from 1 to `most`."""
    lengths = _lengths(numbers)
    longest = most.bit_length() - 1
    unary = [pack(lengths[lengths >= j] > j, 1) for j in range(longest)]
    binary = [pack((numbers[lengths > j] >> j) & 1, 1) for j in range(longest)]
    return b"".join(unary + binary)


def decode_gamma(reader: Reader, count: int, most: int) -> Numbers:
    """Decode `count` numbers of `encode_gamma`; they may exceed `most`, but are below 2^bits(most)."""
    longest = most.bit_length() - 1
    lengths = np.zeros(count, np.int32)
    going = np.arange(count)
    for _ in range(longest):
        going = going[reader.numbers(len(going), 1) == 1]
        lengths[going] += 1
    numbers: Numbers = np.left_shift(1, lengths, dtype=np.int32)
    for j in range(longest):
        here = lengths > j
        numbers[here] |= reader.numbers(int(np.count_nonzero(here)), 1) << j
    return numbers


def _lengths(numbers: Numbers) -> Numbers:
    """⌊log2 x⌋."""
    return np.frexp(numbers.astype(np.float64))[1] - 1
