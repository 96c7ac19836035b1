"""The plotly figures of the interactive page, as JSON-ready dictionaries.

plotly reads a small subset of HTML in every text it shows, so all text from the data is escaped.
"""

import html
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from offbeat.report import palette
from offbeat.report.clients import ClientValues
from offbeat.report.curves import CURVES_WITH_BANDS, Curve, in_shown_units
from offbeat.report.labels import shortened
from offbeat.report.palette import Style, Styles
from offbeat.report.panels import Panel, ticks_of
from offbeat.report.privacy import Spending
from offbeat.report.timeline import Timeline
from offbeat.report.timeline_bars import Span, TrainingSpan
from offbeat.report.timeline_events import NAMES, Kind, Mark
from offbeat.report.timeline_layers import HEIGHT, bars_by_colour, points_by_kind, raised
from offbeat.units import Unit, duration_text, time_unit

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'

Figure = dict[str, Any]


def _marker(symbol: str, colour: str, size: int, edge: str = "white", width: float = 1.0) -> Figure:
    return {"symbol": symbol, "color": colour, "size": size, "line": {"color": edge, "width": width}}


MARKS: dict[Kind, Figure] = {
    "arrival": _marker("circle", palette.INK, 6),
    "lost": _marker("x", palette.LOST, 8),
    "fresh": _marker("diamond", palette.INK, 8),
    "nothing": _marker("diamond", "white", 8, palette.INK, 1.2),
    "recall": _marker("triangle-left", palette.RECALLED, 10),
    "upload": _marker("circle", palette.INK, 7),
    "stopped": _marker("line-ns-open", palette.LOST, 10, palette.LOST, 1.8),
    "dropped": _marker("circle-open", palette.LOST, 11, palette.LOST, 1.8),
}
# Pixels of a wide page; lines of a legend, which scrolls beyond half the figure.
_WIDTH, _LEGEND_LINES = 1000, 16
_BINS = 20  # of a histogram
# The whole text of a mark is in `customdata`.
_TOLD = "%{customdata}<extra></extra>"


