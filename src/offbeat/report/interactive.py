"""The plotly figures of the interactive page, as JSON-ready dictionaries.

plotly reads a small subset of HTML in every text it shows, so all text from the data is escaped.
"""

import html
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from offbeat.report.curves import Curve, axis_unit
from offbeat.report.distributions import Participation, StalenessHistogram
from offbeat.report.palette import (
    GRID,
    GROUPS_TOLD_APART,
    INK,
    LOST,
    MUTED,
    RECALLED,
    WAITING,
    WAITING_LINES,
    Style,
    Styles,
    group_colour,
    text_on,
    tint,
    translucent,
)
from offbeat.report.timeline import Timeline
from offbeat.report.timeline_bars import TrainingSpan
from offbeat.report.timeline_events import NAMES, Kind, Mark
from offbeat.report.units import Unit, duration_text, percent, time_unit

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'

Figure = dict[str, Any]

MARKS: dict[Kind, Figure] = {
    "fresh": {"symbol": "diamond", "color": INK, "size": 8, "line": {"color": "white", "width": 1}},
    "nothing": {"symbol": "diamond", "color": "white", "size": 8, "line": {"color": INK, "width": 1.2}},
    "recall": {
        "symbol": "triangle-left", "color": RECALLED, "size": 10, "line": {"color": "white", "width": 1}
    },
    "upload": {"symbol": "circle", "color": INK, "size": 7, "line": {"color": "white", "width": 1}},
    "dropped": {"symbol": "circle-open", "color": LOST, "size": 11, "line": {"color": LOST, "width": 1.8}},
}  # fmt: skip


def curve_figure(curves: Sequence[Curve], styles: Styles, target: float | None) -> Figure:
    """Draw curves of one measure against one axis: a line per label, and a band of ± one deviation."""
    axis, measure = curves[0].axis, curves[0].measure
    unit, title = axis_unit(axis, max(float(curve.x[-1]) for curve in curves))
    scale = 100.0 if measure == "accuracy" else 1.0
    traces: list[Any] = []
    for curve in curves:
        style, x = styles[curve.label], curve.x / unit.size
        if curve.seeds > 1:
            edge: Figure = {"x": _round(x), "mode": "lines", "line": {"width": 0, "shape": "hv"}}
            edge |= {"hoverinfo": "skip", "showlegend": False, "legendgroup": curve.label}
            fill = {"fill": "tonexty", "fillcolor": translucent(style.colour, 0.15)}
            traces.append(go.Scatter(edge | {"y": _round((curve.mean - curve.std) * scale)}))
            traces.append(go.Scatter(edge | fill | {"y": _round((curve.mean + curve.std) * scale)}))
        traces.append(
            go.Scatter(
                x=_round(x),
                y=_round(curve.mean * scale),
                customdata=_round(curve.std * scale),
                mode="lines",
                name=html.escape(curve.label, quote=False),
                legendgroup=curve.label,
                line={"color": style.colour, "dash": style.dash, "width": 2.2, "shape": "hv"},
                hovertemplate="%{y:.4~g} ± %{customdata:.2~g}" if curve.seeds > 1 else "%{y:.4~g}",
            )
        )
    figure = go.Figure(traces, _layout(height=460, hovermode="x unified"))
    figure.update_xaxes(title=title, rangemode="tozero")
    figure.update_yaxes(title="accuracy (%)" if measure == "accuracy" else "loss")
    if target is not None and measure == "accuracy":
        figure.add_hline(
            y=target * 100,
            line={"color": MUTED, "width": 1.2, "dash": "dash"},
            annotation={"text": f"target {percent(target)}", "font": {"color": MUTED, "size": 12}},
            annotation_position="top left",
        )
    return _json(figure)


