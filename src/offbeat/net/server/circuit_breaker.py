"""Sites of which nothing comes: they are sent away for a while, for longer each time.

A task that is lost and a site that comes and goes are rows of the journal, for ever. A site that did nothing
else could make it grow as fast as it can speak. To the algorithm it is a site that has left, so no schedule
waits for it or gives it work. The count begins anew when the server does.
"""

from collections import Counter

FIRST_ABSENCE, LONGEST_ABSENCE = 30.0, 600.0  # seconds


class CircuitBreaker:
    """Counts setbacks: of a site that has `most` in a row, without an update that was taken, it is enough.

    None: never.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._setbacks: Counter[str] = Counter()
        self._until: dict[str, float] = {}

    def setback(self, now: float, site: str) -> int | None:
        """A task of a site has come to nothing, or it has left; how many in a row, if that is enough."""
        self._setbacks[site] += 1
        count = self._setbacks[site]
        if self._most is None or count < self._most:
            return None
        self._until[site] = now + min(FIRST_ABSENCE * 2.0 ** min(count - self._most, 32), LONGEST_ABSENCE)
        return count

    def delivered(self, site: str) -> None:
        """An update of a site was taken."""
        self._setbacks.pop(site, None)
        self._until.pop(site, None)

    def until(self, site: str) -> float:
        """From when on a site may come: 0 if it was not sent away."""
        return self._until.get(site, 0.0)
