"""The numbers of one run that come from its journal: tasks, staleness, versions, idleness."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from offbeat.core.client_times import ClientTimes, TimeShares
from offbeat.report.timeline_bars import Tracker, TrainingSpan
from offbeat.runs.record import RunRecord


@dataclass(frozen=True, slots=True)
class Activity:
    """Totals of one run.

    `tasks` maps a client to its arrived updates; `staleness` maps a staleness (versions) to the number
    of updates that arrived with it; `versions` is the last published version; `busy` and `present` are
    client-seconds, from the run's begin, spent training, and spent in the fleet; `at_once` is the largest
    number of clients that trained at the same time; `bytes` were sent in both directions, until the last
    evaluation in a run that has not finished; `times` says what each client did with its time.
    """

    tasks: Mapping[int, int]
    staleness: Mapping[int, int]
    versions: int
    busy: float
    present: float
    at_once: int
    bytes: int
    times: Mapping[int, TimeShares] = field(default_factory=dict)

    @property
    def arrived(self) -> int:
        """Updates that arrived, over all clients."""
        return sum(self.tasks.values())

    @property
    def mean_staleness(self) -> float | None:
        """Mean staleness of the updates that arrived, used or not, in versions; None when none arrived."""
        total = sum(self.staleness.values())
        return sum(s * n for s, n in self.staleness.items()) / total if total else None

    @property
    def idle_share(self) -> float | None:
        """Share of the present client-seconds not spent training; None when no client was ever present."""
        return max(0.0, 1.0 - self.busy / self.present) if self.present > 0 else None


def read_activity(record: RunRecord) -> Activity:
    """Read the whole journal of a run once and add it up."""
    record, tracker = record.from_begin(), Tracker()
    tasks: Counter[int] = Counter()
    staleness: Counter[int] = Counter()
    versions, busy, present, end = 0, 0.0, 0.0, float(record.duration)
    training, at_once, times = 0, 0, ClientTimes()
    for own in record.rows():
        times.feed(own)
        row = own.flat()
        end = max(end, float(row["t"]))
        if row["name"] == "arrived":
            tasks[row["client"]] += 1
            if row["staleness"] is not None:
                staleness[int(row["staleness"])] += 1
        elif row["name"] == "aggregate" and row["version"] is not None:
            versions = max(versions, int(row["version"]))
        span = tracker.feed(row)
        if span is not None:
            present += span.seconds
            busy += span.seconds if isinstance(span, TrainingSpan) else 0.0
        training += (row["name"] == "train") - isinstance(span, TrainingSpan)
        at_once = max(at_once, training)
    for span in tracker.finish(end):
        present += span.seconds
        busy += span.seconds if isinstance(span, TrainingSpan) else 0.0
    found = {client: shares for client in times.clients if (shares := times.shares(client, end))}
    return Activity(dict(tasks), dict(staleness), versions, busy, present, at_once, _bytes(record), found)


def _bytes(record: RunRecord) -> int:
    if (summary := record.summary) is not None:
        return summary.bytes_up + summary.bytes_down
    return sum(int(row["bytes_up"] + row["bytes_down"]) for row in record.metrics[-1:])
