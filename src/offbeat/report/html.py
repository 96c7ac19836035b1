"""One self-contained interactive page that compares runs: nothing is loaded from anywhere else."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import plotly.offline
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from offbeat.report.activity import Activity
from offbeat.report.claims import cells, claims_of, findings
from offbeat.report.curves import AXES, MEASURES, make_curves
from offbeat.report.distributions import participation, staleness_histograms
from offbeat.report.interactive import curve_figure, participation_figure, staleness_figure, timeline_figure
from offbeat.report.palette import GROUPS_TOLD_APART, Styles, choose_styles
from offbeat.report.records import RunLike, group_runs
from offbeat.report.render import relative_text, to_cells
from offbeat.report.table import Table, make_table, read_activities
from offbeat.report.timeline import Timeline, make_timeline
from offbeat.report.units import duration_text, percent, seed_list

MAX_TIMELINES = 24
MAX_CURVE_POINTS = 3000

Groups = Mapping[str, Sequence[RunLike]]

_TEMPLATES = Environment(loader=PackageLoader("offbeat.report"), autoescape=True, undefined=StrictUndefined,
                         trim_blocks=True, lstrip_blocks=True)  # fmt: skip
_TEMPLATES.filters["duration"] = duration_text
_TEMPLATES.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}


def write_html(
    records: Sequence[RunLike],
    out: Path,
    *,
    target: float | None = None,
    baseline: str | None = None,
    title: str = "Offbeat report",
) -> Path:
    """Write the page that compares some runs. Long runs are thinned, and the page says where.

    Args:
        records: The runs; those with the same label are seeds of one experiment.
        out: The file to write; its directory is made.
        target: An accuracy in (0, 1] whose first time is measured.
        baseline: The label that times are relative to.
        title: The heading of the page.

    Returns:
        The file.

    Raises:
        UsageError: As `make_table` does.
    """
    groups = group_runs(records)
    activities = read_activities(groups)
    table = make_table(records, target=target, baseline=baseline, activities=activities)
    styles = choose_styles(groups)
    timelines = _timelines(groups)
    data = {
        **_curves(records, styles, target),
        "timelines": [
            {"label": label, "runs": [_timeline(timeline, styles) for timeline in timelines[label]]}
            for label in timelines
        ],
        "staleness": _staleness(activities, styles),
        "participation": _participation(groups, activities, styles),
    }
    left_out = len(records) - sum(map(len, timelines.values()))
    out.parent.mkdir(parents=True, exist_ok=True)
    summary = to_cells(table)
    page = _TEMPLATES.get_template("report.html").stream(
        title=title,
        facts=_facts(groups),
        colours={label: style.colour for label, style in styles.items()},
        cards=_cards(table),
        summary=summary,
        best=_best(table),
        notes=table.notes,
        claims=_claims(groups),
        groups_told_apart=GROUPS_TOLD_APART,
        left_out=left_out,
        runs=[run for group in groups.values() for run in group],
        recipes=_recipes(groups),
        data=data,
        css=_file("report.css"),
        js=_file("report.js"),
        plotly=Markup(plotly.offline.get_plotlyjs()),
    )
    page.dump(str(out), encoding="utf-8")
    return out


def _curves(records: Sequence[RunLike], styles: Styles, target: float | None) -> dict[str, Any]:
    points = max(60, min(400, MAX_CURVE_POINTS // len(styles)))
    figures = {}
    for measure in MEASURES:
        for axis in AXES:
            if curves := make_curves(records, axis, measure, points):
                figures[f"{measure}/{axis}"] = curve_figure(curves, styles, target)
    first = "accuracy" if "accuracy/time" in figures or "loss/time" not in figures else "loss"
    return {"curves": figures, "first_measure": first}


def _timelines(groups: Groups) -> dict[str, list[Timeline]]:
    """Read at most MAX_TIMELINES timelines, the same number of the lowest seeds of each label."""
    each = max(1, MAX_TIMELINES // len(groups))
    return {
        label: [make_timeline(run) for run in runs[:each]]
        for label, runs in list(groups.items())[:MAX_TIMELINES]
    }


def _timeline(timeline: Timeline, styles: Styles) -> dict[str, Any]:
    figure = timeline_figure(timeline, styles[timeline.label]) if timeline.clients else None
    return {"seed": timeline.seed, "caption": timeline.caption, "figure": figure}


def _staleness(activities: Mapping[str, Sequence[Activity]], styles: Styles) -> Any:
    if not any(activity.staleness for group in activities.values() for activity in group):
        return None
    return staleness_figure(staleness_histograms(activities), styles)


def _participation(groups: Groups, activities: Mapping[str, Sequence[Activity]], styles: Styles) -> Any:
    parts = [participation(runs[0], activities[label][0]) for label, runs in groups.items()]
    return participation_figure(parts, styles) if any(part.clients for part in parts) else None


def _file(name: str) -> Markup:
    """A file of this package, which is not escaped."""
    return Markup((files("offbeat.report") / name).read_text(encoding="utf-8"))


def _facts(groups: Groups) -> list[str]:
    runs = [run for group in groups.values() for run in group]
    clients = sorted({run.clients for run in runs})
    fleet = f"{clients[0]}-{clients[-1]}" if len(clients) > 1 else str(clients[0])
    return [
        _plural(len(groups), "label"),
        _plural(len(runs), "run"),
        f"{fleet} client{'s' if fleet != '1' else ''}",
        seed_list(sorted({run.seed for run in runs})),
        f"up to {duration_text(max(run.duration for run in runs))} of virtual time",
    ]


def _plural(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _cards(table: Table) -> list[dict[str, str]]:
    """Show the best label by time, by accuracy and by idleness, where there is a choice."""
    cards = []
    if timed := [row for row in table.rows if row.relative is not None and row.time is not None]:
        row = min(timed, key=lambda row: row.relative or 0.0)
        mean = duration_text(row.time.mean) if row.time else ""
        text = f"first to {percent(table.target or 0)}: {row.label}, {relative_text(row.relative)}"
        cards.append({"value": mean, "text": text, "label": row.label})
    if accurate := [row for row in table.rows if row.accuracy is not None]:
        row = max(accurate, key=lambda row: row.accuracy.mean if row.accuracy else 0.0)
        value = f"{100 * row.accuracy.mean:.1f} %" if row.accuracy else ""
        cards.append({"value": value, "text": f"best accuracy: {row.label}", "label": row.label})
    if busy := [row for row in table.rows if row.idle is not None]:
        row = min(busy, key=lambda row: row.idle.mean if row.idle else 0.0)
        value = f"{100 * row.idle.mean:.1f} %" if row.idle else ""
        cards.append({"value": value, "text": f"least client time idle: {row.label}", "label": row.label})
    return cards


def _best(table: Table) -> set[tuple[str, int]]:
    """The cells of the summary, by label and column, that no other label exceeds."""
    accuracies = [row.accuracy.mean for row in table.rows if row.accuracy]
    relatives = [row.relative for row in table.rows if row.relative is not None]
    best = {(row.label, 2) for row in table.rows if row.accuracy and row.accuracy.mean == max(accuracies)}
    fastest = [row.label for row in table.rows if row.relative is not None and row.relative == min(relatives)]
    return best | {(label, column) for label in fastest for column in (3, 4)}


def _claims(groups: Groups) -> list[tuple[str, ...]]:
    """What the paper says, as the recipe of the first run has it, beside what the runs show."""
    first = next(iter(groups.values()))[0]
    return [(one.says, *cells(one)) for one in findings(groups, claims_of(first.recipe))]


def _recipes(groups: Groups) -> Iterator[tuple[str, str, str]]:
    """Each distinct recipe of each label once, with the seeds that used it."""
    for label, runs in groups.items():
        users: dict[str, list[int]] = {}
        for run in runs:
            text = "no recipe was recorded" if run.recipe is None else _yaml(run.recipe, run.seed)
            users.setdefault(text, []).append(run.seed)
        for text, seeds in users.items():
            yield label, seed_list(seeds), text


def _yaml(recipe: dict[str, Any], seed: int) -> str:
    """Write a recipe, without the run's own seed: it stands beside the label."""
    shared = {key: value for key, value in recipe.items() if (key, value) != ("seed", seed)}
    text: str = yaml.safe_dump(shared, sort_keys=False, allow_unicode=True, width=100)
    return text
