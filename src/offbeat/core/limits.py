"""Limits of a run, and the intervals of its evaluations."""

from collections.abc import Mapping
from math import isfinite
from numbers import Real
from typing import Literal, Self

from pydantic import model_validator

from offbeat.core.errors import UsageError
from offbeat.core.metric_names import CLIENTS, NamedMetric
from offbeat.core.types import Count, Finite, NonNegative, Positive, PositiveShare
from offbeat.core.validation import checked_dataclass

NEVER_ENDS = (
    "the run would never end: give until seconds, versions, tasks, accuracy, metric or early_stopping"
)


@checked_dataclass
class EarlyStopping:
    """Ends a run whose evaluations do not improve any more.

    It counts the evaluations since the last improvement, which is a value better than that of the improvement
    before it by more than `min_delta`. One in which the metric is NaN or infinite is none. One of the
    clients' metrics at which no client has evaluated is not counted.

    Attributes:
        metric: A metric of the evaluations, such as "accuracy" or "loss".
        patience: Evaluations without an improvement, one after another, that end the run; at least 1.
        min_delta: An improvement is by more than this, at least 0, in the metric's own unit.
    """

    metric: str
    patience: Count
    min_delta: NonNegative = 0.0


@checked_dataclass
class Until:
    """The limits of a run: it stops at whichever is reached first.

    Attributes:
        seconds: Seconds of the run's clock, above 0: virtual in a simulation, counted from the run's
            beginning on a network. None means no limit, here and below.
        versions: Versions of the global model, at least 1.
        tasks: Updates that have arrived, at least 1.
        accuracy: Accuracy on the test data, in (0, 1]; needs evaluations. It is short for
            `metric="accuracy"` and `reaches`.
        metric: A metric of the evaluations, such as "auroc" or "loss".
        reaches: Value of `metric`: at this or above it ends the run, or at this or below it where less of the
            metric is better. In (0, 1] for a share such as "auroc".
        early_stopping: Ends the run when a metric does not improve any more.
    """

    seconds: Positive | None = None
    versions: Count | None = None
    tasks: Count | None = None
    accuracy: PositiveShare | None = None
    metric: str | None = None
    reaches: Finite | None = None
    early_stopping: EarlyStopping | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.metric is None) != (self.reaches is None):
            raise ValueError("until.metric and until.reaches belong together: give both, or neither")
        if self.metric is not None and self.reaches is not None:
            if self.metric == "accuracy" and self.accuracy is not None:
                raise ValueError("until.accuracy is given twice: leave out metric and reaches")
            check_target(self.metric, self.reaches, "until.reaches")
        return self

    @property
    def never(self) -> bool:
        """Whether there is no limit at all."""
        return (self.seconds, self.versions, self.tasks) == (None, None, None) and not self.metrics

    @property
    def targets(self) -> dict[str, float]:
        """The metrics that end the run, with the values that they must reach."""
        given = {"accuracy": self.accuracy, self.metric: self.reaches}
        return {name: value for name, value in given.items() if name is not None and value is not None}

    @property
    def metrics(self) -> dict[str, str]:
        """The metrics that may end the run, each with the option that names it."""
        named = {name: f"until {name} = {target:g}" for name, target in self.targets.items()}
        if (stopping := self.early_stopping) is not None:
            named.setdefault(stopping.metric, f"until.early_stopping of {stopping.metric}")
        return named

    def reached(self, version: int, tasks: int) -> str | None:
        """Reason to stop at this version, after `tasks` tasks; None means that the run continues."""
        if self.versions is not None and version >= self.versions:
            return f"reached {self.versions} versions"
        if self.tasks is not None and tasks >= self.tasks:
            return f"reached {self.tasks} client tasks"
        return None

    def reached_metric(
        self, metrics: Mapping[str, float | None], higher_is_better: Mapping[str, bool] = {}
    ) -> str | None:
        """Reason to stop after an evaluation; None means that the run continues.

        Args:
            metrics: The metrics by name. NaN, infinity and None reach nothing.
            higher_is_better: Whether more is better of a metric whose name does not tell.
        """
        for name, target in self.targets.items():
            if NamedMetric.of(name, higher_is_better).reaches(metrics.get(name), target):
                return f"reached {name} {target:g}"
        return None

    @property
    def out_of_time(self) -> str:
        """Reason to stop when `seconds` have passed."""
        return f"reached {self.seconds:g} seconds"


