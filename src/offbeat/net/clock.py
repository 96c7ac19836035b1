"""Time as a server and a site see it: seconds that only go forward, and waiting."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """A source of time. Nothing else in this part of the package reads a clock."""

    def now(self) -> float:
        """Seconds since some moment; it never goes back, whatever is done to the computer's date."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` seconds."""


class SystemClock:
    """The computer's monotonic clock."""

    def now(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` seconds."""
        await asyncio.sleep(seconds)
