"""How long a site waits for a server that is not there: growing pauses, and in the end it gives up."""

import logging
from random import Random

from offbeat.core.errors import RunError

FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0  # seconds between attempts
GIVE_UP_AFTER = 3 * 86400.0
"""Seconds without a server after which a site gives up, unless told otherwise: longer than a weekend."""
log = logging.getLogger(__name__)


def delay(attempt: int) -> float:
    """Seconds before another attempt: twice as long each time, up to a limit."""
    return float(min(FIRST_DELAY * 2 ** min(attempt, 32), LONGEST_DELAY))


class Backoff:
    """Counts attempts to reach a server, from `now` on; it ends after `seconds` without one (none: never).

    `chance` keeps many sites from coming at the same moment.
    """

    def __init__(self, seconds: float | None, chance: Random, now: float) -> None:
        self._seconds, self._chance = seconds, chance
        self._since, self._attempt = now, 0

    def heard(self, at: float) -> None:
        """The server has said something."""
        if at > self._since:
            self._since, self._attempt = at, 0

    def failed(self, now: float, reason: str) -> float:
        """An attempt has failed: for how long to wait. Raises `RunError` where it is the last."""
        away = now - self._since
        if self._seconds is not None and away > self._seconds:
            raise RunError(
                f"no server for {format_seconds(self._seconds)} ({reason}): the run may be over, or "
                "the server elsewhere; --give-up-after says for how many seconds to try"
            )
        wait = delay(self._attempt) * self._chance.uniform(0.5, 1.0)
        self._attempt += 1
        if self._attempt & (self._attempt - 1) == 0 or self._attempt % 128 == 0:  # now and then
            left = "" if self._seconds is None else f"; given up in {format_seconds(self._seconds - away)}"
            log.warning(
                "not connected for %s (%s): attempt %d, the next is in %.1f s%s",
                format_seconds(away), reason, self._attempt, wait, left,
            )  # fmt: skip
        return wait


def format_seconds(seconds: float) -> str:
    """Seconds for people."""
    for unit, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{round(seconds, 2):.3g} s"