def curve_figure(curves: Sequence[Curve], styles: Styles, target: float | None) -> Figure:
    """Draw curves of one measure against one axis: a line per label, a band of ± one deviation if few.

    Args:
        curves: The curves, one or more.
        styles: Style of each label.
        target: A value of the metric to be marked. None means no mark.
    """
    title, measure, shown = in_shown_units(curves)
    traces: list[Any] = []
    for curve in shown:
        style = styles[curve.label]
        line: Figure = {"x": _round(curve.x), "mode": "lines", "legendgroup": curve.label}
        if curve.seeds > 1 and len(shown) <= CURVES_WITH_BANDS:
            edge = line | {"line": {"width": 0, "shape": "hv"}, "hoverinfo": "skip", "showlegend": False}
            fill = {"fill": "tonexty", "fillcolor": palette.translucent(style.colour, 0.15)}
            traces.append(go.Scatter(edge | {"y": _round(curve.mean - curve.std)}))
            traces.append(go.Scatter(edge | fill | {"y": _round(curve.mean + curve.std)}))
        traces.append(
            go.Scatter(
                line,
                y=_round(curve.mean),
                customdata=_round(curve.std),
                name=_escape(curve.label),
                line={"color": style.colour, "dash": style.dash, "width": 2.2, "shape": "hv"},
                hovertemplate="%{y:.4~g} ± %{customdata:.2~g}" if curve.seeds > 1 else "%{y:.4~g}",
            )
        )
    columns = max(1, _WIDTH // (46 + 7 * max(len(curve.label) for curve in shown)))
    lines = min(_LEGEND_LINES, -(-len(shown) // columns))
    figure = go.Figure(traces, _layout(height=420 + 22 * lines, hovermode="x unified"))
    figure.update_xaxes(title=title, rangemode="tozero")
    figure.update_yaxes(title=measure)
    if target is not None:
        goal = curves[0].measure
        figure.add_hline(
            y=target * goal.scale,
            line={"color": palette.MUTED, "width": 1.2, "dash": "dash"},
            annotation={
                "text": f"target {goal.value_text(target)}",
                "font": {"color": palette.MUTED, "size": 12},
            },
            annotation_position="top left",
        )
    return _json(figure)


def timeline_figure(timeline: Timeline, style: Style) -> Figure:
    """Draw a client timeline: bars for training and waiting, arrivals, losses and aggregations.

    Args:
        timeline: The timeline, of at least one client.
        style: Style of its label.
    """
    unit = time_unit(timeline.until)
    rows_of = {client: k for k, client in enumerate(timeline.clients)}
    rows = len(rows_of)
    traces: list[Any] = []
    if timeline.waiting:
        pattern = {"shape": "/", "fgcolor": palette.WAITING_LINES, "bgcolor": palette.WAITING, "size": 5}
        traces.append(
            _bars(timeline.waiting, rows_of, unit, "waiting").update(
                customdata=[f"client waits {duration_text(wait.seconds)}" for wait in timeline.waiting],
                marker={"color": palette.WAITING, "line": {"width": 0}, "pattern": pattern},
            )
        )
    for order, group in enumerate(bars_by_colour(timeline, style)):
        traces.append(
            _bars(group.tasks, rows_of, unit, group.name).update(
                text=["" if task.steps is None else str(task.steps) for task in group.tasks],
                customdata=[_describe(task, timeline) for task in group.tasks],
                marker={"color": group.colour, "line": {"color": "white", "width": 1}},
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                textfont={"color": palette.text_on(group.colour), "size": 11},
                showlegend=order < palette.GROUPS_TOLD_APART,
            )
        )
    if timeline.aggregations:
        traces.append(_lines(timeline, rows, unit))
    traces += [
        _points(marks, timeline, rows_of, unit, kind) for kind, marks in points_by_kind(timeline).items()
    ]
    inner = max(140, min(rows * 34, 90 + rows * 20))
    figure = go.Figure(traces, _layout(height=140 + inner))
    figure.update_layout(
        barmode="overlay",
        bargap=1 - HEIGHT,
        uniformtext={"mode": "hide", "minsize": 8},
        margin={"t": 30, "b": 110},
        legend={"traceorder": "normal", "y": -58 / inner, "yanchor": "top", "entrywidth": 0},
    )
    figure.update_xaxes(
        title={"text": f"{timeline.clock} ({unit.name})", "standoff": 6},
        range=[0, 1.01 * timeline.until / unit.size],
    )
    figure.update_yaxes(
        range=[rows - 0.4, -0.6],
        tickvals=list(rows_of.values()),
        ticktext=[_escape(shortened(timeline.name(client), 24)) for client in rows_of],
        showgrid=False,
        fixedrange=True,
    )
    return _json(figure)


def _bars(spans: Sequence[Span], place: Mapping[int, int], unit: Unit, name: str) -> Any:
    return go.Bar(
        base=_round([span.start / unit.size for span in spans]),
        x=_round([span.seconds / unit.size for span in spans]),
        y=[place[span.client] for span in spans],
        orientation="h",
        name=name,
        hovertemplate=_TOLD,
    )


def _points(
    marks: Sequence[Mark], timeline: Timeline, place: Mapping[int, int], unit: Unit, kind: Kind
) -> Any:
    return go.Scatter(
        x=_round([mark.t / unit.size for mark in marks]),
        y=[place[mark.client] - raised(kind) for mark in marks],
        customdata=[
            f"<b>{_escape(timeline.name(mark.client))}</b>, task {mark.task}<br>{duration_text(mark.t)}: "
            f"{_escape(mark.words)}"
            for mark in marks
        ],
        mode="markers",
        name=NAMES[kind],
        marker=MARKS[kind],
        # The bars of these kinds have the text.
        hoverinfo="skip" if kind in ("arrival", "lost") else None,
        hovertemplate=_TOLD,
    )


def _describe(task: TrainingSpan, timeline: Timeline) -> str:
    facts = [f"<b>{_escape(timeline.name(task.client))}</b>, task {task.task}: {task.outcome}"]
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


def _lines(timeline: Timeline, rows: int, unit: Unit) -> Any:
    """Draw each aggregation as a vertical line: one trace, with gaps between them."""
    times = [aggregation.t / unit.size for aggregation in timeline.aggregations]
    notes = [f"aggregation: version {aggregation.version}" for aggregation in timeline.aggregations]
    return go.Scatter(
        x=_round([x for time in times for x in (time, time, math.nan)]),
        y=[-0.6, rows - 0.4, None] * len(times),
        customdata=[note for note in notes for _ in range(3)],
        mode="lines",
        name="aggregation",
        line={"color": palette.translucent(palette.INK, timeline.line_opacity), "width": 1, "dash": "dot"},
        hovertemplate=_TOLD,
    )


def panels_figure(panels: Sequence[Panel], styles: Styles, title: str) -> Figure:
    """Draw panels one above the other on a common x axis.

    Args:
        panels: The panels, one or more.
        styles: Style of each label.
        title: Title of the x axis.
    """
    rows = len(panels)
    titles = [_escape(panel.title) for panel in panels]
    figure = make_subplots(rows, 1, shared_xaxes=True, vertical_spacing=0.28 / rows, subplot_titles=titles)
    layout = _layout(height=90 + 105 * rows).to_plotly_json()
    figure.update_xaxes(layout.pop("xaxis"))
    figure.update_yaxes(layout.pop("yaxis") | {"rangemode": "tozero", "nticks": 4})
    figure.update_layout(layout, showlegend=False)
    figure.update_xaxes(title=title, row=rows)
    figure.update_yaxes(title="% of updates", row=(rows + 1) // 2)
    if (ticks := ticks_of(panels)) is not None:
        figure.update_xaxes(tickvals=[*ticks], ticktext=[_escape(text) for text in ticks.values()])
    for row, panel in enumerate(panels, 1):
        colour = styles[panel.label].colour
        figure.layout.annotations[row - 1].update(
            x=0, xanchor="left", font={"color": colour, "size": 13, "weight": 600}
        )
        figure.add_bar(
            x=panel.x,
            y=_round(panel.heights),
            width=panel.width,
            customdata=panel.names,
            marker={"color": colour},
            hovertemplate="%{customdata}: %{y:.3~g} % of updates<extra></extra>",
            row=row,
            col=1,
        )
        if panel.dashes:
            figure.add_scatter(
                x=panel.x,
                y=_round(panel.dashes),
                mode="markers",
                marker={"symbol": "line-ew", "size": 11, "line": {"color": palette.INK, "width": 2}},
                customdata=panel.names,
                hovertemplate="%{customdata}: %{y:.3~g} % of samples<extra></extra>",
                row=row,
                col=1,
            )
    return _json(figure)


def privacy_figure(spendings: Sequence[Spending], styles: Styles) -> Figure:
    """Draw ε over time, a line per label with its budget dashed, and beside it the clients' μ.

    Args:
        spendings: What the clients of runs have spent, of one run or more.
        styles: Style of each label.
    """
    unit = time_unit(max(max(spending.seconds, default=0.0) for spending in spendings))
    figure = make_subplots(1, 2, column_widths=[0.62, 0.38], horizontal_spacing=0.1)
    layout = _layout(height=330).to_plotly_json()
    figure.update_xaxes(layout.pop("xaxis"))
    figure.update_yaxes(layout.pop("yaxis") | {"rangemode": "tozero"})
    figure.update_layout(layout, barmode="overlay", showlegend=False)
    figure.update_xaxes(title=f"{spendings[0].clock} ({unit.name})", col=1)
    figure.update_yaxes(title="ε of the busiest client", col=1)
    figure.update_xaxes(title="μ of a client", col=2)
    figure.update_yaxes(title="clients", col=2)
    finite = [mu for spending in spendings for mu in spending.mu if math.isfinite(mu)]
    edges = np.histogram_bin_edges(finite, _BINS)
    for spending in spendings:
        colour, name = styles[spending.label].colour, _escape(shortened(spending.label, 48))
        x = [second / unit.size for second in spending.seconds]
        line = {"color": colour, "width": 2, "shape": "hv"}
        told = f"{name}: ε = %{{y:.3~g}}<extra></extra>"
        figure.add_scatter(
            x=_round(x), y=_round(spending.epsilon), mode="lines", line=line, hovertemplate=told, row=1, col=1
        )
        if spending.budget is not None:
            figure.add_hline(
                spending.budget, line={"color": colour, "width": 1, "dash": "dash"}, row=1, col=1
            )
        figure.add_bar(
            x=_round((edges[:-1] + edges[1:]) / 2),
            y=np.histogram(spending.mu, edges)[0].tolist(),
            width=_round(np.diff(edges)),
            marker={"color": colour},
            opacity=0.7,
            hovertemplate=f"{name}: %{{y}} clients<extra></extra>",
            row=1,
            col=2,
        )
    return _json(figure)


def clients_figure(groups: Sequence[Sequence[ClientValues]], styles: Styles) -> Figure:
    """Draw the clients' values: a part for each metric, in it a row for each label.

    Args:
        groups: The values of each metric by label; one metric or more.
        styles: Style of each label.
    """
    parts, lines = len(groups), sum(map(len, groups))
    figure = make_subplots(parts, 1, vertical_spacing=0.25 / parts)
    layout = _layout(height=90 * parts + 60 * lines).to_plotly_json()
    figure.update_xaxes(layout.pop("xaxis"))
    figure.update_yaxes(layout.pop("yaxis"))
    figure.update_layout(layout, showlegend=False)
    for part, values in enumerate(groups, 1):
        for row, found in enumerate(values):
            figure.add_traces(_client_traces(found, row, styles[found.label].colour), rows=part, cols=1)
        labels = [_escape(shortened(found.label, 40)) for found in values]
        figure.update_xaxes(title={"text": values[0].title, "standoff": 4}, row=part)
        figure.update_yaxes(
            tickvals=list(range(len(values))), ticktext=labels, range=[len(values) - 0.4, -0.6], row=part
        )
    return _json(figure)


def _client_traces(found: ClientValues, row: int, colour: str) -> list[Any]:
    """A band from p10 to p90, a line at the median, a point for each client, a ring around the worst."""
    places = found.places()
    worst = None if found.worst is None else found.names[found.worst]
    numbers = [n * found.scale for n in (found.p10, found.p90, found.p50) if n is not None]
    traces = []
    if len(numbers) == 3:
        low, high, median = numbers
        band = {"width": 28, "color": palette.translucent(colour, 0.15)}
        line = {"symbol": "line-ns", "size": 28, "line": {"color": colour, "width": 2}}
        told = "median %{x:.4~g}<extra></extra>"
        traces = [
            go.Scatter(x=_round([low, high]), y=[row, row], mode="lines", line=band, hoverinfo="skip"),
            go.Scatter(x=_round([median]), y=[row], mode="markers", marker=line, hovertemplate=told),
        ]
    edges = [palette.INK if name == worst else "white" for _, _, name in places]
    traces.append(
        go.Scatter(
            x=_round([value for value, _, _ in places]),
            y=_round([row + offset for _, offset, _ in places]),
            customdata=[_escape(name) + (", the worst" if name == worst else "") for _, _, name in places],
            mode="markers",
            marker={"color": colour, "size": 8, "line": {"color": edges, "width": 1.5}},
            hovertemplate="%{customdata}: %{x:.4~g}<extra></extra>",
        )
    )
    return traces


def _layout(*, height: int, hovermode: str = "closest") -> go.Layout:
    axis: Figure = {"gridcolor": palette.GRID, "linecolor": palette.AXIS, "tickcolor": palette.AXIS}
    axis |= {"ticks": "outside", "automargin": True, "zeroline": False}
    font = {"family": FONT, "color": palette.INK}
    return go.Layout(
        template="none",
        height=height,
        hovermode=hovermode,
        font=font | {"size": 13},
        margin={"l": 64, "r": 16, "t": 44, "b": 52},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "xanchor": "left"},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": palette.AXIS, "activecolor": palette.MUTED},
        hoverlabel={"bgcolor": "white", "bordercolor": palette.AXIS, "font": font},
        xaxis=axis,
        yaxis=axis,
    )


def _round(values: Any) -> list[float | None]:
    """Keep six digits: a tenth of a pixel, and a third of the page's size; gaps become null."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]


def _escape(text: str) -> str:
    return html.escape(text, quote=False)


def _json(figure: Any) -> Figure:
    loaded: Figure = json.loads(figure.to_json())
    return loaded
