"""Rate limit and memory limit: a token bucket, and a budget of bytes that connections share."""

import asyncio
from collections.abc import Callable
from time import monotonic

BURST = 10.0
"""Seconds' worth of units that may come at once."""


class TokenBucket:
    """Token bucket of `rate` units a second; ten seconds' worth may come at once."""

    def __init__(self, rate: float, clock: Callable[[], float] = monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._level = self._full = rate * BURST
        self._at = clock()

    def take(self, units: float) -> float:
        """Take `units` tokens; returns the seconds to wait before going on."""
        now = self._clock()
        self._level = min(self._full, self._level + (now - self._at) * self._rate) - units
        self._at = now
        return max(0.0, -self._level / self._rate)


class MemoryBudget:
    """Bytes that all connections share for the bodies they receive."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._change = asyncio.Event()

    @property
    def free(self) -> int:
        """Bytes that are not taken."""
        return self._free

    async def take(self, size: int) -> None:
        """Wait until `size` bytes are free, and take them. The budget must be at least that large."""
        while size > self._free:
            self._change.clear()
            await self._change.wait()
        self._free -= size

    def give(self, size: int) -> None:
        """Give back bytes that were taken."""
        self._free += size
        self._change.set()
