"""The table that compares labels over their seeds, in the form of FedCompass's Table 1."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from offbeat.core.errors import UsageError
from offbeat.core.metric_names import NamedMetric, finite
from offbeat.report.activity import Activity, read_activity
from offbeat.report.headline import Headline, no_time_text, time_headline, value_headline
from offbeat.report.labels import Label, LabelledRuns, group_by_label
from offbeat.report.records import Evaluations, Rows, choose_metric, clock_name, read_evaluations
from offbeat.report.relative_times import SAME, Bound, TimeRatio, mostly_reached, time_ratio
from offbeat.report.seed_statistics import BySeed, Difference, Stat, paired_difference, stat
from offbeat.runs.record import RunRecord
from offbeat.units import Unit, time_unit
from offbeat.verdicts.cost import Cost

DEFAULT_BASELINE = "fedcompass"


@dataclass(frozen=True, slots=True)
class TableRow:
    """A label's row over its seeds; None where a mean has no values.

    Attributes:
        label: The label.
        name: The label without options.
        options: Value, as text, of each option that tells it from others of its name, by dotted key.
        seeds: Number of its runs.
        diverged: Number of its runs whose training has diverged.
        best: Best value of the metric in each seed.
        final: Value of the metric in the last evaluation of each seed, without those where it is undefined.
        time: Seconds until the target, over the seeds that got there.
        reached: Number of seeds that got there.
        beyond: Seconds up to which a seed that did not get there was evaluated: its time is longer
            than that. The least over these seeds; None where there is none.
        relative: Time over that of the baseline, the geometric mean over the common seeds (`time_ratio`).
            None where at least half of the seeds of either failed.
        relative_std: Its deviation over the seeds. None for a single seed.
        relative_bound: What the seeds leave open that did not get there.
        versions: Versions of the global model.
        tasks: Updates that arrived.
        staleness: Mean staleness of a run's updates that arrived, in versions.
        idle: Share of the clients' time in the fleet that they did not train.
        at_once: Largest number of clients that trained at the same time.
        bytes: Bytes sent in both directions.
        best_difference: Of the best value from that of the baseline; None for the baseline, too.
        final_difference: Of the final value.
        time_difference: Of the seconds until the target.
    """

    label: str
    name: str
    options: Mapping[str, str]
    seeds: int
    diverged: int
    best: Stat | None
    final: Stat | None
    time: Stat | None
    reached: int
    beyond: float | None
    relative: float | None
    relative_std: float | None
    relative_bound: Bound
    versions: Stat | None
    tasks: Stat | None
    staleness: Stat | None
    idle: Stat | None
    at_once: Stat | None
    bytes: Stat | None
    best_difference: Difference | None
    final_difference: Difference | None
    time_difference: Difference | None


@dataclass(frozen=True, slots=True)
class Table:
    """A comparison of labels: its rows, their metric, the baseline, notes for the reader.

    The headline says which label is first, and whether that is beyond the noise. `first` are the labels that
    were first to the target: one, those that tie, or none where the labels cannot be compared. It is made of
    the evaluations and the totals of each label's runs, by seed.
    """

    rows: tuple[TableRow, ...]
    measure: NamedMetric
    baseline: str
    target: float | None
    notes: tuple[str, ...]
    evaluations: Evaluations = field(repr=False)
    activities: Mapping[str, Sequence[Activity]] = field(repr=False)
    headline: str | None = None
    first: tuple[str, ...] = ()

    @property
    def options(self) -> list[str]:
        """Dotted keys of the options in which labels of one name differ."""
        return list(dict.fromkeys(key for row in self.rows for key in row.options))

    @property
    def unit(self) -> Unit:
        """The unit of all times that are shown."""
        return _unit(self.rows)

    def to_pandas(self) -> Any:
        """Convert the table to a data frame: a row for each label, with the columns of a CSV file.

        Raises:
            UsageError: pandas is not installed.
        """
        # The files are made of tables, and only a frame needs them here.
        from offbeat.report.table_files import to_frame

        return to_frame(self)


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
) -> Table:
    """Compare the labels of some runs.

    Args:
        records: The runs; those with the same label are seeds of one experiment.
        target: A value of the metric whose first time is measured; for a share, in (0, 1].
        metric: The metric. None means the accuracy if it was recorded, else the first metric, else the loss.
        baseline: The label whose time counts as 1.00x. None means "fedcompass" if it is there, or else the
            first.

    Returns:
        A row for each label, in order of appearance.

    Raises:
        UsageError: The target is out of range, the metric was not recorded, the baseline is unknown, there
            are no runs, or two have the same label and seed.
    """
    groups = group_by_label(records)
    runs = {group.label.text: group.runs for group in groups}
    evaluations = read_evaluations(runs)
    measure = choose_metric(records, evaluations, metric, target)
    base = _baseline(baseline, [group.label for group in groups])
    activities = read_activities(runs)
    measured = {label: _measure(runs[label], rows, measure, target) for label, rows in evaluations.items()}
    rows = tuple(
        _row(group, activities[group.label.text], measured[group.label.text], measured[base])
        for group in groups
    )
    notes = (
        *_time_notes(measured, measure, target, base, clock_name(records)),
        *_seed_notes(runs, base),
        *_run_notes(runs),
    )
    # A label that has diverged has no place among the others, and does not keep them from theirs.
    stayed = {row.label: runs[row.label] for row in rows if not row.diverged}
    headline = _headline(stayed, {label: measured[label] for label in stayed}, measure, target, _unit(rows))
    text, first = (None, ()) if headline is None else (headline.text, headline.first)
    return Table(rows, measure, base, target, notes, evaluations, activities, text, first)


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


def _row(
    group: LabelledRuns, activities: Sequence[Activity], measured: _Measured, base: _Measured
) -> TableRow:
    label, relative = group.label, _relative(measured, base)
    return TableRow(
        label=label.text,
        name=label.name,
        options=label.options,
        seeds=len(measured.time),
        diverged=sum(run.diverged for run in group.runs),
        best=stat(list(measured.best.values())),
        final=stat(list(measured.final.values())),
        time=stat(list(measured.time.values())),
        reached=sum(time is not None for time in measured.time.values()),
        beyond=min(_beyond(measured), default=None),
        relative=None if relative is None else relative.mean,
        relative_std=None if relative is None else relative.std,
        relative_bound="" if relative is None else relative.bound,
        versions=stat([float(activity.versions) for activity in activities]),
        tasks=stat([float(activity.arrived) for activity in activities]),
        staleness=stat([activity.mean_staleness for activity in activities]),
        idle=stat([activity.idle_share for activity in activities]),
        at_once=stat([float(activity.at_once) for activity in activities]),
        bytes=stat([float(activity.bytes) for activity in activities]),
        best_difference=None if measured is base else paired_difference(measured.best, base.best),
        final_difference=None if measured is base else paired_difference(measured.final, base.final),
        time_difference=None if measured is base else paired_difference(measured.time, base.time),
    )


def _beyond(measured: _Measured) -> list[float]:
    """When the seeds were last evaluated that did not get to the target."""
    return [last for seed, last in measured.last.items() if last and measured.time[seed] is None]


def _unit(rows: Sequence[TableRow]) -> Unit:
    times = [row.time.mean if row.time else row.beyond for row in rows]
    return time_unit(max((time for time in times if time is not None), default=0.0))


def _headline(
    runs: Mapping[str, Sequence[RunRecord]],
    measured: Mapping[str, _Measured],
    measure: NamedMetric,
    target: float | None,
    unit: Unit,
) -> Headline | None:
    """Who is first to the target; without one, or where too few seeds got there, who is best at the end."""
    finals = {label: found.final for label, found in measured.items()}
    ends = {label: _goodness(found, measure) for label, found in finals.items()}
    if target is None:
        return value_headline(runs, finals, measure, ends)
    times = {label: found.time for label, found in measured.items()}
    goal = _goal(measure, target)
    if not any(map(mostly_reached, times.values())):
        return value_headline(runs, finals, measure, ends, no_time_text(times, goal))
    costs = {label: _costs(found) for label, found in measured.items()}
    return time_headline(runs, times, costs, ends, goal, unit)


def _goodness(values: BySeed, measure: NamedMetric) -> float:
    """The mean of some values, of which more is better; without values nothing is worse."""
    found = stat(list(values.values()))
    if found is None:
        return -inf
    return found.mean if measure.higher_is_better else -found.mean


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


def _relative(measured: _Measured, base: _Measured) -> TimeRatio | None:
    """A label's time over that of the baseline."""
    if not mostly_reached(measured.time) or not mostly_reached(base.time):
        return None
    ratio = time_ratio(_costs(measured), _costs(base))
    return SAME if ratio is not None and measured is base else ratio


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