def check_target(metric: str | None, target: float | None, option: str = "target") -> None:
    """Raise UsageError for a target that the metric cannot reach; `option` is its name.

    Where no metric is named the target is one of accuracy.
    """
    if target is None:
        return
    if isinstance(target, bool) or not isinstance(target, Real) or not isfinite(target):
        raise UsageError(f"{option} = {target!r} is not allowed: give a finite number")
    if NamedMetric.of(metric or "accuracy").is_share and not 0.0 < target <= 1.0:
        share = f"; for {target:g} % give {target / 100:g}" if 1 < target <= 100 else ""
        other = share + ("" if metric else "; or name another metric" if share else "; name another metric")
        raise UsageError(
            f"{option} = {target:g} is not allowed: {metric or 'accuracy'} is a share in (0, 1]{other}"
        )


@checked_dataclass
class Every:
    """Intervals of the evaluations of the global model.

    With neither argument it is not evaluated at all; otherwise also at the start and at the end. Evaluating
    draws nothing from the run's random streams and changes nothing in it.

    Attributes:
        seconds: Seconds of the run's clock between two evaluations, above 0.
        versions: Versions between two evaluations, at least 1.
        at: "server" evaluates on the common test set, "clients" on what each client holds out, "both"
            on both.
        keep_best: A metric of the evaluations: the version with its best finite value is kept, as
            `Run.best`, and in a run's directory as best.safetensors. None means that none is kept.
    """

    seconds: Positive | None = None
    versions: Count | None = None
    at: Literal["server", "clients", "both"] = "server"
    keep_best: str | None = None

    @property
    def never(self) -> bool:
        """Whether nothing is evaluated."""
        return self.seconds is None and self.versions is None

    @property
    def at_server(self) -> bool:
        """Whether the model is evaluated on the common test set."""
        return not self.never and self.at != "clients"

    @property
    def at_clients(self) -> bool:
        """Whether the model is evaluated on each client's held-out samples."""
        return not self.never and self.at != "server"

    def after(self, version: int) -> bool:
        """Whether this new version is evaluated."""
        return self.versions is not None and version % self.versions == 0


def check_evaluated(until: Until, every: Every, tested: bool, hint: str) -> None:
    """Check that the metrics that are needed are evaluated: the clients' at clients, others at the server.

    Args:
        until: The run's limits.
        every: Its evaluations.
        tested: Whether there is a common test set.
        hint: What to give where there are no evaluations.

    Raises:
        UsageError: They are not.
    """
    at_server, at_clients = tested and every.at_server, every.at_clients
    for name, option in _needed(until, every).items():
        if name.startswith(CLIENTS) and not at_clients:
            hint = "give evaluate.at = 'clients' or 'both', and seconds or versions"
            raise UsageError(f"{option} needs evaluations at clients: {hint}")
        if not name.startswith(CLIENTS) and not at_server:
            if at_clients:
                hint = f"evaluate.at = 'clients' gives {CLIENTS}{name}; name that, or choose both"
            raise UsageError(f"{option} needs evaluations: {hint}")


def check_found(until: Until, every: Every, metrics: Mapping[str, float | None]) -> None:
    """Check that an evaluation gives the metrics that are needed; the clients' metrics may come later.

    Args:
        until: The run's limits.
        every: Its evaluations.
        metrics: The metrics of an evaluation by name.

    Raises:
        UsageError: It does not.
    """
    for name, option in _needed(until, every).items():
        later = name.startswith(CLIENTS) and not any(other.startswith(CLIENTS) for other in metrics)
        if name not in metrics and not later:
            given = f"give {', '.join(metrics)}" if metrics else "give no metric"
            raise UsageError(f"{option}: there is no metric {name!r}: evaluations {given}")


def _needed(until: Until, every: Every) -> dict[str, str]:
    """The metrics that evaluations must give, each with the option that names it."""
    kept = {} if every.keep_best is None else {every.keep_best: f"evaluate.keep_best = {every.keep_best!r}"}
    return {**kept, **until.metrics}
