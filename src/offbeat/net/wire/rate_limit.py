"""How fast and how much: a bucket that refills with time, and a pool of memory that links share."""

import asyncio
from collections.abc import Callable
from time import monotonic

BURST = 10.0
"""Seconds' worth that may come at once."""


class TokenBucket:
    """Lets `rate` units a second through, and at first ten seconds' worth at once."""

    def __init__(self, rate: float, clock: Callable[[], float] = monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._level = self._full = rate * BURST
        self._at = clock()

    def take(self, units: float) -> float:
        """Take so many; returns the seconds to wait before going on."""
        now = self._clock()
        self._level = min(self._full, self._level + (now - self._at) * self._rate) - units
        self._at = now
        return max(0.0, -self._level / self._rate)


class MemoryBudget:
    """So many bytes that all links share for the bodies they receive; first come, first served."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting = 0
        self._change = asyncio.Condition()

    @property
    def free(self) -> int:
        """Bytes that nobody has taken."""
        return self._free

    async def take(self, size: int) -> None:
        """Wait until so many bytes are free, and take them; more than the pool has must not be asked."""
        if size > self._free or self._waiting:
            self._waiting += 1
            try:
                async with self._change:
                    await self._change.wait_for(lambda: size <= self._free)
            finally:
                self._waiting -= 1
        self._free -= size

    async def give(self, size: int) -> None:
        """Give back what was taken."""
        self._free += size
        if size and self._waiting:
            async with self._change:
                self._change.notify_all()
