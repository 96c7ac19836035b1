"""The client timeline of one run as a static figure."""

from collections.abc import Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import FigureBase
from matplotlib.patheffects import Normal, Stroke

from offbeat.report import palette
from offbeat.report.figures import ShownFigure, add_axes, blank_figure, plain
from offbeat.report.labels import shortened
from offbeat.report.palette import Style
from offbeat.report.timeline import Timeline
from offbeat.report.timeline_bars import Span
from offbeat.report.timeline_events import NAMES, Kind
from offbeat.report.timeline_layers import HEIGHT, Bars, bars_by_colour, points_by_kind, raised
from offbeat.units import Unit, time_unit

WIDTH = 12.0
INCHES_PER_DIGIT = 0.085


def _marker(symbol: str, size: int, colour: str, edge: str = "white", width: float = 0.6) -> dict[str, Any]:
    return {"marker": symbol, "s": size, "facecolors": colour, "edgecolors": edge, "linewidths": width}


MARKS: dict[Kind, dict[str, Any]] = {
    "arrival": _marker("o", 22, palette.INK),
    "lost": _marker("X", 22, palette.LOST),
    "fresh": _marker("D", 20, palette.INK),
    "nothing": _marker("D", 18, "white", palette.INK, 0.9),
    "recall": _marker("<", 34, palette.RECALLED),
    "upload": _marker("o", 25, palette.INK),
    "stopped": _marker("|", 60, palette.LOST, palette.LOST, 1.5),
    "dropped": _marker("o", 62, "none", palette.LOST, 1.3),
}


def timeline_height(timeline: Timeline) -> float:
    """Height of a timeline in inches, so that each client has a bar that can be read."""
    rows = max(1, len(timeline.clients))
    return 1.5 + max(1.2, min(rows * 0.42, 2.0 + rows * 0.21))


def draw_timeline(timeline: Timeline, style: Style) -> ShownFigure:
    """Draw who trained, who waited, and when the server aggregated.

    Args:
        timeline: The timeline.
        style: Style of its label.

    Returns:
        The figure, with a legend of what there is.
    """
    figure = blank_figure(WIDTH, timeline_height(timeline))
    add_timeline(figure, timeline, style)
    return figure


def add_timeline(figure: FigureBase, timeline: Timeline, style: Style) -> None:
    """Draw a timeline, with its legend, in an empty figure or part of one."""
    unit = time_unit(timeline.until)
    rows = max(1, len(timeline.clients))
    (ax,) = add_axes(figure)
    row_of = {client: k for k, client in enumerate(timeline.clients)}
    ax.grid(visible=False)
    ax.set_xlim(0, 1.005 * timeline.until / unit.size or 1.0)
    ax.set_ylim(rows - 0.45, -0.55)
    ax.set_yticks(list(row_of.values()), [plain(shortened(timeline.name(client), 24)) for client in row_of])
    ax.set_xlabel(f"{timeline.clock} ({unit.name})")
    ax.set_title(plain(_caption(timeline)), loc="left", fontsize=10, color=palette.MUTED, pad=8)
    handles = _draw(ax, timeline, bars_by_colour(timeline, style), row_of, unit)
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=10,
        frameon=False,
        fontsize=8.5,
        handlelength=1.4,
        columnspacing=1.4,
    )


def _caption(timeline: Timeline) -> str:
    if max((task.group or 0 for task in timeline.training), default=0) <= palette.GROUPS_TOLD_APART:
        return timeline.caption
    return f"{timeline.caption} Group colours repeat after {palette.GROUPS_TOLD_APART}."


def _draw(
    ax: Axes, timeline: Timeline, bars: Sequence[Bars], row_of: dict[int, int], unit: Unit
) -> list[Artist | BarContainer]:
    """Draw everything within the axes; return the entries of the legend."""
    per_inch = timeline.until / (0.88 * WIDTH)  # seconds per inch
    handles: list[Artist | BarContainer] = []
    for group in bars:
        look = {"color": group.colour, "edgecolor": "white", "linewidth": 0.8, "zorder": 2}
        handles.append(_draw_bars(ax, group.tasks, row_of, unit, look | {"label": group.name}))
        for task in group.tasks:
            needed = INCHES_PER_DIGIT * (len(str(task.steps)) + 1.5)
            if task.steps is not None and task.seconds >= per_inch * needed:
                middle = (task.start + task.end) / 2 / unit.size
                _write(ax, middle, row_of[task.client], str(task.steps), group.colour)
    del handles[palette.GROUPS_TOLD_APART :]
    if timeline.waiting:
        look = {"color": palette.WAITING, "edgecolor": palette.WAITING_LINES, "hatch": "////", "linewidth": 0}
        handles.append(_draw_bars(ax, timeline.waiting, row_of, unit, look | {"label": "waiting"}))
    for kind, marks in points_by_kind(timeline).items():
        x, y = [mark.t / unit.size for mark in marks], [row_of[mark.client] - raised(kind) for mark in marks]
        handles.append(ax.scatter(x, y, zorder=5, clip_on=False, label=NAMES[kind], **MARKS[kind]))
    if timeline.aggregations:
        times = [aggregation.t / unit.size for aggregation in timeline.aggregations]
        lines = ax.vlines(times, *ax.get_ylim(), colors=palette.INK, label="aggregation")
        lines.set(alpha=timeline.line_opacity, linewidth=0.8, linestyle=(0, (1, 2)), zorder=3)
        handles.append(lines)
    return handles


def _draw_bars(
    ax: Axes, spans: Sequence[Span], place: dict[int, int], unit: Unit, look: dict[str, Any]
) -> BarContainer:
    lengths, starts = [s.seconds / unit.size for s in spans], [s.start / unit.size for s in spans]
    return ax.barh([place[s.client] for s in spans], lengths, HEIGHT, starts, **look)


def _write(ax: Axes, x: float, y: float, text: str, colour: str) -> None:
    """Write a text on a bar of that colour, legible on the lines across it too."""
    written = ax.text(x, y, text, ha="center", va="center_baseline", fontsize=8, zorder=4)
    written.set_color(palette.text_on(colour))
    written.set_path_effects([Stroke(linewidth=2.4, foreground=colour), Normal()])
