"""Signed levels in a payload: the norm, then ⌈log2(ν + 1)⌉ + 1 bits each, a sign and a level from 0 to ν."""

import numpy as np
import numpy.typing as npt

from offbeat.codec.bitpacking import Reader, pack
from offbeat.codec.budget import value_bits
from offbeat.codec.quantisation import Levels, narrow
from offbeat.core.codec import PayloadError


def pack_norm(norm: float) -> bytes:
    """A norm as little-endian float32."""
    return np.array(norm, "<f4").tobytes()


def pack_levels(norm: float, signed: Levels, levels: int) -> bytes:
    """The norm and the signed levels."""
    width = value_bits(levels)
    codes = np.abs(signed).astype(np.uint16)
    codes[signed < 0] += 1 << (width - 1)
    return pack_norm(norm) + pack(codes, width)


def read_levels(reader: Reader, count: int, levels: int) -> tuple[float, Levels]:
    """The norm and `count` signed levels, each in its one form."""
    norm = reader.norm()
    width = value_bits(levels)
    codes = reader.numbers(count, width)
    negative = codes >> (width - 1) == 1
    codes &= (1 << (width - 1)) - 1
    if bool((codes > levels).any()):
        raise PayloadError(f"the payload has level {codes.max()}: there are {levels}")
    if bool((codes[negative] == 0).any()):
        raise PayloadError("the payload has a zero with a sign")
    return norm, signed_levels(norm, narrow(codes, levels), negative)


def signed_levels(norm: float, sizes: Levels, negative: npt.NDArray[np.bool_]) -> Levels:
    """The levels with their signs; only zeros may go with a norm of zero."""
    if norm == 0.0 and bool(sizes.any()):
        raise PayloadError("the payload has levels that are not zero with a norm of zero")
    sizes[negative] *= -1
    return sizes
