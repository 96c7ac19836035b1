"""FedCompass in exact rational numbers: an event simulation written from the paper's Algorithms 1-3 alone.

Nothing of Offbeat is imported, and no two times are compared with a tolerance: all of them are fractions.
What the paper leaves open is as on the algorithm's page. Events of the same time happen in the order joins,
arrivals and losses, departures, timers; within these, the first scheduled first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heappop, heappush
from itertools import count
from math import floor
from typing import Any

JOIN, END, LEAVE, TIMER = range(4)


@dataclass(frozen=True)
class ExactWorld:
    """What happens to the clients.

    Attributes:
        q_min: Fewest steps.
        q_max: Most steps.
        latest: λ.
        memory: ρ.
        seconds: Seconds per step, by client and task; the last one repeats.
        latency: Seconds of a transfer each way, by client.
        lost: By client and task, the share of its time after which a task is lost; none is from 1 on.
        present: Intervals of presence by client; None is no end.
        samples: n_i.
        slopes: A task's update is the client's slope times its steps.
    """

    q_min: int
    q_max: int
    latest: Fraction
    memory: Fraction
    seconds: Sequence[Sequence[Fraction]]
    latency: Sequence[Fraction]
    lost: Sequence[Sequence[Fraction]]
    present: Sequence[Sequence[tuple[Fraction, Fraction | None]]]
    samples: Sequence[int]
    slopes: Sequence[int]


@dataclass
class Task:
    """A task: who, from when and which version on, and where it belongs."""

    client: int
    steps: int
    start: Fraction
    version: int
    weight: float = 0.0


@dataclass
class ArrivalGroup:
    """An arrival group: CL, ACL, its buffer, and its times."""

    number: int
    expected_at: Fraction
    latest_at: Fraction
    CL: set[int] = field(default_factory=set)
    ACL: set[int] = field(default_factory=set)
    buffer: list[Task] = field(default_factory=list)
    timer_fired: bool = False


class ExactCompass:
    """One run; `log` has what happened, in order, and `arrivals_at_latest` how many came at T_max exactly."""

    def __init__(self, world: ExactWorld, arrivals: int) -> None:
        self.world, self.w, self.version = world, 0.0, 0
        self.log: list[tuple[Any, ...]] = []
        self.arrivals_at_latest = 0
        self._now, self._arrivals, self._most = Fraction(0), 0, arrivals
        self._queue: list[Any] = []
        self._order = count()
        self._there: set[int] = set()
        self._training: dict[int, Task] = {}
        self._begun_tasks = [0] * len(world.seconds)
        self._S: dict[int, Fraction] = {}
        self._group_of: dict[int, ArrivalGroup] = {}
        self._groups: dict[int, ArrivalGroup] = {}
        self._late: list[Task] = []
        self._created = 0
        self._intervals = [iter(own) for own in world.present]
        for client in range(len(world.seconds)):
            self._schedule_presence(client)
        self._run()

    def _schedule(self, time: Fraction, kind: int, what: Any) -> None:
        heappush(self._queue, (time, kind, next(self._order), what))

    def _schedule_presence(self, client: int) -> None:
        """A client's next interval, which is scheduled as the one before ends."""
        for begin, end in self._intervals[client]:
            self._schedule(begin, JOIN, client)
            if end is not None:
                self._schedule(end, LEAVE, client)
            return

    def _run(self) -> None:
        while self._queue and self._queue[0][0] == 0:
            self._there.add(heappop(self._queue)[3])
        for client in sorted(self._there):
            self._train(client, self.world.q_min, None)
        while self._queue and self._arrivals < self._most:
            self._now, kind, _, what = heappop(self._queue)
            if kind == JOIN:
                self._there.add(what)
                self._say("joined", what)
                self._train(what, self.world.q_min, None)
            elif kind == LEAVE:
                self._leave(what)
                self._schedule_presence(what)
            elif kind == TIMER:
                if self._groups.get(what.number) is what:
                    what.timer_fired = True
                    self._say("timer", what.number)
                    self._aggregate(what)
            else:
                task, lost = what
                if self._training.get(task.client) is task:
                    del self._training[task.client]
                    (self._lose if lost else self._arrive)(task)

    def _say(self, name: str, *rest: Any) -> None:
        self.log.append((name, self._now, *rest))

    # ---- events ----

    def _arrive(self, task: Task) -> None:
        i, world = task.client, self.world
        self._arrivals += 1
        self._say("arrived", i)
        S = (self._now - task.start) / task.steps
        self._S[i] = (1 - world.memory) * S + world.memory * self._S.get(i, S)
        share = world.samples[i] / sum(world.samples[c] for c in self._there)
        task.weight = 0.9 * (self.version - task.version + 1) ** -0.5 * share
        group = self._group_of.pop(i, None)
        if group is None:
            self._publish([task], None)
            self._assign(i)
            return
        self.arrivals_at_latest += self._now == group.latest_at
        group.CL.remove(i)
        if self._now > group.latest_at:
            self._late.append(task)
            self._close_if_complete(group)
            self._assign(i)
        else:
            group.ACL.add(i)
            group.buffer.append(task)
            self._close_if_complete(group)

    def _lose(self, task: Task) -> None:
        self._say("lost", task.client)
        self._forget(task.client)
        self._assign(task.client)

    def _leave(self, i: int) -> None:
        self._there.remove(i)
        self._training.pop(i, None)
        self._say("left", i)
        for group in self._groups.values():
            group.ACL.discard(i)
        self._forget(i)

    def _forget(self, i: int) -> None:
        group = self._group_of.pop(i, None)
        if group is not None:
            group.CL.remove(i)
            self._close_if_complete(group)

    def _close_if_complete(self, group: ArrivalGroup) -> None:
        if not group.CL:
            del self._groups[group.number]
            if group.buffer:
                self._aggregate(group)

    # ---- Algorithm 3 ----

    def _aggregate(self, group: ArrivalGroup) -> None:
        updates = group.buffer + self._late
        if not updates:
            return
        members = sorted(group.ACL, key=lambda i: (self._S[i], i))
        group.ACL, group.buffer, self._late = set(), [], []
        self._publish(updates, group.number)
        for i in members:
            self._assign(i)

    def _publish(self, updates: Sequence[Task], number: int | None) -> None:
        self.w += sum(u.weight * self.world.slopes[u.client] * u.steps for u in updates)
        self.version += 1
        self._say("aggregate", number, [u.client for u in updates])

    # ---- Algorithm 2 ----

    def _assign(self, i: int) -> None:
        if i not in self._S:
            self._train(i, self.world.q_min, None)
            return
        Q, group = self._join(i) or self._create(i)
        group.CL.add(i)
        self._group_of[i] = group
        self._train(i, Q, group.number)

    def _join(self, i: int) -> tuple[int, ArrivalGroup] | None:
        best: tuple[int, ArrivalGroup] | None = None
        for group in self._groups.values():
            q = floor((group.expected_at - self._now) / self._S[i])
            if self.world.q_min <= q <= self.world.q_max and (best is None or q >= best[0]):
                best = q, group
        return best

    def _create(self, i: int) -> tuple[int, ArrivalGroup]:
        world, Q = self.world, -1
        for group in self._groups.values():
            if self._now < group.expected_at:
                fastest = min(self._S[c] for c in group.CL | group.ACL)
                until = group.expected_at + fastest * world.q_max
                Q = max(Q, floor((until - self._now) / self._S[i]))
        if 0 <= Q < world.q_min:
            Q = world.q_min
        if Q < 0 or world.q_max < Q:
            Q = world.q_max
        self._created += 1
        work = Q * self._S[i]
        group = ArrivalGroup(self._created, self._now + work, self._now + world.latest * work)
        self._groups[group.number] = group
        self._schedule(group.latest_at, TIMER, group)
        return Q, group

    # ---- clients ----

    def _train(self, i: int, steps: int, number: int | None) -> None:
        task = Task(i, steps, self._now, self.version)
        self._say("train", i, steps, number)
        self._training[i] = task
        n = self._begun_tasks[i]
        self._begun_tasks[i] += 1
        own = self.world.seconds[i]
        seconds = 2 * self.world.latency[i] + steps * own[min(n, len(own) - 1)]
        share = self.world.lost[i][n]
        self._schedule(self._now + min(share, Fraction(1)) * seconds, END, (task, share < 1))
