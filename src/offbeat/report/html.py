"""One self-contained interactive page that compares runs: nothing is loaded from anywhere else."""

import gzip
import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from math import isclose
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from offbeat.core.metric_names import NamedMetric
from offbeat.documents import user_path
from offbeat.report.clients import client_table, client_values, each_client
from offbeat.report.curves import AXES, CURVES_WITH_BANDS, make_curves
from offbeat.report.headline import listed
from offbeat.report.interactive import (
    clients_figure,
    curve_figure,
    panels_figure,
    privacy_figure,
    timeline_figure,
)
from offbeat.report.palette import GROUPS_TOLD_APART, Style, Styles, choose_styles
from offbeat.report.panels import Panel, participation_panels, staleness_panels, times_tables
from offbeat.report.privacy import assumptions, spendings
from offbeat.report.records import (
    clock_name,
    group_runs,
    metric_of,
    recorded_metrics,
)
from offbeat.report.render import difference_cells, relative_text, stat_text, time_text, to_cells
from offbeat.report.table import Table, TableRow, make_table
from offbeat.report.timeline import Timeline, make_timeline
from offbeat.runs.record import RunRecord
from offbeat.units import duration_text, seed_list

MAX_TIMELINES = 24
MAX_CURVE_POINTS = 3000
MAX_METRICS = 200

Groups = Mapping[str, Sequence[RunRecord]]

_TEMPLATES = Environment(loader=PackageLoader("offbeat.report"), autoescape=True, undefined=StrictUndefined,
                         trim_blocks=True, lstrip_blocks=True)  # fmt: skip
_TEMPLATES.filters["duration"] = duration_text


def write_html(
    records: Sequence[RunRecord],
    out: str | Path,
    *,
    target: float | None = None,
    metric: str | None = None,
    baseline: str | None = None,
    title: str = "Offbeat report",
) -> Path:
    """Write the page that compares some runs. Long runs are thinned, and the page notes where.

    The figures' data and plotly's script are in the page, compressed: a browser unpacks them. Plotly's
    package has no smaller bundle than the whole script, which is 2.0 of the page's 2.2 MB.

    Args:
        records: The runs; those with the same label are seeds of one experiment.
        out: The file to write; its directory is made.
        target: A value of the metric whose first time is measured; for a share, in (0, 1].
        metric: The metric of the table, and the one that is shown first. None means the accuracy if it was
            recorded, else the first metric, else the loss.
        baseline: The label that times are relative to.
        title: The heading of the page.

    Returns:
        The file.

    Raises:
        UsageError: As `make_table` does.
    """
    groups = group_runs(records)
    table = make_table(records, target=target, metric=metric, baseline=baseline)
    names = recorded_metrics(table.evaluations)
    shown = {*names[:MAX_METRICS], table.measure.name}
    metrics = [metric_of(records, name) for name in names if name in shown]
    styles = choose_styles(groups)
    timelines = _timelines(groups)
    values = client_values(groups)
    spent = spendings(groups)
    data = {
        "curves": _curves(records, metrics, styles, table),
        "first_measure": table.measure.name,
        "clients": clients_figure(list(values.values()), styles) if values else None,
        "timelines": [
            {"label": label, "runs": [_timeline(timeline, styles[label]) for timeline in found]}
            for label, found in timelines.items()
        ],
        "staleness": _panels(staleness_panels(table.activities), styles, "staleness (versions)"),
        "privacy": privacy_figure(spent, styles) if spent else None,
        "participation": _panels(participation_panels(groups, table.activities), styles, "client"),
    }
    out = user_path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    page = _TEMPLATES.get_template("report.html").stream(
        title=title,
        facts=_facts(groups),
        colours={label: style.colour for label, style in styles.items()},
        headline=table.headline,
        cards=_cards(table),
        metrics=metrics,
        metrics_left_out=len(names) - len(metrics),
        summary=to_cells(table),
        labels=[row.label for row in table.rows],
        differences=difference_cells(table),
        others=[row.label for row in table.rows if row.label != table.baseline],
        baseline=table.baseline,
        best=_best(table),
        notes=table.notes,
        spent=spent,
        assumptions=assumptions(spent),
        client_table=client_table(values) if values else None,
        each_client=[(label, each_client(runs[0])) for label, runs in groups.items() if values],
        times=times_tables(groups, table.activities),
        curves_with_bands=CURVES_WITH_BANDS,
        groups_told_apart=GROUPS_TOLD_APART,
        left_out=len(records) - sum(map(len, timelines.values())),
        runs=[run for group in groups.values() for run in group],
        clock=clock_name(run for group in groups.values() for run in group),
        recipes=_recipes(groups),
        data=_encoded(gzip.compress(_json(data).encode(), mtime=0)),
        css=_file("report.css"),
        js=_file("report.js"),
        plotly=_plotly(),
    )
    page.dump(str(out), encoding="utf-8")
    return out


@cache
def _plotly() -> Markup:
    """Plotly's script, as the installed package has it."""
    return _encoded(gzip.compress(get_plotlyjs().encode(), mtime=0))


