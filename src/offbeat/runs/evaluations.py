"""Log of a run's evaluations."""

from collections.abc import Mapping

from offbeat.core.events import Metrics, Version
from offbeat.core.limits import Until
from offbeat.core.metric_names import NamedMetric
from offbeat.runs.schema import Metric


class EvaluationLog:
    """The evaluations of a run: `count` so far, the last one's metrics, and the best value of each.

    Args:
        until: The run's limits.
        higher_is_better: Whether more is better of the metrics whose names do not tell.
    """

    def __init__(self, until: Until = Until(), higher_is_better: Mapping[str, bool] = {}) -> None:
        self._until, self._higher_is_better = until, higher_is_better
        self.count = 0
        self.last_metrics: Metrics = {}
        self.best_metrics: dict[str, float] = {}

    def add(
        self, time: float, version: Version, tasks: int, bytes_up: int, bytes_down: int, found: Metrics
    ) -> Metric:
        """Count an evaluation, and make its row.

        Args:
            time: When it was due, in seconds of the run's clock.
            version: The version that was evaluated.
            tasks: Updates that had arrived by then.
            bytes_up: Bytes that clients had sent by then.
            bytes_down: Bytes that clients had been sent by then.
            found: The metrics, such as "loss" and "accuracy".
        """
        others = dict(found)
        loss, accuracy = others.pop("loss", None), others.pop("accuracy", None)
        row = Metric(self.count, time, version, tasks, bytes_up, bytes_down, loss, accuracy, others or None)
        self.restore(row)
        return row

    def restore(self, row: Metric) -> None:
        """Count an evaluation that was recorded."""
        self.count += 1
        self.last_metrics = row.found
        for name, value in row.found.items():
            best = NamedMetric.of(name, self._higher_is_better).best((value, self.best_metrics.get(name)))
            if best is not None:
                self.best_metrics[name] = best

    @property
    def reached(self) -> str | None:
        """Reason to stop after the last evaluation; None means that the run continues."""
        return self._until.reached_metric(self.last_metrics, self._higher_is_better)
