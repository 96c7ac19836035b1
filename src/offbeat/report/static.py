"""The report's figures as PNG files, drawn without any global plotting state."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from offbeat.report import curves
from offbeat.report.distributions import (
    Participation,
    StalenessHistogram,
    participation,
    staleness_histograms,
)
from offbeat.report.figures import LINE_STYLES, file_name, new_figure, plain, save
from offbeat.report.palette import INK, MUTED, Styles, choose_styles
from offbeat.report.records import RunLike, group_runs
from offbeat.report.render import relative_text
from offbeat.report.static_timeline import draw_timeline
from offbeat.report.table import Table, make_table, read_activities
from offbeat.report.timeline import make_timeline
from offbeat.report.units import percent

CURVES: tuple[tuple[curves.Quantity, curves.Axis], ...] = (
    ("accuracy", "time"),
    ("loss", "time"),
    ("accuracy", "versions"),
    ("accuracy", "bytes"),
)


_CURVES_WITH_BANDS = 8


def write_png(
    records: Sequence[RunLike],
    directory: Path,
    *,
    target: float | None = None,
    baseline: str | None = None,
) -> list[Path]:
    """Write the figures that compare some runs into `directory`; return their paths.

    accuracy_time, loss_time, accuracy_versions, accuracy_bytes (each only if its measure was recorded),
    staleness, participation, and timeline_<label> of each label's lowest seed. `target` and `baseline`
    are as in make_table, which says what is raised; with a target, the legend of accuracy_time shows
    each label's relative time.
    """
    groups = group_runs(records)
    activities = read_activities(groups)
    table = make_table(records, target=target, baseline=baseline, activities=activities)
    styles = choose_styles(groups)
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for measure, axis in CURVES:
        if found := curves.make_curves(records, axis, measure):
            paths.append(save(_curves(found, styles, table), directory / f"{measure}_{axis}.png"))
    histograms = staleness_histograms(activities)
    paths.append(save(_staleness(histograms, styles), directory / "staleness.png"))
    parts = [participation(runs[0], activities[label][0]) for label, runs in groups.items()]
    paths.append(save(_participation(parts, styles), directory / "participation.png"))
    taken: set[str] = set()
    for label, runs in groups.items():
        figure = draw_timeline(make_timeline(runs[0]), styles[label])
        paths.append(save(figure, directory / f"timeline_{file_name(label, taken)}.png"))
    return paths


def _curves(found: Sequence[curves.Curve], styles: Styles, table: Table) -> Figure:
    axis, measure = found[0].axis, found[0].measure
    unit, title = curves.axis_unit(axis, max(float(curve.x[-1]) for curve in found))
    scale = 100.0 if measure == "accuracy" else 1.0
    relative = {row.label: relative_text(row.relative) for row in table.rows}
    show_relative = table.target is not None and (measure, axis) == ("accuracy", "time")
    figure, (ax,) = new_figure(7.5, 4.6)
    crowded = len(found) > _CURVES_WITH_BANDS  # then bands and a legend inside would bury the curves
    lines, names = [], []
    for curve in found:
        style, x = styles[curve.label], curve.x / unit.size
        mean, std = curve.mean * scale, curve.std * scale
        if curve.seeds > 1 and not crowded:
            ax.fill_between(
                x, mean - std, mean + std, step="post", color=style.colour, alpha=0.15, linewidth=0
            )
        lines += ax.step(
            x, mean, where="post", color=style.colour, linestyle=LINE_STYLES[style.dash], linewidth=1.6
        )
        names.append(plain(curve.label + (f"  {relative[curve.label]}" if show_relative else "")))
    if table.target is not None and measure == "accuracy":
        ax.axhline(100 * table.target, color=MUTED, linewidth=1, linestyle="--")
        ax.annotate(
            f"target {percent(table.target)}",
            (0.008, 100 * table.target),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            fontsize=8.5,
            color=MUTED,
        )
    ax.set_xlim(left=0)
    ax.set_xlabel(title)
    ax.set_ylabel("accuracy (%)" if measure == "accuracy" else "loss")
    if crowded:
        figure.legend(lines, names, frameon=False, fontsize=8, loc="outside right upper")
    else:
        ax.legend(lines, names, frameon=False, fontsize=9, loc="best")
    return figure


def _staleness(histograms: Sequence[StalenessHistogram], styles: Styles) -> Figure:
    figure, axes = new_figure(7.5, 0.9 + 1.25 * len(histograms), len(histograms))
    for ax, histogram in zip(axes, histograms, strict=True):
        width, colour = histogram.width, styles[histogram.label].colour
        middles = [k * width + (width - 1) / 2 for k in range(len(histogram.shares))]
        ax.bar(middles, [100 * share for share in histogram.shares], width=0.86 * width, color=colour)
        mean = "no updates" if histogram.mean is None else f"mean {histogram.mean:.2f}"
        _title(ax, f"{histogram.label} · {mean}", colour)
    _label(figure, axes, "staleness (versions)", "share of updates (%)")
    return figure


def _participation(parts: Sequence[Participation], styles: Styles) -> Figure:
    figure, axes = new_figure(7.5, 1.2 + 1.3 * len(parts), len(parts))
    for ax, part in zip(axes, parts, strict=True):
        colour = styles[part.label].colour
        ax.bar(part.clients, [100 * share for share in part.task_shares], width=0.75, color=colour)
        samples = [100 * share for share in part.sample_shares]
        dashes = ax.scatter(part.clients, samples, marker="_", s=70, color=INK, linewidths=1.6, zorder=3)
        note = f" · {part.note}" if part.note else ""
        _title(ax, f"{part.label} · seed {part.seed}{note}", colour)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles = [Patch(facecolor=MUTED), dashes]
    names = ["share of arrived updates", "share of samples"]
    figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False, fontsize=8.5)
    _label(figure, axes, "client", "share (%)")
    return figure


def _title(ax: Axes, text: str, colour: str) -> None:
    ax.set_title(plain(text), loc="left", fontsize=9.5, color=colour, fontweight="bold", pad=3)
    ax.grid(visible=False, axis="x")
    ax.set_ylim(bottom=0)


def _label(figure: Figure, axes: Sequence[Axes], x: str, y: str) -> None:
    axes[-1].set_xlabel(x)
    figure.supylabel(y, fontsize=10, color=INK)
