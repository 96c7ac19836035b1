"""When a run's global model is measured, and what has been found."""

from collections.abc import Iterator

from offbeat.core.errors import UsageError
from offbeat.core.events import Metrics, Version
from offbeat.core.limits import Every
from offbeat.runs.schema import Metric

_MOST = 10_000_000  # between two events: each is a row


class Evaluations:
    """Knows when to measure: `by_time` says whether the clock decides too.

    `count` evaluations were made; `last_metrics` and `best_accuracy` came of them.
    """

    def __init__(self, every: Every) -> None:
        self.count = 0
        self.last_metrics: Metrics = {}
        self.best_accuracy: float | None = None
        self.by_time = every.seconds is not None
        self._every, self._next = every, 0.0
        self._last: tuple[float, Version] | None = None

    @property
    def first(self) -> bool:
        """Is the initial model measured at once? By the clock it is at time 0, in its turn."""
        return not self._every.never and not self.by_time

    def due(self, now: float, time: float) -> Iterator[float]:
        """The moments before `time` that are due, where nothing has happened since `now` (seconds)."""
        seconds = self._every.seconds
        if seconds is None:
            return
        if (time - self._next) / seconds > _MOST:
            raise UsageError(
                f"evaluate.seconds = {seconds:g} would measure the model more than {_MOST} times from "
                f"{now:g} to {time:g} seconds, where nothing happens: give more, or versions instead"
            )
        while self._next < time:
            moment, self._next = self._next, seconds * round(self._next / seconds + 1)
            yield moment

    def after(self, version: Version) -> bool:
        """Is this new version measured?"""
        return self._every.versions is not None and version % self._every.versions == 0

    def last(self, now: float, version: Version) -> bool:
        """Is the model with which the run ends measured? Not twice."""
        return not self._every.never and self._last != (now, version)

    def enter(
        self, time: float, version: Version, tasks: int, bytes_up: int, bytes_down: int, found: Metrics
    ) -> Metric:
        """The row of an evaluation, after so many tasks and bytes."""
        self.last_metrics = dict(found)
        others = dict(found)
        loss, accuracy = others.pop("loss", None), others.pop("accuracy", None)
        if accuracy is not None:
            self.best_accuracy = max(accuracy, self.best_accuracy or 0.0)
        row = Metric(self.count, time, version, tasks, bytes_up, bytes_down, loss, accuracy, others or None)
        self.count += 1
        self._last = (time, version)
        return row
