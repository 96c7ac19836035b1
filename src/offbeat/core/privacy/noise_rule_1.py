"""The first rule of noise, which runs go on by whose record has no `noise_rule`.

It is Algorithms 2 and 3 of Canonne, Kamath, Steinke, The Discrete Gaussian for Differential Privacy, 2020.
Each decision of probability p compares a 64-bit uniform number with p in float64; where the two are within
2⁻⁴⁰, 128 more bits and 90-digit decimals decide. So rounding does not enter the result.
"""

from collections.abc import Callable
from decimal import Decimal, localcontext

import numpy as np
import numpy.typing as npt

from offbeat.core.privacy.words import Floats, WordStream

NEAR = 2.0**-40
_PIECE = 1 << 17  # candidates at a time
_DIGITS = 90

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def discrete_gaussian_rule_1(sigma: int, size: int, seed: bytes, near: float = NEAR) -> Integers:
    """Draw independent discrete Gaussians N_ℤ(0, σ²); arguments as of `noise.discrete_gaussian`.

    `near` is the distance from a probability below which a decision is made exactly; tests raise it.
    """
    stream, pieces, count = _Decisions(WordStream(seed, b"offbeat/1/noise")), [np.empty(0, np.int64)], 0
    piece = min(_PIECE, max(64, 4 * size))
    with localcontext() as context:
        context.prec = _DIGITS
        while count < size:
            pieces.append(_candidates(sigma, piece, stream, near))
            count += len(pieces[-1])
    return np.concatenate(pieces)[:size]


def _candidates(sigma: int, count: int, stream: "_Decisions", near: float) -> Integers:
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


class _Decisions:
    """Random decisions of the sampler.

    Args:
        words: Where their words come from.
    """

    def __init__(self, words: WordStream) -> None:
        self._words = words

    def below(self, bound: int, count: int) -> Integers:
        """About `count` uniform integers below a bound: words that would favour small ones are dropped."""
        words, limit = self._words.draw(count), 2**64 // bound * bound
        words = words if limit == 2**64 else words[words < np.uint64(limit)]
        return (words % np.uint64(bound)).astype(np.int64)

    def bits(self, count: int) -> Flags:
        data = np.frombuffer(self._words.draw(count // 64 + 1).tobytes(), np.uint8)
        return np.unpackbits(data)[:count].astype(bool)

    def exp_minus(self, a: Floats, exact: Callable[[int], Decimal], near: float) -> Flags:
        """True with probability exp(−a) for each a; `exact(i)` is a_i for the close ones."""
        words, p = self._words.draw(len(a)), np.exp(-a)
        uniform = words * 2.0**-64
        true: Flags = uniform < p
        for i in np.flatnonzero(np.abs(uniform - p) < near):
            true[i] = self._exactly(words[i]) < (-exact(int(i))).exp()
        return true

    def geometric(self, count: int, near: float) -> Integers:
        """V with P(V ≥ v) = e^−v."""
        words = self._words.draw(count)
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

    def _exactly(self, word: np.uint64) -> Decimal:
        """The word with 128 more bits, in [0, 1)."""
        more = self._words.draw(2)
        return (Decimal(int(word)) * 2**128 + Decimal(int(more[0])) * 2**64 + int(more[1])) / Decimal(
            2
        ) ** 192
