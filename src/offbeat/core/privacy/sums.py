"""The integer grid of the sums: clip, stochastic rounding, dither, integer weights; all exact in int64.

An update Δ of norm at most C becomes y' = ⌊Δ/γ + U⌋, U uniform in (0, 1), and y = y' + D, where D is a
rounded normal of standard deviation σ_D if sums are secure and weights unequal. Weights and sums are
integers: without D, S = Σ c̃_i y_i modulo one weight would tell of the others' updates.
Whatever the updates, |S| < 2³¹.

Uniform and normal numbers follow from 32 bytes an update, by SHAKE-256, 65,536 coordinates at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import shake_256
from math import ceil, isfinite, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from offbeat.core.privacy.refusals import Refusal

CHUNK = 1 << 16  # coordinates
_TOP = 2**31 - 1
_ATTEMPTS = 10
_TAIL = 7.0  # standard deviations

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Update = npt.NDArray[np.float32]


def largest_weight(bits: int) -> int:
    """q, the integer weight of an update of importance 1."""
    return max(1, (1 << bits) - 1)


def integer_weight(importance: float, bits: int) -> int:
    """c̃ of an importance in (0, 1]: 1 … q; 1 where weights have no bits."""
    return max(1, round(largest_weight(bits) * importance))


@dataclass(frozen=True)
class SumGrid:
    """The grid of one run.

    Attributes:
        most: M, most updates of a release.
        bits: w, bits of a weight.
        clip: C, L2 norm to which an update is clipped.
        parameters: L, coordinates.
        dithered: Whether a dither is added, where weights have bits.

    Raises:
        UsageError: The grid is too coarse.
    """

    most: int
    bits: int
    clip: float
    parameters: int
    dithered: bool

    def __post_init__(self) -> None:
        """Refuse a grid on which rounding would be felt."""
        needed = 2 ** (self.bits + 3)
        fits = self.weight * (1 + self.largest_dither) < _TOP
        steps = self.clip / self.step / sqrt(max(1, self.parameters)) if fits else 0.0
        if steps < needed:
            raise Refusal.COARSE_GRID.error(
                clip=self.clip, steps=steps, most=self.most, bits=self.bits, needed=needed
            )

    @property
    def q(self) -> int:
        """q, the largest weight of an update."""
        return largest_weight(self.bits)

    @property
    def weight(self) -> int:
        """W = M q, the largest weight of a release."""
        return self.most * self.q

    @property
    def dither(self) -> float:
        """σ_D, in grid steps."""
        return 1.5 * 2**self.bits if self.dithered and self.bits else 0.0

    @property
    def largest_dither(self) -> int:
        """B, in grid steps."""
        return ceil(7 * self.dither)

    @cached_property
    def step(self) -> float:
        """γ, in units of the parameters."""
        return self.clip * self.weight / (_TOP - self.weight * (1 + self.largest_dither))

    @cached_property
    def bound(self) -> float:
        """Y, bound on the norm of a rounded update without its dither, in grid steps."""
        c = self.clip / self.step
        return sqrt(c * c + self.parameters / 4 + c + sqrt(self.parameters) / 2)

    def bound_of_sum(self, weights: Sequence[int], sigma: float = 0.0) -> float:
        """Bound on the norm of S = Σ c̃_i y_i, with noise of standard deviation σ in it, in grid steps.

        A normal vector of standard deviation σ is longer than σ (√L + 7) with probability below 3e-11, for
        every L: its length is a function with Lipschitz constant σ of normal numbers.
        """
        root = sqrt(self.parameters)
        dither = self.dither * (root + _TAIL) + root / 2 if self.dither else 0.0
        return sum(weights) * (self.bound + dither) + sigma * (root + _TAIL)

    def round(self, delta: Update, seed: bytes, factor: float = 1.0) -> Integers:
        """Clip, round and dither an update.

        Args:
            delta: Δ, float32 [L]. One that is not finite becomes zeros.
            seed: 32 bytes from which the randomness of this update follows.
            factor: f; it is f Δ that is clipped.

        Returns:
            y in grid steps, |y| ≤ C/γ + 1 + B.
        """
        norm = abs(factor) * _norm(delta)
        if not isfinite(norm):
            delta, norm = np.zeros_like(delta), 0.0
        scale = min(1.0, self.clip / norm) * factor / self.step if norm else 0.0
        y = next(
            (y for k in range(_ATTEMPTS) if (y := self._rounded(delta, scale, seed, k)) is not None), None
        )
        if y is None:
            y = np.concatenate([np.trunc(part * scale).astype(np.int64) for part in _parts(delta)])
        if self.dither:
            for n, part in enumerate(_parts(y)):
                part += np.rint(self.dither * _normals(seed, n, len(part))).astype(np.int64)
        return y

    def _rounded(self, delta: Update, scale: float, seed: bytes, attempt: int) -> Integers | None:
        """y' of one attempt; None where its norm is above Y."""
        y, squared = np.empty(len(delta), np.int64), 0.0
        for n, (part, out) in enumerate(zip(_parts(delta), _parts(y), strict=True)):
            value = _uniforms(seed, (attempt << 32) + n, len(part))
            value += part * np.float64(scale)
            np.floor(value, out=value)
            squared += float(value @ value)
            out[:] = value
        return y if squared <= self.bound**2 else None


def _parts(vector: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """A vector chunk by chunk, as views; one empty chunk for one without elements."""
    for start in range(0, max(1, len(vector)), CHUNK):
        yield vector[start : start + CHUNK]


def _norm(delta: Update) -> float:
    """‖Δ‖ in float64."""
    return sqrt(sum(float(own @ own) for own in (part.astype(np.float64) for part in _parts(delta))))


def _words(label: bytes, seed: bytes, chunk: int, count: int) -> npt.NDArray[np.uint32]:
    data = shake_256(label + seed + chunk.to_bytes(8, "big")).digest(4 * count)
    return np.frombuffer(data, "<u4")


def _uniforms(seed: bytes, chunk: int, count: int) -> Floats:
    """U in (0, 1)."""
    found = _words(b"offbeat/1/round", seed, chunk, count).astype(np.float64)
    found += 0.5
    found *= 2.0**-32
    return found


def _normals(seed: bytes, chunk: int, count: int) -> Floats:
    """Standard normal numbers by Box-Muller; none is above 6.77 in magnitude."""
    half = (count + 1) // 2
    u, v = _words(b"offbeat/1/dither", seed, chunk, 2 * half).reshape(2, half)
    r, angle = np.sqrt(-2 * np.log((u + 0.5) * 2.0**-32)), v * (2 * np.pi * 2.0**-32)
    return np.concatenate([r * np.cos(angle), r * np.sin(angle)])[:count]
