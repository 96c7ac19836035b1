"""The service of a run that has ended: sites that come are told so."""

import asyncio
from contextlib import suppress

from msgspec import Struct

from offbeat.core.model import Model
from offbeat.net.clock import Clock
from offbeat.net.server.sessions import Sessions


class FinishedRun(Struct, frozen=True):
    """A run that has ended.

    Attributes:
        run: Its name.
        reason: Why it ended.
        model: The model that is shared. None means that none is.
    """

    run: str
    reason: str
    model: Model | None = None


class FinishedService:
    """Tells sites that a run has finished, and gives the model to those that ask for it.

    A server may die before all sites know that its run has finished.

    Args:
        ended: The run.
        clock: Tells the time.
        linger: Seconds that it waits for sites, or longer while a model is on its way.

    Attributes:
        on_channel: Serves a connection of a site to its end.
    """

    def __init__(self, ended: FinishedRun, clock: Clock, linger: float) -> None:
        self._reason, self._clock, self._linger = ended.reason, clock, linger
        self._sessions = Sessions(clock.now, lambda: None, shares_model=ended.model is not None)
        self._sessions.finish(ended.reason)
        if ended.model is not None:
            self._sessions.share(ended.run, ended.model)
        self._loop, self._left = asyncio.get_running_loop(), asyncio.Event()
        self.on_channel = self._sessions.on_channel

    async def run(self) -> str:
        """Wait for sites; returns why the run ended."""
        await self._sleep(self._linger)
        while self._sessions.sending and not self._left.is_set():
            await self._sleep(max(self._linger, 0.1))
        return self._reason

    async def abandon(self) -> None:
        """End without having served."""

    def finish(self, reason: str = "stopped", by: str = "") -> None:
        """The run has ended already."""

    def detach(self, by: str = "") -> None:
        """Wait for no more sites. May be called in any thread."""
        # Where the loop has ended, nobody waits.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._left.set)

    async def _sleep(self, seconds: float) -> None:
        ends = [asyncio.ensure_future(self._clock.sleep(seconds)), asyncio.ensure_future(self._left.wait())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
