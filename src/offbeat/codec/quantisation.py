"""The ν-level random quantiser of QSGD (Alistarh et al. 2017), as Hu, Chen and Larsson use it.

    Q(u_i) = ‖u‖₂ sign(u_i) Z ,    Z = (z + 1)/ν with probability ν|u_i|/‖u‖₂ − z, else z/ν ,
    z = ⌊ν |u_i| / ‖u‖₂⌋ .

E[Q(u)] = u, and E‖Q(u) − u‖² ≤ r ‖u‖²/(4ν²) for r values: each Z has a variance of at most 1/(4ν²). It is at
most √r ‖u‖²/ν, too, which is less for few levels (Alistarh et al., Lemma 3.1). A value is
sent as its signed level sign(u_i) ν Z, an integer from −ν to ν. A zero vector gives zeros.

The norm is rounded to float32 before the levels are drawn, so the expectation holds for the norm sent. The
draw is z + [U < x − z] = ⌊x + U⌋ with x = ν |u_i| / ‖u‖₂ and U uniform in [0, 1).

In a payload the norm comes first, then ⌈log2(ν + 1)⌉ + 1 bits for each signed level: a sign and a level from
0 to ν.
"""

from math import sqrt

import numpy as np
import numpy.typing as npt

from offbeat.codec.bitpacking import Reader, pack
from offbeat.codec.budget import value_bits
from offbeat.codec.validation import Floats, pieces
from offbeat.core.codec import PayloadError
from offbeat.core.errors import UsageError

Levels = npt.NDArray[np.signedinteger]
MOST_LEVELS = 2**15 - 1
LARGEST = float(np.finfo(np.float32).max)


def variance_bound(r: int, levels: int) -> float:
    """ω with E‖Q(u) − u‖² ≤ ω ‖u‖² for r values."""
    return min(r / (4 * levels**2), sqrt(r) / levels)


def norm_of(values: Floats) -> float:
    """‖u‖₂, rounded to float32; never less than any |u_i|."""
    squares = sum(float(np.sum(np.square(values[p], dtype=np.float64))) for p in pieces(len(values)))
    norm = float(np.sqrt(squares))
    if norm > LARGEST:
        raise UsageError(f"a vector of norm {norm:.4g} cannot be encoded: the norm is sent as float32")
    return float(np.float32(norm))


def quantise(values: Floats, levels: int, rng: np.random.Generator) -> tuple[float, Levels]:
    """Quantise values: their norm and signed levels. Draws one number a value, none for a zero vector."""
    norm = norm_of(values)
    signed = narrow(np.zeros(len(values), np.int8), levels)
    if norm == 0.0:
        return norm, signed
    for piece in pieces(len(values)):
        x = values[piece].astype(np.float64)
        x *= levels / norm
        drawn = np.floor(np.abs(x) + rng.random(len(x)))
        # x + U may round up to ν + 1.
        signed[piece] = np.copysign(np.minimum(drawn, levels), x)
    return norm, signed


def narrow(signed: Levels, levels: int) -> Levels:
    """Cast signed levels from −ν to ν to the shortest integer type."""
    return signed.astype(np.int8 if levels < 2**7 else np.int16, copy=False)


def dequantise(norm: float, signed: Levels, levels: int, scale: float = 1.0) -> Floats:
    """Dequantise levels: scale · ‖u‖₂ · level / ν as float32."""
    values = np.empty(len(signed), np.float32)
    step = scale * norm / levels
    for piece in pieces(len(signed)):
        values[piece] = step * signed[piece].astype(np.float64)
    return values


def pack_norm(norm: float) -> bytes:
    """Pack a norm as little-endian float32."""
    return np.array(norm, "<f4").tobytes()


def pack_levels(norm: float, signed: Levels, levels: int) -> bytes:
    """Pack the norm and the signed levels."""
    width = value_bits(levels)
    codes = np.abs(signed).astype(np.uint16)
    codes[signed < 0] += 1 << (width - 1)
    return pack_norm(norm) + pack(codes, width)


def read_levels(reader: Reader, count: int, levels: int) -> tuple[float, Levels]:
    """Read the norm and `count` signed levels; refuses levels above ν and zeros with a sign."""
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
    """Apply signs to levels; raises `PayloadError` for other levels than zero with a norm of zero."""
    if norm == 0.0 and bool(sizes.any()):
        raise PayloadError("the payload has levels that are not zero with a norm of zero")
    sizes[negative] *= -1
    return sizes
