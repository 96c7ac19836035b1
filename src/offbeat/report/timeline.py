"""Timeline of a run's clients, as in Figure 1 of the FedCompass paper.

FedCompass: Li, Chaturvedi, He, Chen, Zou, Madduri, Kim, ICLR 2024.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from offbeat.core.journal import Row
from offbeat.report.records import clock_name
from offbeat.report.timeline_bars import Span, Tracker, TrainingSpan, WaitingSpan
from offbeat.report.timeline_events import Mark, Marker
from offbeat.runs.presentation import RunView
from offbeat.units import duration_text

MAX_CLIENTS = 40
MAX_TASKS = 150
MAX_AGGREGATIONS = 200


@dataclass(frozen=True, slots=True)
class Aggregation:
    """A new global version, published at `t` seconds, of the arrival group if it was one."""

    t: float
    version: int | None
    group: int | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """The part [0, until] of one run, for the `clients` shown (ascending).

    Times are seconds of the `clock`, from the run's begin.

    `marks` are requests for a fresh model in mid-task, recalls and dropped updates. `names` has the names of
    clients that have one.
    Work that goes on after `until` is cut there and has the outcome "running". `cut` says in words
    what of the run is not shown, and is empty when everything is.
    """

    label: str
    seed: int
    clients: tuple[int, ...]
    training: tuple[TrainingSpan, ...]
    waiting: tuple[WaitingSpan, ...]
    aggregations: tuple[Aggregation, ...]
    until: float
    cut: str
    marks: tuple[Mark, ...] = ()
    names: Mapping[int, str] = field(default_factory=dict)
    clock: str = "virtual time"

    def name(self, client: int) -> str:
        """What a client is called: its name, or its number."""
        return self.names.get(client, f"client {client}")

    @property
    def grouped(self) -> bool:
        """Whether any task was dispatched into an arrival group."""
        return any(task.group is not None for task in self.training)

    @property
    def line_opacity(self) -> float:
        """How strongly to draw the aggregations, so that many of them do not hide the bars."""
        return 0.7 if len(self.aggregations) <= 60 else 0.35

    @property
    def caption(self) -> str:
        """A line that names the run and the parts that are not shown."""
        return f"{self.label}, seed {self.seed}: {self.cut or 'the whole run, all clients.'}"


def make_timeline(
    record: RunView,
    *,
    until: float | None = None,
    max_clients: int = MAX_CLIENTS,
    max_tasks: int = MAX_TASKS,
) -> Timeline:
    """Read the beginning of a run's journal, only as far as it is shown.

    Args:
        record: The run.
        until: End of the window, in seconds from the begin. None means when the clients shown have ended
            `max_tasks` tasks.
        max_clients: Most clients shown: the first ones that train.
        max_tasks: Number of tasks after which the window ends.

    Returns:
        The timeline; of more than 200 aggregations it has every second, third, … one.
    """
    record = record.from_begin()
    tracker, marker, spans = Tracker(), Marker(), list[Span]()
    shown, hidden = set[int](), set[int]()
    aggregations: list[Aggregation] = []
    stop, ended, t = until, 0, 0.0
    for row in map(Row.flat, record.rows()):
        t, client = float(row["t"]), row["client"]
        if stop is not None and t > stop:
            break
        if row["name"] == "train" and client not in shown:
            (shown if len(shown) < max_clients else hidden).add(client)
        elif row["name"] == "aggregate":
            aggregations.append(Aggregation(t, row["version"], row.get("group")))
        marker.feed(row)
        span = tracker.feed(row)
        if span is None or span.client in hidden:
            continue
        spans.append(span)
        ended += isinstance(span, TrainingSpan)
        if stop is None and ended >= max_tasks:
            stop = t
    end = max(float(record.duration), t)
    if stop is not None:
        end = min(end, stop)
    spans += [span for span in tracker.finish(end) if span.client not in hidden]
    # Clients that are present, but have no work in the window.
    idle = sorted({span.client for span in spans} - shown)
    shown.update(idle[: max_clients - len(shown)])
    every = -(-len(aggregations) // MAX_AGGREGATIONS) or 1
    return Timeline(
        label=record.label,
        seed=record.seed,
        clients=tuple(sorted(shown)),
        training=tuple(s for s in spans if isinstance(s, TrainingSpan) and s.client in shown),
        waiting=tuple(s for s in spans if isinstance(s, WaitingSpan) and s.client in shown),
        aggregations=tuple(aggregations[::every]),
        until=end,
        cut=_cut(record, end, len(shown), len(shown | hidden | {s.client for s in spans}), every),
        marks=tuple(mark for mark in marker.marks if mark.client in shown),
        names=record.client_names(),
        clock=clock_name([record]),
    )


def _cut(record: RunView, end: float, shown: int, seen: int, every: int) -> str:
    parts = []
    if end < record.duration:
        parts.append(f"the first {duration_text(end)} of {duration_text(record.duration)}")
    total = max(record.clients, seen)
    if shown < total:
        parts.append(f"{shown} of {total} clients (the first to train)")
    if every > 1:
        parts.append(f"one in {every} aggregations")
    return f"shown: {'; '.join(parts)}." if parts else ""
