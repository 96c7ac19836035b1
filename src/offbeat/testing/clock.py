"""A clock for tests of code that waits: time passes only when the test advances it."""

import asyncio


class FakeClock:
    """An `offbeat.net.clock.Clock` that stands still until it is advanced."""

    def __init__(self) -> None:
        self._now = 0.0
        self._advanced = asyncio.Condition()

    def now(self) -> float:
        """Seconds since the clock was made."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Return once the clock has been advanced by `seconds`."""
        until = self._now + seconds
        async with self._advanced:
            await self._advanced.wait_for(lambda: self._now >= until)

    async def advance(self, seconds: float) -> None:
        """Let `seconds` pass at once; wakes all whose time has come."""
        self._now += seconds
        async with self._advanced:
            self._advanced.notify_all()
