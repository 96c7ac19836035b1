"""Log of a run's evaluations."""

from offbeat.core.events import Metrics, Version
from offbeat.runs.schema import Metric


class EvaluationLog:
    """The evaluations of a run: `count` so far, the last one's metrics and the best accuracy."""

    def __init__(self) -> None:
        self.count = 0
        self.last_metrics: Metrics = {}
        self.best_accuracy: float | None = None

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
        if row.accuracy is not None:
            self.best_accuracy = max(row.accuracy, self.best_accuracy or 0.0)
