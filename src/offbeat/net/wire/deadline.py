"""A deadline that begins again and again, such as that of each frame, on one timer.

`asyncio.timeout` sets and cancels a timer each time. Here the timer stays, and is set anew only where it
would come too late, or has come too early.
"""

import asyncio
from collections.abc import Callable


class Deadline:
    """Calls `missed` when as many seconds have passed since `begin` as it said, without an `end`.

    Args:
        missed: Called in the event loop, once for each `begin` at most.
    """

    def __init__(self, missed: Callable[[], None]) -> None:
        self._missed, self._loop = missed, asyncio.get_running_loop()
        # When the seconds are over. None means that nothing is under way.
        self._at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, seconds: float) -> None:
        """Begin, and end what was under way."""
        self._at = at = self._loop.time() + seconds
        if self._timer is None or self._timer.when() > at:
            self._set(at)

    def end(self) -> None:
        """What was under way is done."""
        self._at = None

    def close(self) -> None:
        """End for good."""
        self._at = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._at is None:
            return
        if self._at > self._loop.time():
            self._set(self._at)
            return
        self._at = None
        self._missed()
