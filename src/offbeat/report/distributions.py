"""How stale the updates of each label were, and how often each client took part."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from offbeat.report.activity import Activity
from offbeat.report.seed_statistics import stat
from offbeat.runs.record import RunRecord

MAX_BINS = 100
SHOWN_SHARE = 0.99
"""Least share of each label's updates that is shown: the few oldest would make the others' bars narrow."""
MAX_CLIENTS = 200


@dataclass(frozen=True, slots=True)
class StalenessHistogram:
    """Histogram of one label's arrived updates: the mean of the histograms of its seeds.

    Bin k holds staleness k·width .. (k+1)·width − 1 (versions); `shares` and `beyond`, that of the updates
    above the last bin, add up to 1 unless `updates`, the number of updates counted, is 0. `mean` is the mean
    over the seeds of `Activity.mean_staleness`, as in the table.
    """

    label: str
    width: int
    shares: tuple[float, ...]
    updates: int
    mean: float | None
    beyond: float = 0.0


def staleness_histograms(activities: Mapping[str, Sequence[Activity]]) -> list[StalenessHistogram]:
    """Count how stale the updates of each label were.

    Args:
        activities: The totals of each label's runs.

    Returns:
        A histogram for each label, on bins common to all labels, at most 100. They hold 99 % of each label's
        updates or more.
    """
    worst = max(map(_shown_staleness, activities.values()), default=0)
    width = -(-(worst + 1) // MAX_BINS)
    return [_histogram(label, group, width, worst // width + 1) for label, group in activities.items()]


def _shown_staleness(runs: Iterable[Activity]) -> int:
    """The staleness that `SHOWN_SHARE` of the updates do not exceed."""
    counts: Counter[int] = Counter()
    for run in runs:
        counts.update(run.staleness)
    seen, total = 0, counts.total()
    for staleness, count in sorted(counts.items()):
        seen += count
        if seen >= SHOWN_SHARE * total:
            return staleness
    return 0


def _histogram(label: str, runs: Sequence[Activity], width: int, bins: int) -> StalenessHistogram:
    shares, beyond, updates = [0.0] * bins, 0.0, 0
    counted = [run for run in runs if run.staleness]
    for run in counted:
        total = sum(run.staleness.values())
        updates += total
        for staleness, count in run.staleness.items():
            if staleness // width < bins:
                shares[staleness // width] += count / total / len(counted)
            else:
                beyond += count / total / len(counted)
    mean = stat([run.mean_staleness for run in runs])
    return StalenessHistogram(
        label, width, tuple(shares), updates, None if mean is None else mean.mean, beyond
    )


@dataclass(frozen=True, slots=True)
class Participation:
    """How often each client of one run took part; the tuples have one entry a shown client.

    `names` has the names of clients that have one. `tasks` are arrived updates, `task_shares` and
    `sample_shares` shares of the whole run's updates and samples (0 where there are none). `total_clients`
    may be more than are shown.
    """

    label: str
    seed: int
    clients: tuple[int, ...]
    tasks: tuple[int, ...]
    task_shares: tuple[float, ...]
    sample_shares: tuple[float, ...]
    total_clients: int
    names: Mapping[int, str] = field(default_factory=dict)

    def name(self, client: int) -> str:
        """What a client is called: its name, or its number."""
        return self.names.get(client, f"client {client}")

    @property
    def note(self) -> str:
        """A note on clients left out of the picture; empty when all are in it."""
        shown = len(self.clients)
        if shown == self.total_clients:
            return ""
        return f"{shown} of {self.total_clients} clients, evenly spaced by number"


def participation(record: RunRecord, activity: Activity, max_clients: int = MAX_CLIENTS) -> Participation:
    """Count how often each client of a run took part.

    Args:
        record: The run.
        activity: Its totals.
        max_clients: Most clients in the result; of more, as many evenly chosen ones are in it.
    """
    samples = record.client_samples()
    clients = sorted(set(samples) | set(activity.tasks))
    total = len(clients)
    if total > max_clients:
        clients = [clients[i * total // max_clients] for i in range(max_clients)]
    all_tasks = activity.arrived or 1
    all_samples = sum(samples.values()) or 1
    tasks = tuple(activity.tasks.get(client, 0) for client in clients)
    return Participation(
        label=record.label,
        seed=record.seed,
        clients=tuple(clients),
        tasks=tasks,
        task_shares=tuple(n / all_tasks for n in tasks),
        sample_shares=tuple(samples.get(client, 0) / all_samples for client in clients),
        total_clients=total,
        names=record.client_names(),
    )
