"""The table that compares labels over their seeds, in the form of FedCompass's Table 1."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot

import numpy as np

from offbeat.core.errors import UsageError
from offbeat.core.metric_names import NamedMetric, finite
from offbeat.report.activity import Activity, read_activity
from offbeat.report.headline import rank_times, rank_values, time_headline, value_headline
from offbeat.report.labels import Label, group_by_label
from offbeat.report.records import Evaluations, Rows, choose_metric, clock_name, read_evaluations
from offbeat.report.statistics import BySeed, Difference, Stat, paired_difference, stat
from offbeat.runs.record import RunRecord
from offbeat.verdicts.cost import Cost

DEFAULT_BASELINE = "fedcompass"

Times = Sequence[float | None]
"""When each seed of a label first reached the target; None where it did not."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """A label's row over its seeds; None where a mean has no values.

    Attributes:
        label: The label.
        name: The label without options.
        options: Value, as text, of each option that tells it from others of its name, by dotted key.
        seeds: Number of its runs.
        best: Best value of the metric in each seed.
        final: Value of the metric in the last evaluation of each seed, without those where it is undefined.
        time: Virtual seconds until the target, over the seeds that got there.
        reached: Number of seeds that got there.
        beyond: Virtual seconds up to which a seed that did not get there was evaluated: its time is longer
            than that. The least over these seeds; None where there is none.
        relative: Mean time over that of the baseline. None where at least half of the seeds of either failed.
        relative_std: Its deviation, as those of the two times give it. None where there is none.
        versions: Versions of the global model.
        tasks: Updates that arrived.
        staleness: Mean staleness of a run's updates that arrived, in versions.
        idle: Share of the clients' time in the fleet that they did not train.
        best_difference: Of the best value from that of the baseline; None for the baseline, too.
        final_difference: Of the final value.
        time_difference: Of the virtual seconds until the target.
    """

    label: str
    name: str
    options: Mapping[str, str]
    seeds: int
    best: Stat | None
    final: Stat | None
    time: Stat | None
    reached: int
    beyond: float | None
    relative: float | None
    relative_std: float | None
    versions: Stat | None
    tasks: Stat | None
    staleness: Stat | None
    idle: Stat | None
    best_difference: Difference | None
    final_difference: Difference | None
    time_difference: Difference | None


@dataclass(frozen=True, slots=True)
class Table:
    """A comparison of labels: its rows, their metric, the baseline, notes for the reader.

    The headline says which label is first, and whether that is beyond the noise. None means that the labels
    cannot be compared.
    """

    rows: tuple[TableRow, ...]
    measure: NamedMetric
    baseline: str
    target: float | None
    notes: tuple[str, ...]
    headline: str | None = None

    @property
    def options(self) -> list[str]:
        """Dotted keys of the options in which labels of one name differ."""
        return list(dict.fromkeys(key for row in self.rows for key in row.options))


@dataclass(frozen=True, slots=True)
class _Measured:
    """Measurements of the runs of a label, by seed."""

    best: BySeed
    final: BySeed
    time: BySeed
    last: BySeed


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
    groups = group_by_label(records)
    runs = {group.label.text: group.runs for group in groups}
    evaluations = evaluations or read_evaluations(runs)
    measure = choose_metric(records, evaluations, metric, target)
    base = _baseline(baseline, [group.label for group in groups])
    activities = activities or read_activities(runs)
    measured = {label: _measure(runs[label], rows, measure, target) for label, rows in evaluations.items()}
    rows = tuple(
        _row(group.label, activities[group.label.text], measured[group.label.text], measured[base])
        for group in groups
    )
    times = {label: list(found.time.values()) for label, found in measured.items()}
    notes = (
        *_time_notes(times, measure, target, base, clock_name(records)),
        *_seed_notes(runs, base),
        *_run_notes(runs),
    )
    return Table(rows, measure, base, target, notes, _headline(runs, measured, measure, target))


def read_activities(groups: Mapping[str, Sequence[RunRecord]]) -> dict[str, list[Activity]]:
    """Read the journal of every run of every label, in the given order."""
    return {label: [read_activity(run) for run in runs] for label, runs in groups.items()}


def _baseline(asked: str | None, labels: Sequence[Label]) -> str:
    """The label that is asked for, or else the first one of that name; without being asked the usual one."""
    wanted = asked or DEFAULT_BASELINE
    texts = [label.text for label in labels if label.name == wanted]
    if any(label.text == wanted for label in labels):
        return wanted
    if asked is not None and not texts:
        known = ", ".join(repr(label.text) for label in labels)
        raise UsageError(f"baseline is {asked!r}, but the runs are labelled {known}")
    return next(iter(texts), labels[0].text)


def _measure(
    runs: Sequence[RunRecord], evaluations: Sequence[Rows], measure: NamedMetric, target: float | None
) -> _Measured:
    by_seed = {run.seed: rows for run, rows in zip(runs, evaluations, strict=True)}
    times = {seed: _first_reach(rows, measure, target) for seed, rows in by_seed.items()}
    return _Measured(
        best={seed: measure.best(row.get(measure.name) for row in rows) for seed, rows in by_seed.items()},
        final={seed: _final(rows, measure) for seed, rows in by_seed.items()},
        time=times,
        last={seed: _last(rows, measure) for seed, rows in by_seed.items()},
    )


def _row(label: Label, activities: Sequence[Activity], measured: _Measured, base: _Measured) -> TableRow:
    relative, relative_std = _relative(list(measured.time.values()), list(base.time.values()))
    return TableRow(
        label=label.text,
        name=label.name,
        options=label.options,
        seeds=len(measured.time),
        best=stat(list(measured.best.values())),
        final=stat(list(measured.final.values())),
        time=stat(list(measured.time.values())),
        reached=sum(time is not None for time in measured.time.values()),
        beyond=min(_beyond(measured), default=None),
        relative=relative,
        relative_std=None if measured is base else relative_std,
        versions=stat([float(activity.versions) for activity in activities]),
        tasks=stat([float(activity.arrived) for activity in activities]),
        staleness=stat([activity.mean_staleness for activity in activities]),
        idle=stat([activity.idle_share for activity in activities]),
        best_difference=None if measured is base else paired_difference(measured.best, base.best),
        final_difference=None if measured is base else paired_difference(measured.final, base.final),
        time_difference=None if measured is base else paired_difference(measured.time, base.time),
    )


def _beyond(measured: _Measured) -> list[float]:
    """When the seeds were last evaluated that did not get to the target."""
    return [last for seed, last in measured.last.items() if last and measured.time[seed] is None]


def _headline(
    runs: Mapping[str, Sequence[RunRecord]],
    measured: Mapping[str, _Measured],
    measure: NamedMetric,
    target: float | None,
) -> str | None:
    """Who is first to the target; without one, or where nobody got there, who is best at the end."""
    if target is None or all(_mean_time(list(found.time.values())) is None for found in measured.values()):
        ranking = rank_values(runs, {label: found.final for label, found in measured.items()}, measure)
        return None if ranking is None else value_headline(ranking, measure)
    times = rank_times(runs, {label: _costs(found) for label, found in measured.items()})
    if times is None:
        return None
    first = measured[times.labels[0]]
    return time_headline(times, _goal(measure, target), _mean_time(list(first.time.values())))


def _costs(measured: _Measured) -> dict[int, Cost]:
    """The time to the target of each seed, or that of the last evaluation where it did not get there."""
    return {
        seed: Cost(last if time is None else time, reached=time is not None)
        for seed, time in measured.time.items()
        if (last := measured.last[seed]) is not None
    }


def _goal(measure: NamedMetric, target: float) -> str:
    shown = measure.value_text(target)
    return f"{shown} {measure.words}" if measure.is_share else f"{measure.words} {shown}"


def _relative(times: Times, reference: Times) -> tuple[float | None, float | None]:
    """A mean time over another one, and the deviation that follows from theirs (to first order)."""
    mean, other = _mean_time(times), _mean_time(reference)
    if mean is None or not other:
        return None, None
    own, base = stat(times), stat(reference)
    if not mean or own is None or base is None or min(own.n, base.n) < 2:
        return mean / other, None
    return mean / other, mean / other * hypot(own.std / mean, base.std / other)


def _final(rows: Rows, measure: NamedMetric) -> float | None:
    """The value of the last evaluation of the metric; None where it is undefined."""
    values = [row[measure.name] for row in rows if measure.name in row]
    return finite(values[-1]) if values else None


def _last(rows: Rows, measure: NamedMetric) -> float | None:
    """When the metric was last evaluated and defined."""
    times = [float(row["t"]) for row in rows if finite(row.get(measure.name)) is not None]
    return times[-1] if times else None


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
    times: Mapping[str, Times], measure: NamedMetric, target: float | None, baseline: str, clock: str
) -> list[str]:
    if target is None:
        return ["No target was given, so there are no times to reach it."]
    more = "more" if measure.higher_is_better else "less"
    notes = [
        f"Time: {clock} of the first evaluation at {_goal(measure, target)} or {more}, over the seeds "
        f"that got there; relative to {baseline}. "
        "“> T”: a seed had not got there at its last evaluation, at T. "
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


def _seed_notes(groups: Mapping[str, Sequence[RunRecord]], baseline: str) -> list[str]:
    """Notes on deviations and differences, where there is more than one label."""
    if max(map(len, groups.values())) < 2:
        return ["There is one seed: no deviations, and no confidence intervals."]
    deviations = "±: one standard deviation over the seeds."
    if len(groups) < 2:
        return [deviations]
    return [
        f"{deviations} Differences: paired over the seeds in common with {baseline}, with their 95 % "
        "confidence interval (Student's t)."
    ]


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
