"""Deadlines of tasks: when a site that is alive is no longer waited for.

A task may take the least deadline, or `FACTOR` times what the site's speed predicts if that is longer. The
speed is the local steps per second of the site's last task, with all transfers; before its first one, that of
the slowest site. Before any site has delivered there is no deadline. A task that was brought back by its site
has none: no schedule waits for it.
"""

from heapq import heapify, heappop, heappush
from itertools import takewhile
from math import inf

from offbeat.core.events import ClientId, TaskId
from offbeat.core.schedule import Task
from offbeat.core.server import Server
from offbeat.net.server.lazy_heap import LazyHeap
from offbeat.net.server.site_registry import Registry

FACTOR = 10.0
# Number of entries of ended tasks that are kept, beside as many as there are tasks.
_SPARE = 64
_Key = tuple[TaskId, ClientId]


class Deadlines:
    """The deadlines of the tasks in training; the first of them costs O(log n).

    The deadline of a site's first task follows the slowest site's speed. So those are in a heap of their own,
    of which all entries are looked at again when that speed rises and the deadlines move to earlier times.

    Args:
        registry: The sites.
        server: The tasks in training.
        least: Seconds that every task may take. None means that there are no deadlines.

    Attributes:
        since: No task counts as begun before this time, in seconds of the run's clock. It never decreases.
    """

    def __init__(self, registry: Registry, server: Server, least: float | None) -> None:
        self._registry, self._server, self._least = registry, server, least
        self.since = 0.0
        # The tasks of sites with a speed, and those of sites without.
        self._later: LazyHeap[_Key] = LazyHeap(self._deadline)
        self._first: LazyHeap[_Key] = LazyHeap(self._deadline)
        # Number of the tasks that have been looked at, and whether a speed has been measured since.
        self._seen, self._measured = 0, True
        # Speed and client of each site that has one, and of what sites had before.
        self._speeds: list[tuple[float, ClientId]] = []
        self._slowest = 0.0

    def measured(self, client: ClientId) -> None:
        """Note that a site's speed has been measured anew."""
        self._measured = True
        if (speed := self._registry.by_client[client].speed) > 0:
            heappush(self._speeds, (speed, client))
        if len(self._speeds) > 2 * len(self._registry.by_client) + _SPARE:
            known = self._registry.by_client.values()
            self._speeds = [(site.speed, site.client) for site in known if site.speed > 0]
            heapify(self._speeds)

    def bound(self) -> float:
        """A time before which no deadline is, in seconds of the run's clock; infinite where there is none."""
        if self._least is None:
            return inf
        self._follow()
        return min(self._later.first(), self._first.bound())

    def due(self, now: float) -> list[tuple[Task, float]]:
        """The tasks whose deadlines have passed, the oldest first, and the deadlines.

        Args:
            now: The time, in seconds of the run's clock.
        """
        if self._least is None:
            return []
        self._follow()
        keys = sorted([*self._later.due(now), *self._first.due(now)])
        return [(self._server.tasks[key[1]], self._deadline(key) or inf) for key in keys]

    def _follow(self) -> None:
        """Add the tasks that were given since the last call, and follow the slowest speed."""
        if self._seen == self._server.dispatched and not self._measured:
            return
        self._measured = False
        sites, tasks = self._registry.by_client, self._server.tasks
        while self._speeds and sites[self._speeds[0][1]].speed != self._speeds[0][0]:
            heappop(self._speeds)
        slowest = self._speeds[0][0] if self._speeds else 0.0
        rises, self._slowest = slowest > self._slowest, slowest
        if rises:
            self._first.rebuild()
        for heap in (self._later, self._first):
            if len(heap) > 2 * len(tasks) + _SPARE:
                heap.rebuild()
        given = takewhile(lambda task: task.id >= self._seen, reversed(tasks.values()))
        for task in given:
            heap = self._later if sites[task.client].speed > 0 else self._first
            heap.add((task.id, task.client))
        self._seen = self._server.dispatched

    def _deadline(self, key: _Key) -> float | None:
        """The deadline of a task; infinite without any speed, and None of a task that has none."""
        number, client = key
        task = self._server.tasks.get(client)
        if task is None or task.id != number or task.hold or self._registry.assigned[number].brought_back:
            return None
        assert self._least is not None
        speed = self._registry.by_client[client].speed or self._slowest
        allowed = max(self._least, FACTOR * task.steps / speed) if speed > 0 else inf
        return max(task.started, self.since) + allowed
