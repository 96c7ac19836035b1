"""Leases and deadlines in heaps lead to the journal that a walk over all sites and tasks leads to."""

from math import inf
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

import offbeat as ob
from offbeat.core.schedule import Task
from offbeat.net.messages import Heartbeat, Leave, Register, TaskAssignment, TaskFailed, UpdateSubmission
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.deadlines import FACTOR
from offbeat.net.server.handlers import RunInfo
from offbeat.net.server.site_registry import SiteRecord
from tests.net.support import coordinator_from, terms_of
from tests.sampling import examples

SITES, LEASE, LEAST = 6, 64.0, 40.0


class Walk:
    """Both as a walk over all sites and tasks finds them."""

    def __init__(self, c: Coordinator) -> None:
        self.c, self.since = c, 0.0

    def begin(self, client: int) -> None:
        """Nothing is kept."""

    def measured(self, client: int) -> None:
        """Nothing is kept."""

    def first_end(self) -> float:
        sites = self.c.registry.sites.values()
        return min((site.last_seen + LEASE for site in sites if site.present), default=inf)

    def silent_sites(self, now: float) -> list[SiteRecord]:
        sites = self.c.registry.sites.values()
        return [site for site in sites if site.present and site.last_seen + LEASE <= now]

    def all(self) -> list[tuple[Task, float]]:
        registry, found = self.c.registry, []
        slowest = min((site.speed for site in registry.sites.values() if site.speed > 0), default=0.0)
        for task in self.c.server.tasks.values():
            speed = registry.by_client[task.client].speed or slowest
            if not task.hold and not registry.assigned[task.id].brought_back:
                allowed = max(LEAST, FACTOR * task.steps / speed) if speed > 0 else inf
                found.append((task, max(task.started, self.since) + allowed))
        return found

    def bound(self) -> float:
        return min((at for _, at in self.all()), default=inf)

    def due(self, now: float) -> list[tuple[Task, float]]:
        return [(task, at) for task, at in self.all() if at <= now]


class Server:
    """A coordinator, what its sites were given, and its journal."""

    def __init__(self, algorithm: ob.Algorithm, walks: bool) -> None:
        terms = terms_of(clients=2, lease=LEASE, task_timeout=LEAST, max_consecutive_failures=None)
        self.c = coordinator_from(algorithm, ob.Model.empty(ob.Layout.flat(2)), terms, RunInfo("run", {}))
        if walks:
            walk: Any = Walk(self.c)
            self.c.driver.leases = self.c.driver.deadlines = walk
        self.tasks: dict[str, TaskAssignment] = {}
        self.rows: list[Any] = []

    def act(self, now: float, site: str, action: str) -> None:
        c, task = self.c, self.tasks.get(site)
        if action == "deliver" and task is not None:
            update = UpdateSubmission(
                task.task, task.steps, torch.ones(2), torch.zeros(0, dtype=torch.int64), {}
            )
            c.receive(now, site, update)
        elif action == "fail" and task is not None:
            c.receive(now, site, TaskFailed(task.task, "disk full"))
        elif action == "join":
            c.receive(now, site, Register(10, 2))
        elif action == "bring back":
            holds = None if task is None else task.task
            c.receive(now, site, Register(10, 2, holds=holds, run="run"))
        elif action == "leave":
            c.receive(now, site, Leave("tired"))
        elif action == "alive":
            c.heartbeat(now, site, Heartbeat())
        c.tick(now)
        effects = c.take()
        self.rows += effects.rows
        self.tasks |= {name: m for name, m in effects.messages if isinstance(m, TaskAssignment)}


ACTIONS = ("deliver", "deliver", "deliver", "alive", "alive", "join", "bring back", "fail", "leave", "wait")
STEP = st.tuples(
    st.sampled_from((0.25, 1.0, 3.0, 20.0, 31.0, 40.0, 500.0)),
    st.integers(0, SITES - 1),
    st.sampled_from(ACTIONS),
)
MADE = (ob.fedavg(steps=20), ob.fedbuff(2, steps=20), ob.fedasync(steps=90), ob.fedcompass(4, 100))


@examples(20)
@given(st.sampled_from(MADE), st.lists(STEP, min_size=20, max_size=120))
def test_the_journal_is_that_of_a_walk(algorithm: ob.Algorithm, steps: list[tuple[float, int, str]]) -> None:
    heaps, walks = Server(algorithm, walks=False), Server(algorithm, walks=True)
    now = 0.0
    script = [*((0.0, site, "join") for site in range(SITES)), *steps]
    for seconds, site, action in script:
        now += seconds
        for server in (heaps, walks):
            server.act(now, f"site {site}", action)
        assert heaps.rows == walks.rows
        # It never wakes too late. It may wake too early, at once even, for a task that has ended; the empty
        # round that this costs forgets the task, so that no second one follows.
        assert heaps.c.next_due() <= walks.c.next_due()
        for server in (heaps, walks):
            server.c.tick(now)
        assert not heaps.c.take().rows + walks.c.take().rows
        assert now < heaps.c.next_due()
    assert heaps.c.now == walks.c.now


def test_memory_follows_the_tasks_in_training() -> None:
    """What has ended is forgotten long before its deadline."""
    server = Server(ob.fedasync(steps=20), walks=False)
    for site in range(SITES):
        server.act(0.0, f"site {site}", "join")
    for n in range(2000):
        server.act(n / 100, f"site {n % SITES}", "deliver")
        server.c.next_due()
    kept = server.c.driver.deadlines
    assert len(server.c.server.tasks) == SITES
    assert max(len(kept._later), len(kept._first), len(kept._speeds)) < 100