def _time_notes(
    measured: Mapping[str, _Measured],
    measure: NamedMetric,
    target: float | None,
    baseline: str,
    clock: str,
) -> list[str]:
    if target is None:
        return ["No target was given, so there are no times to reach it."]
    more = "more" if measure.higher_is_better else "less"
    notes = [
        f"Time: {clock} of the first evaluation at {_goal(measure, target)} or {more}, over the seeds "
        "that got there. “> T”: a seed had not got there at its last evaluation, at T. Relative time: the "
        f"geometric mean over the common seeds of the time over that of {baseline}; a seed that did not get "
        "there counts with its last evaluation, so the ratio is larger (“>”), smaller (“<”) or open (“≈”). "
        "It is “-” where at least half of the seeds did not get there."
    ]
    reference = measured[baseline].time
    if not mostly_reached(reference):
        reached = sum(time is not None for time in reference.values())
        notes.append(
            f"No relative times: the baseline {baseline} reached the target "
            f"in {reached} of {len(reference)} seeds."
        )
    elif 0.0 in reference.values():
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
        f"{run.label}, seed {run.seed}, {_state(run)}: its numbers are of the part that ran."
        for runs in groups.values()
        for run in runs
        if run.status != "finished" or run.diverged
    ]
    if len({tuple(run.seed for run in runs) for runs in groups.values()}) > 1:
        notes.append("The labels were not run with the same seeds.")
    return notes


def _state(run: RunRecord) -> str:
    return "has diverged" if run.diverged else f"is {run.status}"
