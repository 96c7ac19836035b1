"""The figure of an item, drawn from rows and reduced curves: curves, bars or lines."""

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from offbeat.report.curves import CURVES_WITH_BANDS, Curve, in_shown_units, make_curve
from offbeat.report.figures import LINE_STYLES, blank_figure, plain, save, style_axes
from offbeat.report.palette import INK, MUTED, Styles, choose_styles
from offbeat.report.static import draw_curve
from offbeat.verdicts.cost import Cost
from offbeat_papers.arm_rows import ItemRows
from offbeat_papers.interval import interval
from offbeat_papers.rows import Results, RunCurve
from offbeat_papers.study import COSTS

_HATCH = "////"
_WIDE = 3
"""Most panels beside each other."""


def write_figure(rows: ItemRows, results: Results, path: Path) -> Path | None:
    """Draw an item as its study says.

    Args:
        rows: The item with its rows.
        results: Where the curves are.
        path: File to write: PNG, SVG or PDF, as it ends.

    Returns:
        The path; None where the item has no figure, or nothing of it was run.
    """
    kind = rows.item.figure
    if kind is None or not rows.made:
        return None
    styles = choose_styles(rows.study.item_labels(rows.name))
    if kind == "curves":
        figure = curves_figure(rows, results.curves(rows.study.name), styles)
    else:
        figure = _amounts(rows, styles, bars=kind == "bars")
    return None if figure is None else save(figure, path)


def curves_figure(
    rows: ItemRows, curves: Mapping[tuple[str, str], RunCurve], styles: Styles
) -> Figure | None:
    """Draw an item's curves in a panel for each column; None where nothing was run."""
    panels: dict[str, list[Curve]] = {}
    for arm in rows.arms():
        runs = [curves.get((row.digest, rows.metric)) for row in rows.runs[arm].values()]
        points = [
            [{"t": t, rows.metric: v} for t, v in zip(run.seconds, run.values, strict=True)]
            for run in runs if run is not None
        ]  # fmt: skip
        found = make_curve(arm[0], points, "time", rows.measure)
        if found is not None:
            panels.setdefault(arm[1], []).append(found)
    if not panels:
        return None
    wide = min(_WIDE, len(panels))
    figure = blank_figure(4.2 * wide + 1.5, 3.4 * ceil(len(panels) / wide))
    axes = figure.subplots(ceil(len(panels) / wide), wide, squeeze=False).flat
    lines = {}
    for ax, (column, drawn) in zip(axes, panels.items(), strict=False):
        title, measure, shown = in_shown_units(drawn)
        _style(ax, column)
        for curve in shown:
            (lines[curve.label],) = draw_curve(
                ax, curve, styles[curve.label], band=len(drawn) <= CURVES_WITH_BANDS
            )
        if (target := rows.targets.get(column)) is not None and rows.item.shows in COSTS:
            ax.axhline(rows.measure.scale * target, color=MUTED, linewidth=1, linestyle="--")
        ax.set(xlabel=title, ylabel=plain(measure))
        ax.set_xlim(left=0)
    for ax in list(axes)[len(panels) :]:
        ax.set_visible(False)
    _legend(figure, lines)
    return figure


def _amounts(rows: ItemRows, styles: Styles, *, bars: bool) -> Figure | None:
    """The item's values by column: bars in groups, or a line for each label; with 95 % intervals."""
    arms = list(rows.arms())
    columns = list(dict.fromkeys(column for _, column in arms))
    labels = list(dict.fromkeys(label for label, _ in arms))
    figure = blank_figure(max(5.0, 1.1 * len(columns) * (0.16 * len(labels) if bars else 1.0) + 3.0), 3.8)
    ax = figure.subplots()
    _style(ax, "")
    handles, unreached = {}, False
    for place, label in enumerate(labels):
        column_means = [(k, _mean(rows, (label, column))) for k, column in enumerate(columns)]
        means = [(k, mean) for k, mean in column_means if mean is not None]
        if not means:
            continue
        width = 0.8 / len(labels)
        x = [k + (place - (len(labels) - 1) / 2) * width * bars for k, _ in means]
        y = [mean for _, (mean, _, _) in means]
        errors = [[mean - low for _, (mean, low, _) in means], [high - mean for _, (mean, _, high) in means]]
        style = styles[label]
        if bars:
            early = [_early(rows, (label, columns[k])) for k, _ in means]
            hatches = [_HATCH if each else "" for each in early]
            unreached |= any(early)
            ax.bar(x, y, width * 0.9, color=style.colour, hatch=hatches, edgecolor="white", lw=0)
        line = ax.errorbar(
            x, y, errors, color=INK if bars else style.colour, capsize=2, linewidth=0 if bars else 1.6,
            elinewidth=1, linestyle=LINE_STYLES[style.dash], marker="" if bars else "o", markersize=4,
        )  # fmt: skip
        handles[label] = Patch(color=style.colour) if bars else line
    ax.set_xticks(range(len(columns)), [plain(column) for column in columns])
    if len(columns) > _WIDE:
        ax.tick_params(axis="x", rotation=30)
    ax.set_ylabel(_title(rows))
    if unreached:
        ax.set_title("hatched: a run ended before the target", loc="left", fontsize=9, color=INK)
    _legend(figure, handles)
    return figure if handles else None


def _mean(rows: ItemRows, arm: tuple[str, str]) -> tuple[float, float, float] | None:
    scale = 1.0 if rows.item.shows in COSTS else rows.measure.scale
    amounts = rows.amounts(arm, rows.item.shows).values()
    values = [scale * (amount.amount if isinstance(amount, Cost) else amount) for amount in amounts]
    found = interval(values)
    if found is None:
        return None
    # A cost is never negative: the interval of a few runs that differ much would be.
    least = 0.0 if rows.item.shows in COSTS else found.low
    return found.mean, max(least, found.low), found.high


def _early(rows: ItemRows, arm: tuple[str, str]) -> bool:
    """Whether a run of an arm ended before the target: its bar is then too short."""
    amounts = rows.amounts(arm, rows.item.shows).values()
    return any(isinstance(amount, Cost) and not amount.reached for amount in amounts)


def _title(rows: ItemRows) -> str:
    shows = rows.item.shows
    if shows in COSTS:
        return f"{shows} to the target{' (s)' if shows == 'time' else ''}"
    return plain(f"{shows} {rows.measure.title}")


def _style(ax: Axes, title: str) -> None:
    style_axes(ax)
    ax.set_title(plain(title), loc="left", fontsize=10, color=INK)


def _legend(figure: Figure, handles: Mapping[str, Any]) -> None:
    names: Sequence[str] = [plain(label) for label in handles]
    figure.legend(list(handles.values()), names, frameon=False, fontsize=8, loc="outside right upper")
