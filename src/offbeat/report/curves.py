"""Metrics against time, versions or traffic: mean and deviation over seeds.

Between two evaluations a run keeps the value of the earlier one. The seeds of a label are put on a
common grid, from where all of them have a value to where the first of them ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from offbeat.core.metric_names import NamedMetric
from offbeat.report.records import (
    Evaluation,
    Evaluations,
    Rows,
    clock_name,
    group_runs,
    metric_of,
    metrics_in,
    read_evaluations,
)
from offbeat.runs.record import RunRecord
from offbeat.units import Unit, byte_unit, time_unit

Axis = Literal["time", "versions", "bytes"]
Series = NDArray[np.float64]

AXES: tuple[Axis, ...] = ("time", "versions", "bytes")
CURVES_WITH_BANDS = 8
"""Most curves that are drawn with a band of ± one deviation; the bands of more would bury them."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One label's course over its seeds: arrays of one length.

    `x` is in seconds of the `clock`, versions, or bytes (up plus down); `mean` and `std` (ddof = 1; 0 for a
    single seed) are over the `seeds` runs. A value that was not finite is NaN: a gap in the line.
    """

    label: str
    axis: Axis
    measure: NamedMetric
    x: Series
    mean: Series
    std: Series
    seeds: int
    clock: str = "virtual time"


def make_curves(
    records: Sequence[RunRecord],
    axis: Axis,
    metric: str,
    points: int = 400,
    evaluations: Evaluations | None = None,
) -> list[Curve]:
    """Return the curve of each label that has the metric, thinned to about `points` grid points.

    Args:
        records: The runs; those with the same label are seeds of one experiment.
        axis: What the metric is shown against.
        metric: The metric, by its name.
        points: Number of grid points above which a curve is thinned.
        evaluations: The evaluations of each label's runs, by seed. None means that they are read.

    Returns:
        The curves in the order of their labels, without those that have no evaluation of the metric.

    Raises:
        UsageError: As `group_runs` does.
    """
    measure = metric_of(records, metric)
    evaluations = evaluations or read_evaluations(group_runs(records))
    clock = clock_name(records)
    found = (make_curve(label, seeds, axis, measure, points, clock) for label, seeds in evaluations.items())
    return [curve for curve in found if curve is not None]


def in_shown_units(curves: Sequence[Curve]) -> tuple[str, str, list[Curve]]:
    """Convert curves of one measure and axis to the units in which a figure shows them.

    Args:
        curves: The curves, one or more.

    Returns:
        The title of the x axis, the title of the y axis, and the curves in the units that they name.
    """
    unit, title = _axis_unit(curves[0], max(float(curve.x[-1]) for curve in curves))
    measure = curves[0].measure
    scale = measure.scale
    shown = [
        replace(curve, x=curve.x / unit.size, mean=curve.mean * scale, std=curve.std * scale)
        for curve in curves
    ]
    return title, measure.title, shown


def _axis_unit(curve: Curve, most: float) -> tuple[Unit, str]:
    """Choose the unit of a curve's x axis, and its title."""
    if curve.axis == "time":
        unit = time_unit(most)
        return unit, f"{curve.clock} ({unit.name})"
    if curve.axis == "bytes":
        unit = byte_unit(most)
        return unit, f"traffic, up and down ({unit.name})"
    return Unit("", 1.0), "versions of the global model"


def make_curve(
    label: str,
    seeds: Sequence[Rows],
    axis: Axis,
    measure: NamedMetric,
    points: int = 400,
    clock: str = "virtual time",
) -> Curve | None:
    """The curve of one label over the evaluations of its seeds; None where none has the metric."""
    series = [xy for xy in (_series(rows, axis, measure.name) for rows in seeds) if xy is not None]
    if not series:
        return None
    first = max(float(x[0]) for x, _ in series)
    last = max(first, min(float(x[-1]) for x, _ in series))
    grid = np.unique(np.concatenate([x for x, _ in series]))
    grid = grid[(grid >= first) & (grid <= last)]
    if grid.size > points:
        grid = np.linspace(first, last, points)
    values = np.stack([y[np.searchsorted(x, grid, side="right") - 1] for x, y in series])
    std = values.std(axis=0, ddof=1) if len(series) > 1 else np.zeros_like(grid)
    return Curve(label, axis, measure, grid, values.mean(axis=0), std, len(series), clock)


def _series(rows: Rows, axis: Axis, metric: str) -> tuple[Series, Series] | None:
    """The metric at each evaluation that is about it; NaN where it is not finite."""
    rows = [row for row in rows if metric in row and metrics_in(row)]
    y = np.array([np.nan if row[metric] is None else row[metric] for row in rows], dtype=np.float64)
    y[~np.isfinite(y)] = np.nan
    if np.isnan(y).all():
        return None
    x = np.array([_position(row, axis) for row in rows], dtype=np.float64)
    return x, y


def _position(row: Evaluation, axis: Axis) -> float:
    if axis == "bytes":
        return float((row["bytes_up"] or 0) + (row["bytes_down"] or 0))
    return float(row["t" if axis == "time" else "version"])
