"""Exponential backoff: the delays between attempts, and when a site gives up."""

import logging
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from offbeat.core.errors import RunError
from offbeat.units import duration_text, size_text

if TYPE_CHECKING:
    from offbeat.net.client.transfers import Attempts

FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0  # s between attempts to reach a server
PROGRESS_DELAY = 0.1
"""Seconds before another connection after one that has brought a message further."""
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


class NotGettingThroughError(RunError):
    """A message has not got through for too long, to a server that is there."""


class Backoff:
    """Attempts to reach a server.

    Args:
        give_up_after: Seconds without a server, or in which one message has not got through, after which it
            fails; None means never.
        rng: Spreads the attempts of many sites.
        now: Time of the first attempt, in seconds.
    """

    def __init__(self, give_up_after: float | None, rng: Random, now: float) -> None:
        self._give_up_after, self._rng = give_up_after, rng
        self._since, self._attempt, self._was_there = now, 0, False

    def succeeded(self, at: float) -> None:
        """Note that a connection was of use until this time, in seconds."""
        if at > self._since:
            self._since, self._attempt = at, 0
            self._was_there = False

    def was_there(self) -> None:
        """Note that the server was there, if only for a moment."""
        self._was_there = True

    def next_delay(self, now: float, reason: str, failed: "Sequence[Attempts]" = ()) -> float:
        """Seconds to wait after a failed attempt.

        Args:
            now: Time of the attempt, in seconds.
            reason: Why it failed.
            failed: The messages that its connection has begun and not got through.

        Raises:
            NotGettingThroughError: One of them has not got through for too long.
            RunError: It was the last one.
        """
        away, limit = now - self._since, self._give_up_after
        # An answer that the server does not acknowledge may have got through the first time.
        worst = max(failed, key=lambda each: (each.count, each.size), default=None)
        if worst is not None and limit is not None and max(each.seconds for each in failed) > limit:
            worst = max(failed, key=lambda each: each.seconds)
            raise NotGettingThroughError(
                f"{worst.what} has not got through for {duration_text(limit)}: {_carried(worst)}, attempt "
                f"{worst.count} ({reason}): something on the way to the server cuts connections; ask the "
                "network's operator; access.give_up_after says for how many seconds to try"
            )
        # A connection that carried a part of a message was of use: the message's own time counts then.
        if limit is not None and away > limit and worst is None:
            what = "no lasting connection" if self._was_there else "no server"
            raise RunError(
                f"{what} for {duration_text(limit)} ({reason}): the run may have finished, or the server "
                "may have moved; access.give_up_after says for how many seconds to try"
            )
        progress = worst is not None and not worst.count
        attempt = max(self._attempt, 0 if worst is None else worst.count - 1)
        delay = (PROGRESS_DELAY if progress else retry_delay(attempt)) * self._rng.uniform(0.5, 1.0)
        self._attempt = 0 if progress else self._attempt + 1
        for each in failed:
            if not each.count and _logged(each.connections):
                log.info(
                    "%s comes in pieces (%s): %s after %d connections, the next in %.1f s",
                    each.what, reason, _carried(each), each.connections, delay,
                )  # fmt: skip
            if (each.size or each.count > 1) and each.count and _logged(each.count):
                left = "" if limit is None else f"; gives up in {duration_text(limit - each.seconds)}"
                log.warning(
                    "%s did not get through (%s): %s, attempt %d, the next in %.1f s%s",
                    each.what, reason, _carried(each), each.count, delay, left,
                )  # fmt: skip
        if worst is None and _logged(self._attempt):
            left = "" if limit is None else f"; gives up in {duration_text(limit - away)}"
            log.warning(
                "not connected for %s (%s): attempt %d, the next in %.1f s%s",
                duration_text(away), reason, self._attempt, delay, left,
            )  # fmt: skip
        return delay


def _logged(attempt: int) -> bool:
    """Whether the log has this attempt: those that are powers of two, and then each 128th."""
    return attempt & (attempt - 1) == 0 or attempt % 128 == 0


def _carried(attempts: "Attempts") -> str:
    """How much of a message went, or came."""
    if not attempts.size:
        return "not acknowledged"
    if attempts.done == attempts.size:
        return f"all of its {size_text(attempts.size)} but no acknowledgement"
    return f"{size_text(attempts.done)} of {size_text(attempts.size)}"
