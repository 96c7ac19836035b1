"""The names of the metrics that sites send: no site makes a run's record grow by names without end."""

from collections.abc import Iterable

from offbeat.net.server.validation import InvalidUpdateError

MOST_NAMES = 100
"""Names of metrics in a run, of all sites together, beside those that the run knows."""


class MetricNames:
    """The names that the sites' metrics have had since the server started.

    Args:
        known: The names that the run knows, which are always taken.
    """

    def __init__(self, known: Iterable[str]) -> None:
        self._known = frozenset(known)
        self._others = frozenset[str]()

    def admit(self, names: Iterable[str]) -> None:
        """Take the names of a message.

        Raises:
            InvalidUpdateError: There would be too many, and none of the message's is taken.
        """
        others = self._others | (frozenset(names) - self._known)
        if len(others) > MOST_NAMES:
            raise InvalidUpdateError(
                f"the metrics of the run's sites have more than {MOST_NAMES} names: use the same each time",
                "metrics",
            )
        self._others = others
