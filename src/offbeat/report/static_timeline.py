"""The client timeline of one run as a static figure."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import Normal, Stroke

from offbeat.report.figures import new_figure, plain
from offbeat.report.palette import (
    GROUPS_TOLD_APART,
    INK,
    LOST,
    MUTED,
    RECALLED,
    WAITING,
    WAITING_LINES,
    Style,
    group_colour,
    text_on,
    tint,
)
from offbeat.report.timeline import Timeline
from offbeat.report.timeline_bars import TaskEnd, TrainingSpan
from offbeat.report.timeline_events import NAMES, Kind
from offbeat.report.units import Unit, time_unit

WIDTH = 12.0
INCHES_PER_DIGIT = 0.085
HEIGHT = 0.76  # of a bar, in rows
MARKS: dict[Kind, dict[str, Any]] = {
    "fresh": {"marker": "D", "s": 20, "facecolors": INK, "edgecolors": "white", "linewidths": 0.6},
    "nothing": {"marker": "D", "s": 18, "facecolors": "white", "edgecolors": INK, "linewidths": 0.9},
    "recall": {"marker": "<", "s": 34, "facecolors": RECALLED, "edgecolors": "white", "linewidths": 0.6},
    "upload": {"marker": "o", "s": 25, "facecolors": INK, "edgecolors": "white", "linewidths": 0.6},
    "dropped": {"marker": "o", "s": 62, "facecolors": "none", "edgecolors": LOST, "linewidths": 1.3},
}


def draw_timeline(timeline: Timeline, style: Style) -> Figure:
    """Draw who trained, who waited, and when the server aggregated."""
    unit = time_unit(timeline.until)
    rows = max(1, len(timeline.clients))
    figure, (ax,) = new_figure(WIDTH, 1.5 + max(1.2, min(rows * 0.42, 2.0 + rows * 0.21)))
    place = {client: k for k, client in enumerate(timeline.clients)}
    ax.grid(visible=False)
    for client, k in place.items():
        _draw_client(ax, timeline, client, k, unit, style)
    for aggregation in timeline.aggregations:
        ax.axvline(
            aggregation.t / unit.size,
            color=INK,
            alpha=timeline.line_opacity,
            linewidth=0.8,
            linestyle=(0, (1, 2)),
            zorder=3,
        )
    _draw_ends(ax, timeline, place, unit, ("arrived",), "o", INK)
    _draw_ends(ax, timeline, place, unit, ("lost", "left"), "X", LOST)
    for kind, marker in MARKS.items():
        _draw_marks(ax, timeline, place, unit, kind, marker)
    ax.set_xlim(0, 1.005 * timeline.until / unit.size or 1.0)
    ax.set_ylim(rows - 0.45, -0.55)
    ax.set_yticks(list(place.values()), [f"client {client}" for client in place])
    ax.set_xlabel(f"virtual time ({unit.name})")
    ax.set_title(plain(_caption(timeline)), loc="left", fontsize=10, color=MUTED, pad=8)
    figure.legend(
        handles=_legend(timeline, style),
        loc="outside lower center",
        ncols=10,
        frameon=False,
        fontsize=8.5,
        handlelength=1.4,
        columnspacing=1.4,
    )
    return figure


def _caption(timeline: Timeline) -> str:
    if max((task.group or 0 for task in timeline.training), default=0) <= GROUPS_TOLD_APART:
        return timeline.caption
    return f"{timeline.caption} Group colours repeat after {GROUPS_TOLD_APART}."


def _draw_client(ax: Axes, timeline: Timeline, client: int, k: int, unit: Unit, style: Style) -> None:
    waits = [(w.start / unit.size, w.seconds / unit.size) for w in timeline.waiting if w.client == client]
    low, height = k - HEIGHT / 2, HEIGHT
    ax.broken_barh(
        waits, (low, height), facecolor=WAITING, edgecolor=WAITING_LINES, hatch="////", linewidth=0
    )
    tasks = [task for task in timeline.training if task.client == client]
    colours = [_colour(task, timeline, style) for task in tasks]
    bars = [(task.start / unit.size, task.seconds / unit.size) for task in tasks]
    ax.broken_barh(bars, (low, height), facecolors=colours, edgecolor="white", linewidth=0.8, zorder=2)
    per_inch = timeline.until / (0.88 * WIDTH)  # virtual seconds per inch
    for task, colour in zip(tasks, colours, strict=True):
        if task.steps is None or task.seconds < per_inch * INCHES_PER_DIGIT * (len(str(task.steps)) + 1.5):
            continue
        middle = (task.start + task.end) / 2 / unit.size
        ax.text(
            middle,
            k,
            str(task.steps),
            ha="center",
            va="center_baseline",
            fontsize=8,
            color=text_on(colour),
            zorder=4,
            path_effects=[Stroke(linewidth=2.4, foreground=colour), Normal()],
        )


def _colour(task: TrainingSpan, timeline: Timeline, style: Style) -> str:
    return group_colour(task.group) if timeline.grouped else tint(style.colour)


def _draw_ends(
    ax: Axes,
    timeline: Timeline,
    place: dict[int, int],
    unit: Unit,
    outcomes: Sequence[TaskEnd],
    marker: str,
    colour: str,
) -> None:
    ends = [task for task in timeline.training if task.outcome in outcomes]
    ax.scatter(
        [task.end / unit.size for task in ends],
        [place[task.client] for task in ends],
        marker=marker,
        s=22,
        color=colour,
        edgecolors="white",
        linewidths=0.6,
        zorder=5,
        clip_on=False,
    )


def _draw_marks(
    ax: Axes, timeline: Timeline, place: dict[int, int], unit: Unit, kind: Kind, marker: dict[str, Any]
) -> None:
    """Dropped updates round their arrival, the others on the upper edge of their bar, clear of its number."""
    marks = [mark for mark in timeline.marks if mark.kind == kind]
    up = 0.0 if kind in ("dropped", "upload") else HEIGHT / 2
    ax.scatter(
        [mark.t / unit.size for mark in marks],
        [place[mark.client] - up for mark in marks],
        zorder=6,
        clip_on=False,
        **marker,
    )


def _legend(timeline: Timeline, style: Style) -> list[Patch | Line2D]:
    handles: list[Patch | Line2D] = []
    if timeline.grouped:
        groups = sorted({t.group for t in timeline.training}, key=lambda g: (g is not None, g or 0))
        for group in groups[:GROUPS_TOLD_APART]:
            name = "no group" if group is None else f"group {group}"
            handles.append(Patch(facecolor=group_colour(group), label=name))
    else:
        handles.append(Patch(facecolor=tint(style.colour), label="training"))
    if timeline.waiting:
        handles.append(
            Patch(facecolor=WAITING, edgecolor=WAITING_LINES, hatch="////", linewidth=0, label="waiting")
        )
    handles.append(Line2D([], [], marker="o", color=INK, linestyle="none", markersize=5, label="arrival"))
    if any(task.outcome in ("lost", "left") for task in timeline.training):
        handles.append(
            Line2D([], [], marker="X", color=LOST, linestyle="none", markersize=6, label="lost or left")
        )
    for kind, marker in MARKS.items():
        if any(mark.kind == kind for mark in timeline.marks):
            handles.append(_handle(marker, NAMES[kind]))
    handles.append(Line2D([], [], color=INK, linewidth=0.9, linestyle=":", label="aggregation"))
    return handles


def _handle(marker: dict[str, Any], label: str) -> Line2D:
    return Line2D(
        [], [], linestyle="none", label=label,
        marker=marker["marker"], markersize=marker["s"] ** 0.5, markerfacecolor=marker["facecolors"],
        markeredgecolor=marker["edgecolors"], markeredgewidth=marker["linewidths"],
    )  # fmt: skip
