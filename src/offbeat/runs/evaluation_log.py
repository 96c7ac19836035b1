"""Log of a run's evaluations."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from offbeat.core.events import Metrics, Version
from offbeat.core.limits import EarlyStopping, Until
from offbeat.core.metric_names import CLIENTS, NamedMetric, check_metric_names, finite
from offbeat.runs.schema import Metric


class SavedPatience(Struct, frozen=True):
    """What early stopping has counted."""

    waited: int
    improved: float | None
    best: tuple[float, Version] | None


class SavedEvaluations(Struct, frozen=True):
    """The state of an `EvaluationLog`."""

    count: int
    last_metrics: dict[str, Any]
    best_metrics: dict[str, float]
    patience: SavedPatience | None


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
        stopping = until.early_stopping
        self._stopping = None if stopping is None else _Patience(stopping, self.named(stopping.metric))

    def add(
        self, time: float, version: Version, tasks: int, bytes_up: int, bytes_down: int, metrics: Metrics
    ) -> Metric:
        """Count an evaluation, and make its row.

        Args:
            time: When it was due, in seconds of the run's clock.
            version: The version that was evaluated.
            tasks: Updates that had arrived by then.
            bytes_up: Bytes that clients had sent by then.
            bytes_down: Bytes that clients had been sent by then.
            metrics: The metrics, such as "loss" and "accuracy".

        Raises:
            UsageError: A name cannot be that of a metric.
        """
        check_metric_names(metrics)
        others = dict(metrics)
        loss, accuracy = others.pop("loss", None), others.pop("accuracy", None)
        row = Metric(self.count, time, version, tasks, bytes_up, bytes_down, loss, accuracy, others or None)
        self.restore(row)
        return row

    def restore(self, row: Metric) -> None:
        """Count an evaluation that was recorded."""
        self.count += 1
        self.last_metrics = row.found
        for name, value in row.found.items():
            best = self.named(name).best((value, self.best_metrics.get(name)))
            if best is not None:
                self.best_metrics[name] = best
        if self._stopping is not None:
            self._stopping.add(row)

    def save(self) -> SavedEvaluations:
        """The state."""
        patience = None if self._stopping is None else self._stopping.save()
        return SavedEvaluations(self.count, dict(self.last_metrics), dict(self.best_metrics), patience)

    def load(self, saved: SavedEvaluations) -> None:
        """Go on from a state of a log with the same early stopping. Raises `ValueError` for another one."""
        if (self._stopping is None) != (saved.patience is None):
            raise ValueError("the evaluations are saved of a run with other early stopping")
        self.count = saved.count
        self.last_metrics, self.best_metrics = dict(saved.last_metrics), dict(saved.best_metrics)
        if self._stopping is not None and saved.patience is not None:
            self._stopping.load(saved.patience)

    def named(self, name: str) -> NamedMetric:
        """The metric of a name. The run may know its direction better than the name shows."""
        return NamedMetric.of(name, self._higher_is_better)

    @property
    def reached(self) -> str | None:
        """Reason to stop after the last evaluation; None means that the run continues."""
        reached = self._until.reached_metric(self.last_metrics, self._higher_is_better)
        return reached or (self._stopping.over if self._stopping is not None else None)


class _Patience:
    """The state of early stopping: a function of the recorded evaluations, and of nothing else."""

    def __init__(self, stopping: EarlyStopping, metric: NamedMetric) -> None:
        self._stopping, self._metric = stopping, metric
        self._waited = 0
        # Value of the last improvement.
        self._improved: float | None = None
        self._best: tuple[float, Version] | None = None

    def save(self) -> SavedPatience:
        """The state."""
        return SavedPatience(self._waited, self._improved, self._best)

    def load(self, saved: SavedPatience) -> None:
        """Go on from a state."""
        self._waited, self._improved, self._best = saved.waited, saved.improved, saved.best

    def add(self, row: Metric) -> None:
        """Count an evaluation. A loss or accuracy that is NaN is recorded as none at all."""
        name = self._metric.name
        if name.startswith(CLIENTS) and name not in row.found:
            # No client has evaluated this version.
            return
        self._waited += 1
        value = finite(row.found.get(name))
        if value is None:
            return
        if self._best is None or self._metric.better(value, self._best[0]):
            self._best = value, row.version
        if self._improved is None or self._metric.better(value, self._improved, self._stopping.min_delta):
            self._improved, self._waited = value, 0

    @property
    def over(self) -> str | None:
        """Reason to stop; None means that the run continues."""
        if self._waited < self._stopping.patience:
            return None
        words, patience, by = self._metric.words, self._stopping.patience, self._stopping.min_delta
        waited = f"in {patience} evaluation{'s' if patience > 1 else ''}"
        if self._best is None:
            return f"no finite {words} {waited}"
        best, version = self._best
        least = f" by more than {by:g}" if by else ""
        return f"no better {words}{least} {waited} (best {best:.4g} at version {version})"
