"""The report's figures as PNG, SVG or PDF files, drawn without any global plotting state."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from offbeat.core.metric_names import NamedMetric, is_statistic
from offbeat.documents import user_path
from offbeat.report import curves
from offbeat.report.clients import ClientValues, client_values
from offbeat.report.figures import LINE_STYLES, file_name, new_figure, plain, save, wrapped
from offbeat.report.palette import INK, MUTED, Style, Styles, choose_styles
from offbeat.report.panels import Panel, participation_panels, staleness_panels, ticks_of
from offbeat.report.records import group_runs, recorded_metrics
from offbeat.report.render import relative_text
from offbeat.report.static_timeline import draw_timeline
from offbeat.report.table import Table, make_table
from offbeat.report.timeline import make_timeline
from offbeat.runs.record import RunRecord

Form = Literal["png", "svg", "pdf"]


def write_figures(
    records: Sequence[RunRecord],
    directory: str | Path,
    *,
    target: float | None = None,
    metric: str | None = None,
    baseline: str | None = None,
    form: Form = "png",
) -> list[Path]:
    """Write the figures that compare some runs.

    They are <metric>_time of each metric that was recorded, such as accuracy_time and loss_time, and of the
    first also <metric>_versions and <metric>_bytes; clients_<metric> of evaluations at clients; staleness,
    participation, and timeline_<label> of each label's lowest seed.

    Args:
        records: The runs; those with the same label are seeds of one experiment.
        directory: The directory to write to; it is made.
        target: A value of the metric whose first time is measured; for a share, in (0, 1]. The legend of its
            figure against time then shows each label's relative time.
        metric: The metric that comes first. None means the accuracy if it was recorded, else the first
            metric, else the loss.
        baseline: The label that times are relative to.
        form: Format of the files, by which their names end.

    Returns:
        The files.

    Raises:
        UsageError: As `make_table` does.
    """
    directory = user_path(directory)
    groups = group_runs(records)
    table = make_table(records, target=target, metric=metric, baseline=baseline)
    styles = choose_styles(groups)
    directory.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []

    def write(figure: Figure, name: str) -> None:
        paths.append(save(figure, directory / f"{name}.{form}"))

    taken: set[str] = set()
    measure = table.measure.name
    names = [
        name for name in recorded_metrics(table.evaluations) if name == measure or not is_statistic(name)
    ]
    names.sort(key=lambda name: name != measure)
    plots: list[tuple[str, curves.Axis]] = [(name, "time") for name in names]
    plots += [(name, axis) for axis in curves.AXES[1:] for name in names[:1]]
    for name, axis in plots:
        if found := curves.make_curves(records, axis, name, evaluations=table.evaluations):
            write(_curves(found, styles, table), file_name(f"{name}_{axis}", taken))
    for metric, values in client_values(groups).items():
        write(_client_values(values, styles), file_name(f"clients_{metric}", taken))
    write(_panels(staleness_panels(table.activities), styles, "staleness (versions)"), "staleness")
    write(_panels(participation_panels(groups, table.activities), styles, "client"), "participation")
    taken = set()
    for label, runs in groups.items():
        write(draw_timeline(make_timeline(runs[0]), styles[label]), f"timeline_{file_name(label, taken)}")
    return paths


def _curves(drawn: Sequence[curves.Curve], styles: Styles, table: Table) -> Figure:
    goal = drawn[0].measure
    target = table.target if goal == table.measure else None
    relative = {row.label: f" · {relative_text(row)}" for row in table.rows if row.relative is not None}
    if target is None or drawn[0].axis != "time":
        relative = {}
    title, measure, shown = curves.in_shown_units(drawn)
    names = [wrapped(curve.label + relative.get(curve.label, "")) for curve in drawn]
    heading = f"x: time to target,\nrelative to {wrapped(table.baseline)}" if relative else ""
    texts = [line for name in (heading, *names) for line in name.splitlines()]
    figure, (ax,) = new_figure(7.5 + 0.07 * max(map(len, texts)), max(4.6, 0.16 * len(texts)))
    # The bands of many curves would bury them.
    band = len(drawn) <= curves.CURVES_WITH_BANDS
    lines = [line for curve in shown for line in draw_curve(ax, curve, styles[curve.label], band=band)]
    if target is not None:
        _mark_target(ax, goal, target)
    ax.set_xlim(left=0)
    ax.set_xlabel(title)
    ax.set_ylabel(plain(measure))
    # Inside the axes, a legend would lie on curves.
    legend = figure.legend(lines, names, frameon=False, fontsize=8.5, loc="outside right upper")
    legend.set_alignment("left")
    legend.set_title(heading, prop=FontProperties(size=8))
    legend.get_title().set_color(MUTED)
    return figure


def _mark_target(ax: Axes, goal: NamedMetric, target: float) -> None:
    """Draw a line at the target; what it is stands beside the axes, where no curve is."""
    height = goal.scale * target
    ax.axhline(height, color=MUTED, linewidth=1, linestyle="--")
    text = f"target\n{goal.value_text(target)}"
    # x is a share of the width.
    note = ax.annotate(text, (1.0, height), (4, 0), ax.get_yaxis_transform(), "offset points", va="center")
    note.set(fontsize=8.5, color=MUTED)


def draw_curve(ax: Axes, curve: curves.Curve, style: Style, *, band: bool = True) -> list[Line2D]:
    """Draw a curve as steps, with a band of its deviation over several seeds; returns its line."""
    x, mean, std = curve.x, curve.mean, curve.std
    if curve.seeds > 1 and band:
        ax.fill_between(x, mean - std, mean + std, step="post", color=style.colour, alpha=0.15, linewidth=0)
    return ax.step(
        x, mean, where="post", color=style.colour, linestyle=LINE_STYLES[style.dash], linewidth=1.6
    )


def _client_values(values: Sequence[ClientValues], styles: Styles) -> Figure:
    """Draw a row for each label: a point for each client, p10 to p90, the median, the worst client named."""
    figure, (ax,) = new_figure(7.5, 1.5 + 0.75 * len(values))
    for row, row_values in enumerate(values):
        colour, places = styles[row_values.label].colour, row_values.places()
        if row_values.p10 is not None and row_values.p50 is not None and row_values.p90 is not None:
            width = (row_values.p90 - row_values.p10) * row_values.scale
            ax.barh(row, width, 0.76, row_values.p10 * row_values.scale, color=colour, alpha=0.15)
            ax.vlines(row_values.p50 * row_values.scale, row - 0.38, row + 0.38, color=colour, linewidth=2)
        points = [value for value, _, _ in places], [row + offset for _, offset, _ in places]
        ax.scatter(*points, s=22, color=colour, edgecolors="white", linewidths=0.6, zorder=3)
        if row_values.worst is not None:
            value, offset, name = next(p for p in places if p[2] == row_values.names[row_values.worst])
            ax.scatter(
                [value], [row + offset], s=70, facecolors="none", edgecolors=INK, linewidths=1.2, zorder=4
            )
            # The client's name stands on the side where no other client's value is.
            left = row_values.p50 is not None and value < row_values.p50 * row_values.scale
            note = ax.annotate(
                plain(name), (value, row + offset), (-8 if left else 8, 0), textcoords="offset points"
            )
            note.set(fontsize=8, va="center", ha="right" if left else "left")
    ax.set_yticks(range(len(values)), [wrapped(row_values.label, 30) for row_values in values])
    ax.set_ylim(len(values) - 0.4, -0.6)
    ax.grid(visible=False, axis="y")
    ax.margins(x=0.15)
    ax.set_xlabel(f"{plain(values[0].title)} of each client; band: p10 to p90, line: median, ring: the worst")
    return figure


def _panels(panels: Sequence[Panel], styles: Styles, x: str) -> Figure:
    """Draw panels one above the other on a common x axis."""
    dashes, ticks = any(panel.dashes for panel in panels), ticks_of(panels)
    figure, axes = new_figure(7.5, (1.2 if dashes else 0.9) + 1.25 * len(panels), len(panels))
    for ax, panel in zip(axes, panels, strict=True):
        colour = styles[panel.label].colour
        ax.bar(panel.x, panel.heights, panel.width, color=colour)
        if dashes:
            ax.scatter(panel.x, panel.dashes, marker="_", s=70, color=INK, linewidths=1.6, zorder=3)
        ax.set_title(plain(panel.title), loc="left", fontsize=9.5, color=colour, fontweight="bold", pad=3)
        ax.grid(visible=False, axis="x")
        ax.set_ylim(bottom=0)
        if ticks is None:
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        else:
            ax.set_xticks([*ticks], [plain(text) for text in ticks.values()])
    if dashes:
        handles = [Patch(facecolor=MUTED), axes[0].collections[0]]
        names = ["share of arrived updates", "share of samples"]
        figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False, fontsize=8.5)
    axes[-1].set_xlabel(x)
    figure.supylabel("share (%)" if dashes else "share of updates (%)", fontsize=10, color=INK)
    return figure
