"""The names of the metrics that sites send: no site makes a run's record grow by names without end."""

import logging
from collections.abc import Iterable

from offbeat.core.events import Metrics

log = logging.getLogger(__name__)
MOST_NAMES = 100
"""Names of metrics in a run, of all sites together, beside those that the run knows."""


class MetricNames:
    """The names that the sites' metrics have had since the server started.

    Args:
        known: The names that the run knows, which are always kept.
    """

    def __init__(self, known: Iterable[str]) -> None:
        self._known = frozenset(known)
        self._others = set[str]()
        self._told = False

    def kept(self, metrics: Metrics) -> Metrics:
        """The metrics that the record takes: without those of new names, once there are too many.

        A site that uses up the names must not cost another site its update, so nothing is refused.
        """
        new = [name for name in metrics if name not in self._known and name not in self._others]
        room = MOST_NAMES - len(self._others)
        self._others.update(new[:room])
        if not (left_out := frozenset(new[room:])):
            return metrics
        if not self._told:
            log.warning(
                "the sites' metrics have more than %d names: further names, such as %s, are left out",
                MOST_NAMES, min(left_out),
            )  # fmt: skip
            self._told = True
        return {name: value for name, value in metrics.items() if name not in left_out}
