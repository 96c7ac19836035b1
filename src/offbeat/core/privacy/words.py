"""Uniform 64-bit words of SHAKE-256, and the numbers that are made of them."""

from hashlib import shake_256

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]


class WordStream:
    """64-bit words of SHAKE-256, one counter a request.

    Args:
        seed: 32 bytes.
        label: What the words are for: streams of different labels are independent.
    """

    def __init__(self, seed: bytes, label: bytes) -> None:
        self._seed, self._label, self._counter = seed, label, 0

    def draw(self, count: int) -> Words:
        """Uniform words."""
        data = shake_256(self._label + self._seed + self._counter.to_bytes(8, "big")).digest(8 * count)
        self._counter += 1
        return np.frombuffer(data, "<u8")

    def seek(self, request: int) -> None:
        """Go to the words of a request, by its number from 0."""
        self._counter = request

    def uniform(self, count: int) -> Floats:
        """Uniform numbers in [0, 1), of 53 bits."""
        return np.ldexp((self.draw(count) >> np.uint64(11)).astype(np.float64), -53)

    def normal(self, count: int) -> Floats:
        """Standard normal numbers by Box-Muller, of uniform numbers of 53 bits."""
        half = (count + 1) // 2
        u, v = (self.draw(2 * half) >> np.uint64(11)).reshape(2, half)
        r, angle = np.sqrt(-2 * np.log((u + 0.5) * 2.0**-53)), v * (2 * np.pi * 2.0**-53)
        return np.concatenate([r * np.cos(angle), r * np.sin(angle)])[:count]
