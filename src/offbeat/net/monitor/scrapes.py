"""The scrapers of a server's metrics, and whether they have been told that the run has ended.

A server that ends is a target that vanishes, as one that has crashed. So a server whose run has ended stays
until its scrapers have read so.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

MOST_SECONDS = 120.0
"""Seconds that a server stays for a scraper after its last scrape, at most."""
_MOST_SCRAPERS = 64


@dataclass(frozen=True, slots=True)
class _Scraper:
    """When it has asked last, the time between its last two requests (0 after one), and whether it knows."""

    last: float
    gap: float
    told: bool


class Scrapes:
    """The scrapes of a server.

    Args:
        clock: Gives seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock, self._changed = clock, asyncio.Event()
        self._scrapers: dict[str, _Scraper] = {}

    def add(self, host: str, *, ended: bool) -> None:
        """Note a scrape.

        Args:
            host: Who scrapes.
            ended: Whether the answer says that the run has ended.
        """
        now, before = self._clock(), self._scrapers.pop(host, None)
        self._scrapers[host] = _Scraper(now, 0.0 if before is None else now - before.last, ended)
        # The one that was silent longest is forgotten first.
        if len(self._scrapers) > _MOST_SCRAPERS:
            del self._scrapers[next(iter(self._scrapers))]
        self._changed.set()

    @property
    def awaited(self) -> float:
        """Seconds for which scrapers that have not been told of the end are worth waiting for.

        A scraper may miss one scrape. One that has asked once only is a person, or will not come in time.
        """
        ends = (
            each.last + min(2 * each.gap, MOST_SECONDS) for each in self._scrapers.values() if not each.told
        )
        return max(0.0, max(ends, default=0.0) - self._clock())

    async def told(self) -> None:
        """Wait until all that scrape have been told of the end, but not for those that have stopped."""
        while (seconds := self.awaited) > 0:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
