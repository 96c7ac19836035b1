"""How runs are grouped for comparison, and the metric they are compared by."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from offbeat.core.errors import UsageError
from offbeat.core.limits import check_target
from offbeat.core.metric_names import COLUMNS, NamedMetric, first_shown, in_order
from offbeat.report.labels import group_by_label
from offbeat.runs.presentation import RunView
from offbeat.runs.record import RunRecord


def group_runs(records: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Group runs by label.

    Args:
        records: The runs. Those of one label that were started with the same options are seeds of one
            experiment; others get a label of their own, such as "fedavg lr=0.1" and "fedavg lr=0.01", or
            with their directory where nothing else differs.

    Returns:
        The runs of each label, which carry it; labels in order of appearance, seeds ascending.

    Raises:
        UsageError: There is no run.
    """
    return {group.label.text: list(group.runs) for group in group_by_label(records)}


def clock_name(runs: Iterable[RunView]) -> str:
    """What the time of some runs is called: that of a server is real, that of a simulation is virtual."""
    return "time" if any(run.served for run in runs) else "virtual time"


Evaluation = Mapping[str, Any]
Rows = Sequence[Evaluation]
"""The evaluations of a run: flat mappings, as `RunRecord.metrics` has them."""
Evaluations = Mapping[str, Sequence[Rows]]
"""The evaluations of each label's runs, by seed."""


def read_evaluations(groups: Mapping[str, Sequence[RunRecord]]) -> Evaluations:
    """Read the evaluations of every run of every label, in the given order."""
    return {label: [run.metrics for run in runs] for label, runs in groups.items()}


def metrics_in(row: Evaluation) -> list[str]:
    """Names of the metrics that an evaluation gave."""
    return [name for name, value in row.items() if name not in COLUMNS and value is not None]


def recorded_metrics(evaluations: Evaluations) -> list[str]:
    """Names of the metrics that any of the runs has recorded, in the order in which they are shown."""
    return in_order(
        name for runs in evaluations.values() for rows in runs for row in rows for name in metrics_in(row)
    )


def metric_of(records: Sequence[RunRecord], metric: str) -> NamedMetric:
    """A metric by its name, with the direction that the runs' learners recorded."""
    return NamedMetric.of(metric, {k: v for run in records for k, v in run.higher_is_better.items()})


def choose_metric(
    records: Sequence[RunRecord], evaluations: Evaluations, metric: str | None, target: float | None
) -> NamedMetric:
    """Choose the metric that runs are compared by.

    Args:
        records: The runs.
        evaluations: Their evaluations.
        metric: Its name. None means the accuracy if it was recorded, else the first metric, else the loss.
        target: A value of it. None means none.

    Raises:
        UsageError: No run has recorded the metric, or it cannot reach the target.
    """
    check_target(metric, target)
    known = recorded_metrics(evaluations)
    if metric is not None and known and metric not in known:
        raise UsageError(f"metric {metric!r} was not recorded: the runs have {', '.join(known)}")
    return metric_of(records, metric or first_shown(known))
