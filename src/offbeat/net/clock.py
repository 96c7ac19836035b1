"""Time as a server and a site see it: seconds that only go forward, and waiting."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """A source of time. Nothing else in this part of the package asks what time it is."""

    def now(self) -> float:
        """Seconds since some moment; it never goes back, whatever is done to the computer's date."""

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""


class SystemClock:
    """The computer's monotonic clock."""

    def now(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        await asyncio.sleep(seconds)


class FakeClock:
    """A clock that stands still until it is told to jump."""

    def __init__(self) -> None:
        self._now = 0.0
        self._jumped = asyncio.Condition()

    def now(self) -> float:
        """Seconds since it was made."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Return once the clock has been told to jump so far."""
        until = self._now + seconds
        async with self._jumped:
            await self._jumped.wait_for(lambda: self._now >= until)

    async def jump(self, seconds: float) -> None:
        """Let so many seconds pass at once."""
        self._now += seconds
        async with self._jumped:
            self._jumped.notify_all()
