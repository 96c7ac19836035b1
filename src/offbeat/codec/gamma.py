"""Elias' gamma code for many numbers at once, where all are at most a known one.

A number x takes ⌊log2 x⌋ + 1 bits in unary, to say how long it is, and ⌊log2 x⌋ bits after its leading one;
the longest numbers need no end of the unary part. The first bits of all numbers come first, then the second
bits of those that have one, and so on: the lengths are the code's, but nothing has to be read in order.
"""

import numpy as np
import numpy.typing as npt

from offbeat.codec.bitpacking import Reader, pack

Numbers = npt.NDArray[np.int32]


def gamma_bits(numbers: Numbers, most: int) -> int:
    """The bits of the numbers, which are from 1 to `most`."""
    lengths = _lengths(numbers)
    unary = np.minimum(lengths + 1, most.bit_length() - 1)
    return int(unary.sum(dtype=np.int64) + lengths.sum(dtype=np.int64))


def encode_gamma(numbers: Numbers, most: int) -> bytes:
    """The numbers, which are from 1 to `most`, as bytes."""
    lengths = _lengths(numbers)
    longest = most.bit_length() - 1
    unary = [pack(lengths[lengths >= j] > j, 1) for j in range(longest)]
    binary = [pack((numbers[lengths > j] >> j) & 1, 1) for j in range(longest)]
    return b"".join(unary + binary)


def decode_gamma(reader: Reader, count: int, most: int) -> Numbers:
    """`count` numbers that `encode_gamma` wrote; they may be above `most`, but are below 2^bits(most)."""
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
