"""Layers of every drawing of a timeline: its bars by colour, and its points by kind."""

from dataclasses import dataclass

from offbeat.report.palette import Style, group_colour, tint
from offbeat.report.timeline import Timeline
from offbeat.report.timeline_bars import TrainingSpan
from offbeat.report.timeline_events import NAMES, Kind, Mark

HEIGHT = 0.76
"""Height of a bar, in rows."""
_ENDS: dict[str, Kind] = {"arrived": "arrival", "lost": "lost", "left": "lost"}
_ON_THE_EDGE: frozenset[Kind] = frozenset({"fresh", "nothing", "recall"})


@dataclass(frozen=True, slots=True)
class Bars:
    """The tasks drawn in one colour: those of an arrival group, or all of them."""

    name: str
    colour: str
    tasks: tuple[TrainingSpan, ...]


def bars_by_colour(timeline: Timeline, style: Style) -> list[Bars]:
    """Divide the tasks of a timeline by arrival group.

    Args:
        timeline: The timeline.
        style: Style of its label, whose colour tasks without arrival groups have.

    Returns:
        The bars in the order of the legend; none without tasks.
    """
    bars = []
    for group in sorted({task.group for task in timeline.training}, key=lambda g: (g is not None, g or 0)):
        name, colour = "no group" if group is None else f"group {group}", group_colour(group)
        if not timeline.grouped:
            name, colour = "training", tint(style.colour)
        tasks = tuple(task for task in timeline.training if task.group == group)
        bars.append(Bars(name, colour, tasks))
    return bars


def points_by_kind(timeline: Timeline) -> dict[Kind, list[Mark]]:
    """Divide the points by kind: the ends of the tasks, and the timeline's marks.

    Args:
        timeline: The timeline.

    Returns:
        The points of each kind that there is, in the order in which they are drawn.
    """
    ends = [
        Mark(_ENDS[task.outcome], task.client, task.end, task.task, task.outcome)
        for task in timeline.training
        if task.outcome in _ENDS
    ]
    points = [*ends, *timeline.marks]
    found = {kind: [point for point in points if point.kind == kind] for kind in NAMES}
    return {kind: points for kind, points in found.items() if points}


def raised(kind: Kind) -> float:
    """Rows by which a point is above the middle of its bar.

    What becomes of an update is drawn at the height of its arrival, the rest on the bar's upper edge, clear
    of its number.
    """
    return HEIGHT / 2 if kind in _ON_THE_EDGE else 0.0
