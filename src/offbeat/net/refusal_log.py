"""Refusals at a port: counted by kind, and one line of the log for many of them."""

import asyncio
import logging
from collections import Counter

PAUSE = 5.0
"""Seconds between two lines of the log, at least."""
_LOG = logging.getLogger("offbeat.net")


class RefusalLog:
    """Counts refusals; the log has the first one, and then a summary now and then.

    Args:
        prefix: What the kinds begin with.

    Attributes:
        counts: How many there were, by kind.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self.counts: Counter[str] = Counter()
        self._unsaid: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, kind: str, peer: str, reason: str, site: str | None = None) -> None:
        """Count one, in the event loop.

        Args:
            kind: The kind of the reason.
            peer: Address of who is refused.
            reason: Why, as a sentence.
            site: Name of the site, if it has proved one.
        """
        kind = self._prefix + kind
        self.counts[kind] += 1
        if self._timer is None:
            _LOG.warning("refused %s: %s", peer, reason, extra={} if site is None else {"site": site})
            self._timer = asyncio.get_running_loop().call_later(PAUSE, self._summarise)
        else:
            self._unsaid[kind] += 1
            self._last = peer if site is None else f"{site} at {peer}", reason

    def close(self) -> None:
        """Log the refusals since the last summary."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._say()

    def _summarise(self) -> None:
        self._timer = None
        if self._say():
            self._timer = asyncio.get_running_loop().call_later(PAUSE, self._summarise)

    def _say(self) -> bool:
        """Log the refusals since the last summary; returns whether there were any."""
        if not self._unsaid:
            return False
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self._unsaid.items()))
        _LOG.warning("refused %d more (%s); the last, %s: %s", self._unsaid.total(), kinds, *self._last)
        self._unsaid.clear()
        return True
