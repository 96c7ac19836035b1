"""Circuit breaker per site with exponential backoff.

A lost task, and a site that comes and goes, are rows of the journal, for ever: a site that did nothing else
could make it grow as fast as it can send. While its circuit is open, a site has left for the algorithm, so no
schedule waits for it or assigns it tasks. The count starts again when the server does.
"""

from collections import defaultdict

from offbeat.core.events import Version
from offbeat.net.backoff import exponential

# Seconds for which a circuit stays open: at first, and at most.
FIRST_ABSENCE, LONGEST_ABSENCE = 30.0, 600.0


class CircuitBreaker:
    """Opens a site's circuit after failures in a row without an accepted update.

    Args:
        max_failures: Number of consecutive failures that open a circuit; None means that none does.
    """

    def __init__(self, max_failures: int | None) -> None:
        self._max = max_failures
        self._failures: defaultdict[str, list[Version]] = defaultdict(list)
        self._until: dict[str, float] = {}

    def record_failure(self, now: float, site: str, base: Version = 0) -> int | None:
        """Record that a site's task was lost, or that the site has left.

        Args:
            now: When, in seconds of the run's clock.
            site: The site's name.
            base: Version that its task trained from; 0 means that it had none.

        Returns:
            The number of consecutive failures if the circuit is open now, else None.
        """
        if self._max is None:
            return None
        self._failures[site].append(base)
        count = len(self._failures[site])
        if count < self._max:
            return None
        self._until[site] = now + exponential(count - self._max, FIRST_ABSENCE, LONGEST_ABSENCE)
        return count

    def record_success(self, site: str) -> None:
        """Record that an update of a site was accepted, which closes its circuit."""
        self._failures.pop(site, None)
        self._until.pop(site, None)

    def forgive(self, good: Version) -> None:
        """Count no failure of a task that trained from a version after a good one: that was at fault."""
        for site, bases in self._failures.items():
            kept = [base for base in bases if base <= good]
            if len(kept) < len(bases) and self._max is not None and len(kept) < self._max:
                self._until.pop(site, None)
            bases[:] = kept

    def closed_at(self, site: str) -> float:
        """The time at which a site's circuit closes, in seconds of the run's clock; 0 if it is closed."""
        return self._until.get(site, 0.0)
