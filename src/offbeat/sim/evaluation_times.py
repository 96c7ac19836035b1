"""When a simulation evaluates its global model."""

from collections.abc import Iterator, Mapping

from offbeat.core.errors import UsageError
from offbeat.core.events import Version
from offbeat.core.limits import Every, Until
from offbeat.runs.evaluation_log import EvaluationLog
from offbeat.runs.schema import Metric

# Each evaluation is a row; more than this between two events are refused.
_MOST = 10_000_000


class TimedEvaluations(EvaluationLog):
    """The evaluations of a simulation; decides when they are due, `by_time` or by versions."""

    def __init__(
        self, every: Every, until: Until = Until(), higher_is_better: Mapping[str, bool] = {}
    ) -> None:
        super().__init__(until, higher_is_better)
        self.every = every
        self.by_time = every.seconds is not None
        self._next = 0.0
        self._last: tuple[float, Version] | None = None

    @property
    def first(self) -> bool:
        """Whether the initial model is evaluated at once. By time it is at time 0, in its turn."""
        return not self.every.never and not self.by_time

    def due(self, now: float, time: float) -> Iterator[float]:
        """The moments before `time` that are due, where nothing has happened since `now` (seconds)."""
        seconds = self.every.seconds
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

    def last(self, now: float, version: Version) -> bool:
        """Whether the model with which the run ends is evaluated. Not twice."""
        return not self.every.never and self._last != (now, version)

    def restore(self, row: Metric) -> None:
        """Count an evaluation."""
        super().restore(row)
        self._last = (row.t, row.version)
