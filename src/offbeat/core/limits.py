"""Limits of a run, and the intervals of its evaluations."""

from collections.abc import Mapping
from math import isfinite
from typing import Literal, Self

from pydantic import model_validator
from pydantic.dataclasses import dataclass

from offbeat.core.errors import UsageError
from offbeat.core.metric_names import CLIENTS, NamedMetric
from offbeat.core.types import Count, Finite, Positive, PositiveShare
from offbeat.core.validation import STRICT

NEVER_ENDS = "the run would never end: give until seconds, versions, tasks, accuracy or metric"


@dataclass(frozen=True, config=STRICT)
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
    """

    seconds: Positive | None = None
    versions: Count | None = None
    tasks: Count | None = None
    accuracy: PositiveShare | None = None
    metric: str | None = None
    reaches: Finite | None = None

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
        return (self.seconds, self.versions, self.tasks) == (None, None, None) and not self.targets

    @property
    def targets(self) -> dict[str, float]:
        """The metrics that end the run, with the values that they must reach."""
        given = {"accuracy": self.accuracy, self.metric: self.reaches}
        return {name: value for name, value in given.items() if name is not None and value is not None}

    def reached(self, version: int, tasks: int) -> str | None:
        """Reason to stop at this version, after `tasks` tasks; None means that the run continues."""
        if self.versions is not None and version >= self.versions:
            return f"reached {self.versions} versions"
        if self.tasks is not None and tasks >= self.tasks:
            return f"reached {self.tasks} client tasks"
        return None

    def reached_metric(
        self, found: Mapping[str, float | None], higher_is_better: Mapping[str, bool] = {}
    ) -> str | None:
        """Reason to stop after an evaluation; None means that the run continues.

        Args:
            found: The metrics by name. NaN, infinity and None reach nothing.
            higher_is_better: Whether more is better of a metric whose name does not tell.
        """
        for name, target in self.targets.items():
            if NamedMetric.of(name, higher_is_better).reaches(found.get(name), target):
                return f"reached {name} {target:g}"
        return None

    def check_metrics(self, found: Mapping[str, float | None]) -> None:
        """Check that evaluations give the metrics that end the run; the clients' metrics may come later.

        Args:
            found: The metrics of an evaluation by name.

        Raises:
            UsageError: They do not.
        """
        for name in self.targets.keys() - found.keys():
            if not name.startswith(CLIENTS) or any(other.startswith(CLIENTS) for other in found):
                given = f"give {', '.join(found)}" if found else "give no metric"
                raise UsageError(f"until: the metric {name!r} is never reached: evaluations {given}")

    def check_evaluated(self, at_server: bool, at_clients: bool, hint: str) -> None:
        """Check that what ends the run is evaluated: the clients' metrics at clients, others at the server.

        Args:
            at_server: Whether there are evaluations on the common test set.
            at_clients: Whether there are evaluations on what each client holds out.
            hint: What to give where there are none.

        Raises:
            UsageError: It is not.
        """
        for name, target in self.targets.items():
            if name.startswith(CLIENTS) and not at_clients:
                hint = "give evaluate.at = 'clients' or 'both', and seconds or versions"
                raise UsageError(f"until {name} = {target:g} needs evaluations at clients: {hint}")
            if not name.startswith(CLIENTS) and not at_server:
                if at_clients:
                    hint = f"evaluate.at = 'clients' gives {CLIENTS}{name}; name that, or choose both"
                raise UsageError(f"until {name} = {target:g} needs evaluations: {hint}")

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
    if not isfinite(target):
        raise UsageError(f"{option} = {target:g} is not allowed: give a finite number")
    if NamedMetric.of(metric or "accuracy").is_share and not 0.0 < target <= 1.0:
        other = "" if metric else "; name another metric"
        raise UsageError(
            f"{option} = {target:g} is not allowed: {metric or 'accuracy'} is a share in (0, 1]{other}"
        )


@dataclass(frozen=True, config=STRICT)
class Every:
    """Intervals of the evaluations of the global model.

    With neither argument it is not evaluated at all; otherwise also at the start and at the end. Evaluating
    draws nothing from the run's random streams and changes nothing in it.

    Attributes:
        seconds: Seconds of the run's clock between two evaluations, above 0.
        versions: Versions between two evaluations, at least 1.
        at: "server" evaluates on the common test set, "clients" on what each client holds out, "both"
            on both.
    """

    seconds: Positive | None = None
    versions: Count | None = None
    at: Literal["server", "clients", "both"] = "server"

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
        """Whether the model is evaluated on what each client holds out."""
        return not self.never and self.at != "server"

    def after(self, version: int) -> bool:
        """Whether this new version is evaluated."""
        return self.versions is not None and version % self.versions == 0