def _curves(
    records: Sequence[RunRecord],
    metrics: Sequence[NamedMetric],
    styles: Styles,
    table: Table,
) -> dict[str, Any]:
    """The figure of each metric against each axis, as "metric/axis"; fewer points where there are many."""
    points = max(60, min(400, 2 * MAX_CURVE_POINTS // (len(styles) * max(2, len(metrics)))))
    figures = {}
    for measure in metrics:
        target = table.target if measure == table.measure else None
        for axis in AXES:
            if curves := make_curves(records, axis, measure.name, points, table.evaluations):
                figures[f"{measure.name}/{axis}"] = curve_figure(curves, styles, target)
    return figures


def _timelines(groups: Groups) -> dict[str, list[Timeline]]:
    """Read at most MAX_TIMELINES timelines, the same number of the lowest seeds of each label."""
    each = max(1, MAX_TIMELINES // len(groups))
    return {
        label: [make_timeline(run) for run in runs[:each]]
        for label, runs in list(groups.items())[:MAX_TIMELINES]
    }


def _timeline(timeline: Timeline, style: Style) -> dict[str, Any]:
    figure = timeline_figure(timeline, style) if timeline.clients else None
    return {"seed": timeline.seed, "caption": timeline.caption, "figure": figure}


def _panels(panels: Sequence[Panel], styles: Styles, title: str) -> dict[str, Any] | None:
    """The figure of some panels; None where they show nothing."""
    shown = any(any((*panel.heights, *panel.dashes)) for panel in panels)
    return panels_figure(panels, styles, title) if shown else None


def _file(name: str) -> Markup:
    """A file of this package, which is not escaped."""
    return Markup((files("offbeat.report") / name).read_text(encoding="utf-8"))


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def _encoded(compressed: bytes) -> Markup:
    """Bytes as base64, in which nothing needs to be escaped."""
    return Markup(b64encode(compressed).decode())


def _facts(groups: Groups) -> list[str]:
    runs = [run for group in groups.values() for run in group]
    clients = sorted({run.clients for run in runs})
    fleet = f"{clients[0]}-{clients[-1]} clients" if len(clients) > 1 else _plural(clients[0], "client")
    return [
        _plural(len(groups), "label"),
        _plural(len(runs), "run"),
        fleet,
        seed_list(sorted({run.seed for run in runs})),
        f"up to {duration_text(max(run.duration for run in runs))} of {clock_name(runs)}",
    ]


def _plural(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _cards(table: Table) -> list[tuple[str, str, str | None]]:
    """The best labels by time, by metric and by idleness: (value, text, label); None where several tie."""
    measure = table.measure
    cards = []
    if first := _first(table):
        value = f"{time_text(first[0], table.unit)} {table.unit.name}"
        of_baseline = f", {relative_text(first[0])} the time of {table.baseline}"
        known = first[0].relative is not None and table.baseline not in [row.label for row in first]
        shown = of_baseline if known else ""
        cards.append(_card(value, f"first to {measure.value_text(table.target or 0)}", first, shown))
    means = {row.label: row.best.mean for row in _stayed(table) if row.best}
    if best := _equal_to(measure.best(means.values()), means, table):
        cards.append(
            _card(f"{stat_text(best[0].best, measure.scale)}{measure.unit}", f"best {measure.words}", best)
        )
    idle = {row.label: row.idle.mean for row in _stayed(table) if row.idle}
    if least := _equal_to(min(idle.values(), default=None), idle, table):
        cards.append(_card(f"{stat_text(least[0].idle, 100.0)} %", "least client time idle", least))
    return cards


def _card(value: str, title: str, rows: Sequence[TableRow], more: str = "") -> tuple[str, str, str | None]:
    """A card of the labels that share a place."""
    labels = [row.label for row in rows]
    return value, f"{title}: {listed(labels)}{more}", labels[0] if len(labels) == 1 else None


def _stayed(table: Table) -> list[TableRow]:
    """The rows without a run that diverged."""
    return [row for row in table.rows if not row.diverged]


def _equal_to(found: float | None, values: Mapping[str, float], table: Table) -> list[TableRow]:
    """The rows whose value is this one, but for rounding."""
    return [
        row
        for row in table.rows
        if found is not None and row.label in values and isclose(values[row.label], found, abs_tol=1e-12)
    ]


def _first(table: Table) -> list[TableRow]:
    """The labels that were first to the target, as the headline has them; none where none was.

    Labels that cannot all be compared have no headline: then they are those with the least relative time.
    """
    if table.first:
        return [row for row in table.rows if row.label in table.first]
    timed = {row.label: row.relative for row in _stayed(table) if row.relative is not None}
    return _equal_to(min(timed.values(), default=None), timed, table)


def _best(table: Table) -> set[tuple[str, int]]:
    """The cells of the summary, by label and column, that no other label exceeds."""
    found = table.measure.best(row.best.mean for row in table.rows if row.best)
    # The label, the options and the seeds come before it.
    first = 2 + len(table.options)
    best = {(row.label, first) for row in table.rows if row.best and row.best.mean == found}
    return best | {(row.label, first + column) for row in _first(table) for column in (2, 3)}


def _recipes(groups: Groups) -> Iterator[tuple[str, str, str]]:
    """Each distinct recipe of each label once, with the seeds that used it."""
    for label, runs in groups.items():
        users: dict[str, list[int]] = {}
        for run in runs:
            recipe = run.recipe_as_run
            text = "no recipe was recorded" if recipe is None else _yaml(recipe, run.seed)
            users.setdefault(text, []).append(run.seed)
        for text, seeds in users.items():
            yield label, seed_list(seeds), text


def _yaml(recipe: dict[str, Any], seed: int) -> str:
    """Write a recipe, without the run's own seed: it stands beside the label."""
    shared = {key: value for key, value in recipe.items() if (key, value) != ("seed", seed)}
    text: str = yaml.safe_dump(shared, sort_keys=False, allow_unicode=True, width=100)
    return text