def timeline_figure(timeline: Timeline, style: Style) -> Figure:
    """Draw a client timeline: bars for training and waiting, arrivals, losses and aggregations."""
    unit = time_unit(timeline.until)
    place = {client: k for k, client in enumerate(timeline.clients)}
    rows = len(place)
    traces: list[Any] = []
    if timeline.waiting:
        traces.append(_waiting_bars(timeline, place, unit))
    tasks: dict[int | None, list[TrainingSpan]] = {}
    for task in timeline.training:
        tasks.setdefault(task.group, []).append(task)
    for order, group in enumerate(sorted(tasks, key=lambda g: (g is not None, g or 0))):
        if timeline.grouped:
            name, colour = "no group" if group is None else f"group {group}", group_colour(group)
        else:
            name, colour = "training", tint(style.colour)
        bars = _training_bars(tasks[group], place, unit, name, colour)
        traces.append(bars.update(showlegend=order <= GROUPS_TOLD_APART))
    traces += _lines(timeline, rows, unit)
    for outcomes, name, marker in (
        (("arrived",), "arrival", {"symbol": "circle", "color": INK, "size": 6}),
        (("lost", "left"), "lost or left", {"symbol": "x", "color": LOST, "size": 8}),
    ):
        ends = [task for task in timeline.training if task.outcome in outcomes]
        if ends:
            xs, ys = [task.end / unit.size for task in ends], [place[task.client] for task in ends]
            marker = marker | {"line": {"color": "white", "width": 1}}
            traces.append(
                go.Scatter(x=_round(xs), y=ys, mode="markers", name=name, marker=marker, hoverinfo="skip")
            )
    traces += [_marks(marks, place, unit, kind) for kind, marks in _by_kind(timeline.marks) if marks]
    inner = max(140, min(rows * 34, 90 + rows * 20))
    figure = go.Figure(traces, _layout(height=140 + inner))
    figure.update_layout(
        barmode="overlay",
        bargap=0.24,
        uniformtext={"mode": "hide", "minsize": 8},
        margin={"t": 30, "b": 110},
        legend={"traceorder": "normal", "y": -58 / inner, "yanchor": "top", "entrywidth": 0},
    )
    figure.update_xaxes(
        title={"text": f"virtual time ({unit.name})", "standoff": 6},
        range=[0, 1.01 * timeline.until / unit.size],
    )
    figure.update_yaxes(
        range=[rows - 0.4, -0.6],
        tickvals=list(place.values()),
        ticktext=[f"client {client}" for client in place],
        showgrid=False,
        zeroline=False,
        fixedrange=True,
    )
    return _json(figure)


def _waiting_bars(timeline: Timeline, place: Mapping[int, int], unit: Unit) -> Any:
    return go.Bar(
        base=_round([wait.start / unit.size for wait in timeline.waiting]),
        x=_round([wait.seconds / unit.size for wait in timeline.waiting]),
        y=[place[wait.client] for wait in timeline.waiting],
        customdata=[duration_text(wait.seconds) for wait in timeline.waiting],
        orientation="h",
        name="waiting",
        marker={
            "color": WAITING,
            "line": {"width": 0},
            "pattern": {"shape": "/", "fgcolor": WAITING_LINES, "bgcolor": WAITING, "size": 5},
        },
        hovertemplate="client waits %{customdata}<extra></extra>",
    )


def _training_bars(
    tasks: Sequence[TrainingSpan], place: Mapping[int, int], unit: Unit, name: str, colour: str
) -> Any:
    return go.Bar(
        base=_round([task.start / unit.size for task in tasks]),
        x=_round([task.seconds / unit.size for task in tasks]),
        y=[place[task.client] for task in tasks],
        text=["" if task.steps is None else str(task.steps) for task in tasks],
        customdata=[_describe(task) for task in tasks],
        orientation="h",
        name=name,
        marker={"color": colour, "line": {"color": "white", "width": 1}},
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        textfont={"color": text_on(colour), "size": 11},
        hovertemplate="%{customdata}<extra></extra>",
    )


def _by_kind(marks: Sequence[Mark]) -> list[tuple[Kind, list[Mark]]]:
    return [(kind, [mark for mark in marks if mark.kind == kind]) for kind in MARKS]


