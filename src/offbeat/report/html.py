"""One self-contained interactive page that compares runs: nothing is loaded from anywhere else."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import plotly.offline
import yaml

from offbeat.report.activity import Activity
from offbeat.report.assets import SCRIPT, STYLE
from offbeat.report.claims import cells, claims_of, findings
from offbeat.report.curves import AXES, MEASURES, make_curves
from offbeat.report.distributions import participation, staleness_histograms
from offbeat.report.interactive import curve_figure, participation_figure, staleness_figure, timeline_figure
from offbeat.report.palette import GROUPS_TOLD_APART, Styles, styles
from offbeat.report.records import RunLike, group_runs
from offbeat.report.render import relative_text, to_cells
from offbeat.report.table import Table, make_table, read_activities
from offbeat.report.timeline import Timeline, make_timeline
from offbeat.report.units import duration_text, percent, seed_list

MAX_TIMELINES = 24
MAX_CURVE_POINTS = 3000

Groups = Mapping[str, Sequence[RunLike]]

# The browser itself refuses anything from outside, whatever the data may contain.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)


def write_html(
    records: Sequence[RunLike],
    out: Path,
    *,
    target: float | None = None,
    baseline: str | None = None,
    title: str = "Offbeat report",
) -> Path:
    """Write the page that compares some runs to the file `out` and return it.

    `target` is an accuracy in (0, 1], `baseline` the label that times are relative to (see make_table).
    Long runs are thinned, and the page says where. Raises UsageError as make_table does.
    """
    groups = group_runs(records)
    activities = read_activities(groups)
    table = make_table(records, target=target, baseline=baseline, activities=activities)
    style = styles(groups)
    timelines = _timelines(groups)
    data = {
        **_curves(records, style, target),
        "timelines": [
            {"label": label, "runs": [_timeline(timeline, style) for timeline in timelines[label]]}
            for label in timelines
        ],
        "staleness": _staleness(activities, style),
        "participation": _participation(groups, activities, style),
    }
    left_out = len(records) - sum(map(len, timelines.values()))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(_page(groups, table, style, data, title, left_out), encoding="utf-8")
    return out


def _curves(records: Sequence[RunLike], style: Styles, target: float | None) -> dict[str, Any]:
    points = max(60, min(400, MAX_CURVE_POINTS // len(style)))
    figures = {}
    for measure in MEASURES:
        for axis in AXES:
            if curves := make_curves(records, axis, measure, points):
                figures[f"{measure}/{axis}"] = curve_figure(curves, style, target)
    first = "accuracy" if "accuracy/time" in figures or "loss/time" not in figures else "loss"
    return {"curves": figures, "first_measure": first}


def _timelines(groups: Groups) -> dict[str, list[Timeline]]:
    """Read at most MAX_TIMELINES timelines, the same number of the lowest seeds of each label."""
    each = max(1, MAX_TIMELINES // len(groups))
    return {
        label: [make_timeline(run) for run in runs[:each]]
        for label, runs in list(groups.items())[:MAX_TIMELINES]
    }


def _timeline(timeline: Timeline, style: Styles) -> dict[str, Any]:
    figure = timeline_figure(timeline, style[timeline.label]) if timeline.clients else None
    return {"seed": timeline.seed, "caption": timeline.caption, "figure": figure}


def _staleness(activities: Mapping[str, Sequence[Activity]], style: Styles) -> Any:
    if not any(activity.staleness for group in activities.values() for activity in group):
        return None
    return staleness_figure(staleness_histograms(activities), style)


def _participation(groups: Groups, activities: Mapping[str, Sequence[Activity]], style: Styles) -> Any:
    parts = [participation(runs[0], activities[label][0]) for label, runs in groups.items()]
    return participation_figure(parts, style) if any(part.clients for part in parts) else None


def _page(
    groups: Groups, table: Table, style: Styles, data: dict[str, Any], title: str, left_out: int
) -> str:
    more = f" Timelines of {left_out} more runs were left out to keep the page small." if left_out else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="color-scheme" content="light">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<header>
<h1>{escape(title)}</h1>
<p class="facts">{escape(_facts(groups))}</p>
</header>
<noscript><section>The figures of this page need JavaScript; the tables do not.</section></noscript>
<div class="cards">{_cards(table, style)}</div>
<section aria-labelledby="h-summary">
<h2 id="h-summary">Summary</h2>
<div class="scroll">{_summary(table, style)}</div>
{"".join(f'<p class="note">{escape(note)}</p>' for note in table.notes)}
</section>
{_claims(groups)}
<section aria-labelledby="h-curves">
<div class="bar"><h2 id="h-curves">Learning curves</h2><div class="controls">
{_switch("measure", "What to show", (("accuracy", "Accuracy"), ("loss", "Loss")))}
{_switch("axis", "Against what", (("time", "Time"), ("versions", "Versions"), ("bytes", "Bytes")))}
</div></div>
<div id="curves" class="plot"></div>
<p class="note">Line: mean over seeds; band: ± one standard deviation. Between evaluations the last value
holds. A curve ends where the first of its seeds ends; long ones are thinned to a few hundred points.</p>
</section>
<section aria-labelledby="h-timeline">
<div class="bar"><h2 id="h-timeline">Client timeline</h2><div class="controls">
<select id="timeline-label" aria-label="Label"></select>
<select id="timeline-seed" aria-label="Seed"></select>
</div></div>
<div id="timeline" class="plot"></div>
<p class="note" id="timeline-caption"></p>
<p class="note">Numbers in the bars are the local steps done; point at a bar or a mark for what it is.
Where updates arrive in groups, the colour is the group's,
and colours repeat after {GROUPS_TOLD_APART} groups.{more}</p>
</section>
<div class="pair">
<section aria-labelledby="h-staleness">
<h2 id="h-staleness">Staleness</h2>
<div id="staleness" class="plot"></div>
<p class="note">Versions published while the update was computed; all seeds.</p>
</section>
<section aria-labelledby="h-participation">
<h2 id="h-participation">Participation</h2>
<div id="participation" class="plot"></div>
<p class="note">Bars: each client's share of the updates that arrived; dashes: its share of the samples.
The lowest seed of each label.</p>
</section>
</div>
<section aria-labelledby="h-runs">
<h2 id="h-runs">Runs</h2>
<div class="scroll">{_runs(groups, style)}</div>
</section>
<section aria-labelledby="h-configuration">
<div class="bar"><h2 id="h-configuration">Configuration</h2></div>
{_configuration(groups, style)}
</section>
<footer>All times are virtual: seconds of the simulated clients and their network.</footer>
</main>
<script type="application/json" id="page-data">{_script_json(data)}</script>
<script>{plotly.offline.get_plotlyjs()}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""


def _facts(groups: Groups) -> str:
    runs = [run for group in groups.values() for run in group]
    clients = sorted({run.clients for run in runs})
    fleet = f"{clients[0]}-{clients[-1]}" if len(clients) > 1 else str(clients[0])
    counts = (
        _plural(len(groups), "label"),
        _plural(len(runs), "run"),
        f"{fleet} client{'s' if fleet != '1' else ''}",
        seed_list(sorted({run.seed for run in runs})),
        f"up to {duration_text(max(run.duration for run in runs))} of virtual time",
    )
    return " · ".join(counts)


def _plural(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _cards(table: Table, style: Styles) -> str:
    """Show the best label by time, by accuracy and by idleness, where there is a choice."""
    cards = []
    if timed := [row for row in table.rows if row.relative is not None and row.time is not None]:
        row = min(timed, key=lambda row: row.relative or 0.0)
        mean = duration_text(row.time.mean) if row.time else ""
        what = f"first to {percent(table.target or 0)}: {row.label}, {relative_text(row.relative)}"
        cards.append((mean, what, row.label))
    if accurate := [row for row in table.rows if row.accuracy is not None]:
        row = max(accurate, key=lambda row: row.accuracy.mean if row.accuracy else 0.0)
        value = f"{100 * row.accuracy.mean:.1f} %" if row.accuracy else ""
        cards.append((value, f"best accuracy: {row.label}", row.label))
    if busy := [row for row in table.rows if row.idle is not None]:
        row = min(busy, key=lambda row: row.idle.mean if row.idle else 0.0)
        value = f"{100 * row.idle.mean:.1f} %" if row.idle else ""
        cards.append((value, f"least client time idle: {row.label}", row.label))
    return "".join(
        f'<div class="card" style="--colour:{style[label].colour}"><b>{escape(value)}</b>'
        f"<span>{escape(what)}</span></div>"
        for value, what, label in cards
    )


def _summary(table: Table, style: Styles) -> str:
    cells = to_cells(table)
    accuracies = [row.accuracy.mean for row in table.rows if row.accuracy]
    relatives = [row.relative for row in table.rows if row.relative is not None]
    body = []
    for row, texts in zip(table.rows, cells.rows, strict=True):
        best = set()
        if row.accuracy and row.accuracy.mean == max(accuracies):
            best.add(2)
        if row.relative is not None and row.relative == min(relatives):
            best |= {3, 4}
        rest = "".join(
            f'<td class="best">{escape(text)}</td>' if k in best else f"<td>{escape(text)}</td>"
            for k, text in enumerate(texts[1:], 1)
        )
        body.append(f"<tr><td>{_name(style, row.label)}</td>{rest}</tr>")
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in cells.heads)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _claims(groups: Groups) -> str:
    """What the paper says, as the recipe of the first run has it, beside what the runs show."""
    first = next(iter(groups.values()))[0]
    found = findings(groups, claims_of(first.recipe))
    if not found:
        return ""
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in (one.says, *cells(one))) + "</tr>"
        for one in found
    )
    heads = ("the paper says", "here", "gap", "seeds", "holds")
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    return f"""<section aria-labelledby="h-claims">
<h2 id="h-claims">What the paper claims</h2>
<div class="scroll"><table class="runs"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>
<p class="note">Means over the last fifth of each run, seed by seed; the gap is positive where the claim has
it so, ± one standard deviation over the seeds.</p>
</section>"""


def _name(style: Styles, label: str) -> str:
    swatch = f'<span class="swatch" style="background:{style[label].colour}"></span>'
    return f'<span class="name">{swatch}<span>{escape(label)}</span></span>'


def _switch(sets: str, name: str, options: Sequence[tuple[str, str]]) -> str:
    buttons = "".join(
        f'<button type="button" data-sets="{sets}" data-to="{to}">{words}</button>' for to, words in options
    )
    return f'<div class="switch" role="group" aria-label="{name}">{buttons}</div>'


def _runs(groups: Groups, style: Styles) -> str:
    heads = ("label", "algorithm", "seed", "clients", "virtual time", "evaluations", "status")
    body = []
    for label, runs in groups.items():
        for run in runs:
            status = run.status + (f": {run.stop_reason}" if run.stop_reason else "")
            texts = (
                run.algorithm,
                str(run.seed),
                str(run.clients),
                duration_text(run.duration),
                str(len(run.metrics)),
                status,
            )
            rest = "".join(f"<td>{escape(text)}</td>" for text in texts)
            body.append(f"<tr><td>{_name(style, label)}</td>{rest}</tr>")
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    return f'<table class="runs"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'


def _configuration(groups: Groups, style: Styles) -> str:
    """Show each distinct recipe of each label once, with the seeds that used it."""
    parts = []
    for label, runs in groups.items():
        users: dict[str, list[int]] = {}
        for run in runs:
            text = "no recipe was recorded" if run.recipe is None else _yaml(run.recipe, run.seed)
            users.setdefault(text, []).append(run.seed)
        parts += [
            f"<details><summary>{_name(style, label)}"
            f"<small>{escape(seed_list(seeds))}</small></summary><pre>{escape(text)}</pre></details>"
            for text, seeds in users.items()
        ]
    return "".join(parts)


def _yaml(recipe: dict[str, Any], seed: int) -> str:
    """Write a recipe, without the run's own seed: it stands beside the label."""
    shared = {key: value for key, value in recipe.items() if (key, value) != ("seed", seed)}
    text: str = yaml.safe_dump(shared, sort_keys=False, allow_unicode=True, width=100)
    return text


def _script_json(data: dict[str, Any]) -> str:
    """Write JSON that can stand inside a script element: no tag or comment can begin in it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
