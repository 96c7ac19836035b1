"""The table that compares labels over their seeds, in the form of FedCompass's Table 1."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from offbeat.core.errors import UsageError
from offbeat.report.activity import Activity, read_activity
from offbeat.report.records import check_target, group_runs
from offbeat.report.units import percent
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

    `accuracy` is the best accuracy of each seed (shares in [0, 1]); `time` the virtual seconds to first
    reach the target, over the `reached` seeds that did; `relative` that time over the baseline's, None
    if at least half of the seeds of either failed; `versions` and `tasks` (arrived updates) are counts;
    `staleness` is in versions; `idle` a share of the clients' time in the fleet.
    """

    label: str
    seeds: int
    accuracy: Stat | None
    time: Stat | None
    reached: int
    relative: float | None
    versions: Stat | None
    tasks: Stat | None
    staleness: Stat | None
    idle: Stat | None


@dataclass(frozen=True, slots=True)
class Table:
    """A comparison of labels: its rows, what they are relative to, and notes for the reader."""

    rows: tuple[TableRow, ...]
    baseline: str
    target: float | None
    notes: tuple[str, ...]


def make_table(
    records: Sequence[RunRecord],
    *,
    target: float | None = None,
    baseline: str | None = None,
    activities: Mapping[str, Sequence[Activity]] | None = None,
) -> Table:
    """Compare the labels of some runs.

    Args:
        records: The runs; those with the same label are seeds of one experiment.
        target: An accuracy in (0, 1] whose first time is measured.
        baseline: The label whose time counts as 1.00x. None means "fedcompass" if it is there, or else the
            first.
        activities: The totals of each label's runs, by seed. None means that the journals are read.

    Returns:
        A row for each label, in order of appearance.

    Raises:
        UsageError: The target is out of range, the baseline is unknown, there are no runs, or two have the
            same label and seed.
    """
    check_target(target)
    groups = group_runs(records)
    baseline = _baseline(baseline, list(groups))
    activities = activities or read_activities(groups)
    times = {label: [_first_reach(run, target) for run in runs] for label, runs in groups.items()}
    reference = _mean_time(times[baseline])
    rows = tuple(_row(runs, activities[label], times[label], reference) for label, runs in groups.items())
    notes = (*_time_notes(times, target, baseline), *_run_notes(groups))
    return Table(rows, baseline, target, notes)


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
    runs: Sequence[RunRecord], activities: Sequence[Activity], times: Times, reference: float | None
) -> TableRow:
    mean_time = _mean_time(times)
    relative = mean_time / reference if mean_time is not None and reference else None
    return TableRow(
        label=runs[0].label,
        seeds=len(runs),
        accuracy=_stat([_best(run) for run in runs]),
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


def _best(run: RunRecord) -> float | None:
    return max((row["accuracy"] for row in run.metrics if row["accuracy"] is not None), default=None)


def _first_reach(run: RunRecord, target: float | None) -> float | None:
    if target is None:
        return None
    times = (row["t"] for row in run.metrics if row["accuracy"] is not None and row["accuracy"] >= target)
    return next(map(float, times), None)


def _mean_time(times: Times) -> float | None:
    """Mean over the seeds that reached the target; None if at least half of the seeds did not."""
    reached = [time for time in times if time is not None]
    failures = len(times) - len(reached)
    return None if failures * 2 >= len(times) else float(np.mean(reached))


def _time_notes(times: Mapping[str, Times], target: float | None, baseline: str) -> list[str]:
    if target is None:
        return ["No target accuracy was given, so there are no times to reach it."]
    notes = [
        f"Time: virtual time of the first evaluation at {percent(target)} accuracy or more, over the seeds "
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