def _marks(marks: Sequence[Mark], place: Mapping[int, int], unit: Unit, kind: Kind) -> Any:
    """What becomes of an update at the height of its arrival, the others on the upper edge of their bar."""
    up = 0.0 if kind in ("dropped", "upload") else 0.38
    return go.Scatter(
        x=_round([mark.t / unit.size for mark in marks]),
        y=[place[mark.client] - up for mark in marks],
        customdata=[
            f"<b>client {mark.client}</b>, task {mark.task}<br>"
            f"{duration_text(mark.t)}: {html.escape(mark.words, quote=False)}"
            for mark in marks
        ],
        mode="markers",
        name=NAMES[kind],
        marker=MARKS[kind],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _describe(task: TrainingSpan) -> str:
    facts = [f"<b>client {task.client}</b>, task {task.task}: {task.outcome}"]
    facts.append(f"{duration_text(task.start)} – {duration_text(task.end)} ({duration_text(task.seconds)})")
    early = task.steps is not None and task.planned is not None and task.steps < task.planned
    named = (
        ("steps", f"{task.steps} of {task.planned}" if early else task.steps),
        ("from version", task.base),
        ("staleness", task.staleness),
        ("group", task.group),
    )
    known = [f"{name} {value}" for name, value in named if value is not None]
    return "<br>".join([*facts, ", ".join(known)])


def _lines(timeline: Timeline, rows: int, unit: Unit) -> list[Any]:
    if not timeline.aggregations:
        return []
    xs = [x for a in timeline.aggregations for x in (a.t / unit.size, a.t / unit.size, math.nan)]
    ys = [y for _ in timeline.aggregations for y in (-0.6, rows - 0.4, None)]
    notes = [note for a in timeline.aggregations for note in (f"version {a.version}",) * 3]
    return [
        go.Scatter(
            x=_round(xs),
            y=ys,
            customdata=notes,
            mode="lines",
            name="aggregation",
            line={"color": translucent(INK, timeline.line_opacity), "width": 1, "dash": "dot"},
            hovertemplate="aggregation: %{customdata}<extra></extra>",
        )
    ]


def staleness_figure(histograms: Sequence[StalenessHistogram], styles: Styles) -> Figure:
    """Draw one small histogram per label, one above the other on a common axis."""
    figure = go.Figure(layout=_layout(height=90 + 105 * len(histograms)))
    width = histograms[0].width
    for k, histogram in enumerate(histograms, 1):
        starts = [i * width for i in range(len(histogram.shares))]
        names = [str(s) if width == 1 else f"{s}-{s + width - 1}" for s in starts]
        colour = styles[histogram.label].colour
        figure.add_bar(
            x=[s + (width - 1) / 2 for s in starts],
            y=_round([100 * share for share in histogram.shares]),
            width=0.86 * width,
            customdata=names,
            marker={"color": colour},
            xaxis="x",
            yaxis="y" if k == 1 else f"y{k}",
            hovertemplate="staleness %{customdata}: %{y:.3~g} % of updates<extra></extra>",
        )
        mean = "no updates" if histogram.mean is None else f"mean {histogram.mean:.2f}"
        _stack(
            figure,
            k,
            len(histograms),
            f"{html.escape(histogram.label, quote=False)} · {mean}",
            "% of updates",
            colour,
        )
    figure.update_xaxes(title="staleness (versions)", anchor=_bottom(len(histograms)), zeroline=False)
    figure.update_layout(showlegend=False, bargap=0.1)
    return _json(figure)


def participation_figure(parts: Sequence[Participation], styles: Styles) -> Figure:
    """Draw one small bar chart per label: each client's share of the updates, and of the samples."""
    figure = go.Figure(layout=_layout(height=90 + 105 * len(parts)))
    for k, part in enumerate(parts, 1):
        colour, yaxis = styles[part.label].colour, "y" if k == 1 else f"y{k}"
        figure.add_bar(
            x=list(part.clients),
            y=_round([100 * share for share in part.task_shares]),
            customdata=list(part.tasks),
            marker={"color": colour},
            xaxis="x",
            yaxis=yaxis,
            hovertemplate="client %{x}: %{customdata} updates, %{y:.3~g} % of all<extra></extra>",
        )
        figure.add_scatter(
            x=list(part.clients),
            y=_round([100 * share for share in part.sample_shares]),
            mode="markers",
            marker={"symbol": "line-ew", "size": 11, "line": {"color": INK, "width": 2}},
            xaxis="x",
            yaxis=yaxis,
            hovertemplate="client %{x}: %{y:.3~g} % of samples<extra></extra>",
        )
        title = f"{html.escape(part.label, quote=False)} · seed {part.seed}"
        if part.note:
            title += f" · {part.note}"
        _stack(figure, k, len(parts), title, "% of updates", colour)
    figure.update_xaxes(title="client", anchor=_bottom(len(parts)), zeroline=False)
    figure.update_layout(showlegend=False, bargap=0.25)
    return _json(figure)


def _stack(figure: Any, k: int, of: int, title: str, ytitle: str, colour: str) -> None:
    """Place the k-th of several small charts that share an x axis, the first on top."""
    gap = 0.28 / of if of > 1 else 0.0
    low = (of - k) / of
    high = low + 1 / of - (gap if k > 1 or of > 1 else 0.0)
    axis = {"domain": [low, high], "anchor": "x", "rangemode": "tozero", "nticks": 4, "zeroline": False}
    axis |= {"gridcolor": GRID, "automargin": True}
    if k == (of + 1) // 2:
        axis["title"] = {"text": ytitle}
    figure.update_layout({"yaxis" if k == 1 else f"yaxis{k}": axis})
    figure.add_annotation(
        x=0,
        y=high,
        xref="paper",
        yref="paper",
        xanchor="left",
        yanchor="bottom",
        text=title,
        font={"color": colour, "size": 13, "weight": 600},
        showarrow=False,
    )


def _bottom(of: int) -> str:
    return "y" if of == 1 else f"y{of}"


def _layout(*, height: int, hovermode: str = "closest") -> go.Layout:
    axis = {"gridcolor": GRID, "linecolor": "#b7c0ca", "ticks": "outside", "tickcolor": "#b7c0ca"}
    return go.Layout(
        template="none",
        height=height,
        hovermode=hovermode,
        font={"family": FONT, "size": 13, "color": INK},
        margin={"l": 64, "r": 16, "t": 44, "b": 52},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "xanchor": "left"},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": "#b7c0ca", "activecolor": MUTED},
        hoverlabel={"bgcolor": "white", "bordercolor": "#b7c0ca", "font": {"family": FONT, "color": INK}},
        xaxis=axis | {"automargin": True, "zeroline": False},
        yaxis=axis | {"automargin": True, "zeroline": False},
    )


def _round(values: Any) -> list[float | None]:
    """Keep six digits: a tenth of a pixel, and a third of the page's size; gaps become null."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]


def _json(figure: Any) -> Figure:
    loaded: Figure = json.loads(figure.to_json())
    return loaded
