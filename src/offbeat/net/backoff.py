"""Exponential backoff: the delays between attempts, and when a site gives up."""

import logging
from random import Random

from offbeat.core.errors import RunError

FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0  # s between attempts to reach a server
GIVE_UP_AFTER = 3 * 86400.0
"""Seconds without a server after which a site gives up by default: longer than a weekend."""
log = logging.getLogger(__name__)


def exponential(attempt: int, first: float, longest: float) -> float:
    """The delay after an attempt.

    Args:
        attempt: Number of the attempt, from 0.
        first: Delay after the first one, doubled at each other one.
        longest: The longest delay.
    """
    return float(min(first * 2.0 ** min(attempt, 32), longest))


def retry_delay(attempt: int) -> float:
    """Seconds before another attempt of a site."""
    return exponential(attempt, FIRST_DELAY, LONGEST_DELAY)


class Backoff:
    """Attempts to reach a server.

    Args:
        give_up_after: Seconds without a server after which it fails; None means never.
        rng: Spreads the attempts of many sites.
        now: Time of the first attempt, in seconds.
    """

    def __init__(self, give_up_after: float | None, rng: Random, now: float) -> None:
        self._give_up_after, self._rng = give_up_after, rng
        self._since, self._attempt = now, 0

    def succeeded(self, at: float) -> None:
        """Note that the server was there at this time, in seconds."""
        if at > self._since:
            self._since, self._attempt = at, 0

    def next_delay(self, now: float, reason: str) -> float:
        """Seconds to wait after a failed attempt.

        Args:
            now: Time of the attempt, in seconds.
            reason: Why it failed.

        Raises:
            RunError: It was the last one.
        """
        away, limit = now - self._since, self._give_up_after
        if limit is not None and away > limit:
            raise RunError(
                f"no server for {format_seconds(limit)} ({reason}): the run may have finished, or the server "
                "may have moved; --give-up-after says for how many seconds to try"
            )
        delay = retry_delay(self._attempt) * self._rng.uniform(0.5, 1.0)
        self._attempt += 1
        # The log has the attempts that are powers of two, and then each 128th.
        if self._attempt & (self._attempt - 1) == 0 or self._attempt % 128 == 0:
            left = "" if limit is None else f"; gives up in {format_seconds(limit - away)}"
            log.warning(
                "not connected for %s (%s): attempt %d, the next in %.1f s%s",
                format_seconds(away), reason, self._attempt, delay, left,
            )  # fmt: skip
        return delay


def format_seconds(seconds: float) -> str:
    """A duration in its largest fitting unit."""
    for unit, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{round(seconds, 2):.3g} s"
