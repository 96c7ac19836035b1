"""Noise of a release: the exact discrete Gaussian, and banded noise.

The sampler is that of Canonne, Kamath, Steinke, The Discrete Gaussian for Differential Privacy, 2020,
Algorithms 2 and 3. Each decision of probability p compares a 64-bit uniform number with p in float64; where
the two are within 2⁻⁴⁰, 128 more bits and 90-digit decimals decide. So rounding does not enter the
result. All words follow from 32 bytes, which no two releases share.

Banded noise takes later what it added earlier: e_r = z_r − Σ_{k<b} f_k e_{r−k}, z_r normal (Kalinin, Lampert,
Banded Square Root Matrix Factorization, 2024). It is floating-point noise, outside the theorem.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from hashlib import shake_256

import numpy as np
import numpy.typing as npt

from offbeat.core.errors import UsageError

NEAR = 2.0**-40
LEAST = 1
"""Least σ of the discrete Gaussian, in grid steps."""
_PIECE = 1 << 17  # candidates at a time
_DIGITS = 90

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]


def discrete_gaussian(sigma: int, size: int, seed: bytes, near: float = NEAR) -> Integers:
    """Draw independent discrete Gaussians N_ℤ(0, σ²).

    Args:
        sigma: σ, an integer of at least 1.
        size: How many.
        seed: 32 bytes.
        near: Distance from a probability below which a decision is made exactly; tests raise it.

    Raises:
        UsageError: σ is another number.
    """
    if not float(sigma).is_integer() or sigma < LEAST:
        raise UsageError(f"sigma = {sigma} is not allowed: give an integer of at least {LEAST}")
    stream, pieces, count = WordStream(seed), [np.empty(0, np.int64)], 0
    piece = min(_PIECE, max(64, 4 * size))
    with localcontext() as context:
        context.prec = _DIGITS
        while count < size:
            pieces.append(_candidates(sigma, piece, stream, near))
            count += len(pieces[-1])
    return np.concatenate(pieces)[:size]


def _candidates(sigma: int, count: int, stream: "WordStream", near: float) -> Integers:
    """The accepted ones of `count` candidates: discrete Laplace of scale t = σ + 1, then rejection."""
    t = sigma + 1
    u = stream.below(t, count)
    u = u[stream.exp_minus(u / t, lambda i: Decimal(int(u[i])) / t, near)]
    y = u + t * stream.geometric(len(u), near)
    negative = stream.bits(len(y))
    kept = ~(negative & (y == 0))
    y, negative = y[kept], negative[kept]
    distance = (y - (sigma - 1) - 1 / t) / sigma  # σ²/t = σ − 1 + 1/t

    def exact(i: int) -> Decimal:
        return (int(y[i]) - Decimal(sigma * sigma) / t) ** 2 / (2 * sigma * sigma)

    kept = stream.exp_minus(distance * distance / 2, exact, near)
    values: Integers = np.where(negative, -y, y)[kept]
    return values


class WordStream:
    """64-bit words of SHAKE-256, one counter a request.

    Args:
        seed: 32 bytes.
        label: What the words are for: streams of different labels are independent.
    """

    def __init__(self, seed: bytes, label: bytes = b"offbeat/1/noise") -> None:
        self._seed, self._label, self._counter = seed, label, 0

    def draw(self, count: int) -> Words:
        """Uniform words."""
        data = shake_256(self._label + self._seed + self._counter.to_bytes(8, "big")).digest(8 * count)
        self._counter += 1
        return np.frombuffer(data, "<u8")

    def seek(self, request: int) -> None:
        """Go to the words of a request, by its number from 0."""
        self._counter = request

    def below(self, bound: int, count: int) -> Integers:
        """About `count` uniform integers below a bound: words that would favour small ones are dropped."""
        words, limit = self.draw(count), 2**64 // bound * bound
        words = words if limit == 2**64 else words[words < np.uint64(limit)]
        return (words % np.uint64(bound)).astype(np.int64)

    def bits(self, count: int) -> Flags:
        data = np.frombuffer(self.draw(count // 64 + 1).tobytes(), np.uint8)
        return np.unpackbits(data)[:count].astype(bool)

    def exp_minus(self, a: Floats, exact: Callable[[int], Decimal], near: float) -> Flags:
        """True with probability exp(−a) for each a; `exact(i)` is a_i for the close ones."""
        words, p = self.draw(len(a)), np.exp(-a)
        uniform = words * 2.0**-64
        true: Flags = uniform < p
        for i in np.flatnonzero(np.abs(uniform - p) < near):
            true[i] = self._exactly(words[i]) < (-exact(int(i))).exp()
        return true

    def geometric(self, count: int, near: float) -> Integers:
        """V with P(V ≥ v) = e^−v."""
        words = self.draw(count)
        uniform, rising = words * 2.0**-64, np.exp(-np.arange(44.0, 0.0, -1.0))
        values = 44 - np.searchsorted(rising, uniform, side="right")
        above = np.clip(np.searchsorted(rising, uniform), 1, len(rising) - 1)
        distance = np.minimum(np.abs(uniform - rising[above]), np.abs(uniform - rising[above - 1]))
        for i in np.flatnonzero((distance < near) | (uniform < 2 * near)):
            exact, v = self._exactly(words[i]), 0
            while exact < Decimal(-(v + 1)).exp():
                v += 1
            values[i] = v
        return values.astype(np.int64)

    def uniform(self, count: int) -> Floats:
        """Uniform numbers in [0, 1), of 53 bits."""
        return np.ldexp((self.draw(count) >> np.uint64(11)).astype(np.float64), -53)

    def normal(self, count: int) -> Floats:
        """Standard normal numbers by Box-Muller, of uniform numbers of 53 bits."""
        half = (count + 1) // 2
        u, v = (self.draw(2 * half) >> np.uint64(11)).reshape(2, half)
        r, angle = np.sqrt(-2 * np.log((u + 0.5) * 2.0**-53)), v * (2 * np.pi * 2.0**-53)
        return np.concatenate([r * np.cos(angle), r * np.sin(angle)])[:count]

    def _exactly(self, word: np.uint64) -> Decimal:
        """The word with 128 more bits, in [0, 1)."""
        more = self.draw(2)
        return (Decimal(int(word)) * 2**128 + Decimal(int(more[0])) * 2**64 + int(more[1])) / Decimal(
            2
        ) ** 192


def banded_noise(sigma: int, past: Sequence[Floats], f: Sequence[float], size: int, seed: bytes) -> Floats:
    """e_r of noise in bands.

    Args:
        sigma: σ.
        past: e_{r−1}, e_{r−2}, …, as many as there are, at most b − 1.
        f: f_0 … f_{b−1}.
        size: Coordinates.
        seed: 32 bytes.
    """
    noise = sigma * WordStream(seed).normal(size)
    for factor, earlier in zip(f[1:], past, strict=False):
        noise -= factor * earlier
    return noise
