"""The figure of one run: a metric against time, above the timeline of its clients."""

from typing import Any

from matplotlib.figure import FigureBase

from offbeat.core.errors import UsageError
from offbeat.core.metric_names import NamedMetric, first_shown
from offbeat.report.curves import Curve, in_shown_units, make_curve
from offbeat.report.figures import ShownFigure, add_axes, blank_figure, plain
from offbeat.report.palette import Style, choose_styles
from offbeat.report.records import clock_name, recorded_metrics
from offbeat.report.static import draw_curve
from offbeat.report.static_timeline import WIDTH, add_timeline, draw_timeline, timeline_height
from offbeat.report.timeline import make_timeline
from offbeat.runs.presentation import RunView

_CURVE_HEIGHT = 3.6
_SMALL = 6.0, 2.8
_TASKS = 60


def draw_run(run: RunView, metric: str | None = None) -> ShownFigure:
    """Draw a metric above the timeline; arguments and errors as of `Presentation.plot`."""
    run = run.from_begin()
    curve, timeline = _curve(run, metric), make_timeline(run, max_tasks=_TASKS)
    style = choose_styles([run.label])[run.label]
    if curve is None:
        return draw_timeline(timeline, style)
    below = timeline_height(timeline)
    figure = blank_figure(WIDTH, _CURVE_HEIGHT + below)
    parts: Any = figure.subfigures(2, 1, height_ratios=[_CURVE_HEIGHT, below])
    _add_curve(parts[0], curve, style)
    add_timeline(parts[1], timeline, style)
    return figure


def draw_small(run: RunView) -> ShownFigure:
    """Draw the metric that is shown first; of a run without evaluations the timeline."""
    curve = _curve(run.from_begin(), None)
    if curve is None:
        return draw_run(run)
    figure = blank_figure(*_SMALL)
    _add_curve(figure, curve, choose_styles([run.label])[run.label])
    return figure


def _add_curve(figure: FigureBase, curve: Curve, style: Style) -> None:
    """Draw a curve in an empty figure or part of one."""
    title, measure, (shown,) = in_shown_units([curve])
    (ax,) = add_axes(figure)
    draw_curve(ax, shown, style)
    ax.set_xlim(left=0)
    ax.set_xlabel(title)
    ax.set_ylabel(plain(measure))


def _curve(run: RunView, metric: str | None) -> Curve | None:
    """The curve of a metric; None where nothing was evaluated and none is asked for."""
    rows = run.metrics
    recorded = recorded_metrics({run.label: [rows]})
    if metric is None and not recorded:
        return None
    if metric is not None and metric not in recorded:
        raise UsageError(
            f"metric {metric!r} was not recorded: the run has {', '.join(recorded) or 'no evaluations'}"
        )
    measure = NamedMetric.of(metric or first_shown(recorded), run.higher_is_better)
    return make_curve(run.label, [rows], "time", measure, clock=clock_name([run]))
