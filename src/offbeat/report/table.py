"""The table that compares labels over their seeds, in the form of FedCompass's Table 1."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from offbeat.core.errors import UsageError
from offbeat.core.metric_names import NamedMetric, finite
from offbeat.report.activity import Activity, read_activity
from offbeat.report.records import Evaluations, Rows, choose_metric, group_runs, read_evaluations
from offbeat.runs.record import RunRecord

DEFAULT_BASELINE = "fedcompass"

Times = Sequence[float | None]
"""When each seed of a label first reached the target; None where it did not."""


@dataclass(frozen=True, slots=True)
class Stat:
    """Mean and standard deviation (ddof = 1; 0 for a single value) over `n` seeds."""

    mean: float
    std: float
    n: int


@dataclass(frozen=True, slots=True)
class TableRow:
    """One label over its seeds; None where there is nothing to take a mean of.

    `best` and `final` are the best value of the metric in each seed and that of its last evaluation (shares
    in [0, 1]), without the seeds where it is undefined; `time` the virtual seconds to first
    reach the target, over the `reached` seeds that did; `relative` that time over the baseline's, None
    if at least half of the seeds of either failed; `versions` and `tasks` (arrived updates) are counts;
    `staleness` is in versions; `idle` a share of the clients' time in the fleet.
    """

    label: str
    seeds: int
    best: Stat | None
    final: Stat | None
    time: Stat | None
    reached: int
    relative: float | None
    versions: Stat | None
    tasks: Stat | None
    staleness: Stat | None
    idle: Stat | None


@dataclass(frozen=True, slots=True)
class Table:
    """A comparison of labels: its rows, their metric, what they are relative to, notes for the reader."""

    rows: tuple[TableRow, ...]
    measure: NamedMetric
    baseline: str
    target: float | None
    notes: tuple[str, ...]


def make_table(
    records: Sequence[RunRecord],
    *,
    target: float | None = None,
    metric: str | None = None,
    baseline: str | None = None,
    activities: Mapping[str, Sequence[Activity]] | None = None,
    evaluations: Evaluations | None = None,
) -> Table:
    """Compare the labels of some runs.

    Args:
        records: The runs; those with the same label are seeds of one experiment.
        target: A value of the metric whose first time is measured; for a share, in (0, 1].
        metric: The metric. None means the accuracy if it was recorded, else the first metric, else the loss.
        baseline: The label whose time counts as 1.00x. None means "fedcompass" if it is there, or else the
            first.
        activities: The totals of each label's runs, by seed. None means that the journals are read.
        evaluations: The evaluations of each label's runs, by seed. None means that they are read.

    Returns:
        A row for each label, in order of appearance.

    Raises:
        UsageError: The target is out of range, the metric was not recorded, the baseline is unknown, there
            are no runs, or two have the same label and seed.
    """
    groups = group_runs(records)
    evaluations = evaluations or read_evaluations(groups)
    measure = choose_metric(records, evaluations, metric, target)
    baseline = _baseline(baseline, list(groups))
    activities = activities or read_activities(groups)
    times = {
        label: [_first_reach(rows, measure, target) for rows in runs] for label, runs in evaluations.items()
    }
    reference = _mean_time(times[baseline])
    rows = tuple(
        _row(label, evaluations[label], measure, activities[label], times[label], reference)
        for label in groups
    )
    notes = (*_time_notes(times, measure, target, baseline), *_run_notes(groups))
    return Table(rows, measure, baseline, target, notes)


def read_activities(groups: Mapping[str, Sequence[RunRecord]]) -> dict[str, list[Activity]]:
    """Read the journal of every run of every label, in the given order."""
    return {label: [read_activity(run) for run in runs] for label, runs in groups.items()}


def _baseline(asked: str | None, labels: list[str]) -> str:
    if asked is None:
        return DEFAULT_BASELINE if DEFAULT_BASELINE in labels else labels[0]
    if asked not in labels:
        raise UsageError(f"baseline is {asked!r}, but the runs are labelled {', '.join(map(repr, labels))}")
    return asked


def _row(
    label: str,
    runs: Sequence[Rows],
    measure: NamedMetric,
    activities: Sequence[Activity],
    times: Times,
    reference: float | None,
) -> TableRow:
    mean_time = _mean_time(times)
    relative = mean_time / reference if mean_time is not None and reference else None
    return TableRow(
        label=label,
        seeds=len(runs),
        best=_stat([measure.best(row.get(measure.name) for row in rows) for rows in runs]),
        final=_stat([_final(rows, measure) for rows in runs]),
        time=_stat(times),
        reached=sum(time is not None for time in times),
        relative=relative,
        versions=_stat([float(activity.versions) for activity in activities]),
        tasks=_stat([float(activity.arrived) for activity in activities]),
        staleness=_stat([activity.mean_staleness for activity in activities]),
        idle=_stat([activity.idle_share for activity in activities]),
    )


def _stat(values: Sequence[float | None]) -> Stat | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    std = float(np.std(known, ddof=1)) if len(known) > 1 else 0.0
    return Stat(float(np.mean(known)), std, len(known))


def _final(rows: Rows, measure: NamedMetric) -> float | None:
    """The value of the last evaluation of the metric; None where it is undefined."""
    values = [row[measure.name] for row in rows if measure.name in row]
    return finite(values[-1]) if values else None


def _first_reach(rows: Rows, measure: NamedMetric, target: float | None) -> float | None:
    if target is None:
        return None
    times = (row["t"] for row in rows if measure.reaches(row.get(measure.name), target))
    return next(map(float, times), None)


def _mean_time(times: Times) -> float | None:
    """Mean over the seeds that reached the target; None if at least half of the seeds did not."""
    reached = [time for time in times if time is not None]
    failures = len(times) - len(reached)
    return None if failures * 2 >= len(times) else float(np.mean(reached))


def _time_notes(
    times: Mapping[str, Times], measure: NamedMetric, target: float | None, baseline: str
) -> list[str]:
    if target is None:
        return ["No target was given, so there are no times to reach it."]
    shown, more = measure.value_text(target), "more" if measure.higher_is_better else "less"
    goal = f"{shown} {measure.words}" if measure.is_share else f"{measure.words} {shown}"
    notes = [
        f"Time: virtual time of the first evaluation at {goal} or {more}, over the seeds "
        f"that got there; relative to {baseline}. "
        "A relative time is “-” where at least half of the seeds did not get there."
    ]
    reference = times[baseline]
    if _mean_time(reference) is None:
        reached = sum(time is not None for time in reference)
        notes.append(
            f"No relative times: the baseline {baseline} reached the target "
            f"in {reached} of {len(reference)} seeds."
        )
    elif not _mean_time(reference):
        notes.append(f"No relative times: the baseline {baseline} was at the target from the start.")
    return notes


def _run_notes(groups: Mapping[str, Sequence[RunRecord]]) -> list[str]:
    notes = [
        f"{run.label}, seed {run.seed}, is {run.status}: its numbers are of the part that ran."
        for runs in groups.values()
        for run in runs
        if run.status != "finished"
    ]
    if len({tuple(run.seed for run in runs) for runs in groups.values()}) > 1:
        notes.append("The labels were not run with the same seeds.")
    return notes
