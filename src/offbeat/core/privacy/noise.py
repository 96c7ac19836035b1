"""Noise of a release: the exact discrete Gaussian, and banded noise.

The discrete Gaussian is Algorithm 3 of Canonne, Kamath, Steinke, The Discrete Gaussian for Differential
Privacy, 2020: rejection from a discrete Laplace distribution of scale t = σ + 1. The magnitude of a candidate
is ⌊−t ln U⌋, which inverts P(|Y| ≥ y) = e^(−y/t). Both decisions about a candidate, which integer it is and
whether it is accepted, are made in float64. Where a decision is within its error bound, 128 more bits and
90-digit decimals make it. So rounding does not enter the result. All words follow from 32 bytes, which no two
releases share.

Banded noise takes later what it added earlier: e_r = z_r − Σ_{k<b} f_k e_{r−k}, z_r normal (Kalinin, Lampert,
Banded Square Root Matrix Factorization, 2024). It is floating-point noise, outside the theorem.
"""

from collections.abc import Sequence
from decimal import Decimal, localcontext

import numpy as np
import numpy.typing as npt

from offbeat.core.errors import UsageError
from offbeat.core.privacy.words import Floats, Words, WordStream

LEAST = 1
"""Least σ of the discrete Gaussian, in grid steps."""
_LOGARITHM = 2.0**-46
"""Error bound of −ln U where U ≥ 2⁻¹⁶: half of it is a logarithm of at most 11.1 with an error of 4 units in
the last place, a quarter is the step of a word."""
_LEAST_WORD = np.uint64(1 << 48)  # of U = 2⁻¹⁶
_ACCEPTANCE = 1.0
"""Error bound of 2³¹ p in an acceptance: twice what a number of 31 bits leaves open. The error of p in
float64 is below 2⁻⁴⁰."""
_PIECE = 1 << 16  # candidates at a time
_DIGITS = 90

Integers = npt.NDArray[np.int64]
Halves = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]


def discrete_gaussian(sigma: int, size: int, seed: bytes, margin: float = 1.0) -> Integers:
    """Draw independent discrete Gaussians N_ℤ(0, σ²).

    Args:
        sigma: σ, an integer of at least 1.
        size: How many.
        seed: 32 bytes.
        margin: Factor of the error bounds within which decisions are made exactly, at least 1. A larger one
            takes longer and gives the same values.

    Raises:
        UsageError: σ is another number.
    """
    if not float(sigma).is_integer() or sigma < LEAST:
        raise UsageError(f"sigma = {sigma} is not allowed: give an integer of at least {LEAST}")
    stream, pieces, count = WordStream(seed, b"offbeat/2/noise"), [np.empty(0, np.int64)], 0
    piece = min(_PIECE, max(64, 2 * size))
    with localcontext() as context:
        context.prec = _DIGITS
        while count < size:
            more = _MoreBits(seed, (len(pieces) - 1) * piece)
            words, halves = stream.draw(piece), stream.draw(piece // 2).view("<u4")
            y = _magnitudes(sigma + 1, words, more, margin)
            negative = (halves & np.uint32(1)).astype(bool)
            kept = _accepted(sigma, y, halves >> np.uint32(1), more, margin)
            kept &= ~(negative & (y == 0))
            pieces.append(np.where(negative, -y, y)[kept].astype(np.int64))
            count += len(pieces[-1])
    return np.concatenate(pieces)[:size]


def _magnitudes(t: int, words: Words, more: "_MoreBits", margin: float) -> Floats:
    """⌊−t ln U⌋ of each word, as whole numbers in float64."""
    value = words.astype(np.float64)
    value += 0.5
    value *= 2.0**-64
    np.log(value, out=value)
    value *= -t
    y: Floats = np.floor(value)
    value -= y
    value -= 0.5
    unsure = np.abs(value, out=value) >= 0.5 - t * margin * _LOGARITHM
    unsure |= words < _LEAST_WORD
    for i in np.flatnonzero(unsure):
        y[i] = int(-t * more.uniform(int(i), int(words[i]), 64, 0).ln())
    return y


def _accepted(sigma: int, y: Floats, numbers: Halves, more: "_MoreBits", margin: float) -> Flags:
    """True with probability p = exp(−(y − σ²/t)² / 2σ²) for each magnitude, by a number of 31 bits."""
    t = sigma + 1
    p = y - (sigma - 1 + 1 / t)  # σ²/t
    p /= sigma
    p *= p
    p *= -0.5
    np.exp(p, out=p)
    p *= 2.0**31
    p -= numbers
    p -= 0.5
    accepted: Flags = p > 0
    for i in np.flatnonzero(np.abs(p, out=p) <= margin * _ACCEPTANCE):
        exponent = (int(y[i]) - Decimal(sigma * sigma) / t) ** 2 / (2 * sigma * sigma)
        accepted[i] = more.uniform(int(i), int(numbers[i]), 31, 1) < (-exponent).exp()
    return accepted


class _MoreBits:
    """128 more bits of the numbers of each candidate.

    Args:
        seed: 32 bytes.
        first: Number of the first candidate of the piece.
    """

    def __init__(self, seed: bytes, first: int) -> None:
        self._stream, self._first = WordStream(seed, b"offbeat/2/noise-more"), first

    def uniform(self, candidate: int, number: int, bits: int, decision: int) -> Decimal:
        """A uniform number in (0, 1).

        Args:
            candidate: The candidate, counted from the first of the piece.
            number: The first bits.
            bits: How many those are.
            decision: 0 for the magnitude, 1 for the acceptance.
        """
        self._stream.seek(2 * (self._first + candidate) + decision)
        high, low = (int(word) for word in self._stream.draw(2))
        return (((number << 64 | high) << 64 | low) + Decimal("0.5")) / Decimal(2) ** (bits + 128)


def banded_noise(sigma: int, past: Sequence[Floats], f: Sequence[float], size: int, seed: bytes) -> Floats:
    """e_r of noise in bands.

    Args:
        sigma: σ.
        past: e_{r−1}, e_{r−2}, …, as many as there are, at most b − 1.
        f: f_0 … f_{b−1}.
        size: Coordinates.
        seed: 32 bytes.
    """
    noise = sigma * WordStream(seed, b"offbeat/1/noise").normal(size)
    for factor, earlier in zip(f[1:], past, strict=False):
        noise -= factor * earlier
    return noise
