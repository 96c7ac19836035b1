"""FedCompass: a computing-power-aware scheduler (Li et al., ICLR 2024, Algorithms 1-3).

The server measures each client's seconds per local step and gives each a number of steps such that
a group of clients arrives together. A group is aggregated when its last client arrives, or at its
latest time T_max; who comes later than that waits in a general buffer for the next group.

Where the printed algorithms leave something open, this file follows these rules:

- an arrival at T_max is on time, and is fed before the timer. T_max is rounded, and so is the arrival: times
  within a relative 1e-11 are the same (`compass_times`);
- a timer that finds nobody arrived still flushes the buffer;
- a group closed by its last arrival is gone before its members are assigned, so none can rejoin it;
- a late client never moves to its group's arrived list (Algorithm 1, line 14 adds it there too);
- a client whose task is lost or who leaves is taken out of its group; if that empties the expected
  list, those who arrived are aggregated at once.
"""

from collections.abc import Iterator
from dataclasses import field
from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from offbeat.algorithms.aggregators import Momentum, Normalization, SumOfDeltas
from offbeat.algorithms.compass_times import RESOLUTION, fastest_first, is_after, latest_time, steps_until
from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import Count, Memory
from offbeat.core.algorithm import Algorithm
from offbeat.core.commands import Aggregate, CancelTimer, Command, SetTimer, Train
from offbeat.core.events import Arrived, Begin, ClientId, Event, Joined, Left, Lost, TaskId, Timer
from offbeat.core.schedule import Schedule, View
from offbeat.core.staleness import PolynomialWeight, StalenessWeight
from offbeat.core.types import NUMBER
from offbeat.core.validation import checked_dataclass
from offbeat.local.objectives import Plain

__all__ = ["CompassSchedule", "fedcompass"]

QMin = Annotated[Count, Field(description="fewest local steps Q_min of a task")]
QMax = Annotated[Count, Field(description="most local steps Q_max of a task")]
Latest = Annotated[float, Field(ge=1, allow_inf_nan=False, description="latest time factor λ"), NUMBER]
SpeedMemory = Annotated[Memory, Field(description="share ρ of the old speed estimate kept")]


@dataclass
class Group:
    """An arrival group: CL (`expected`), ACL (`waiting`, whose updates are `arrived`), T_a and T_max (s).

    A client that leaves is no member any more, while its update stays. `fastest` is the least S of the
    members (s a step), or None where it must be computed again.
    """

    id: int
    T_a: float
    T_max: float
    expected: set[ClientId] = field(default_factory=set)
    waiting: set[ClientId] = field(default_factory=set)
    arrived: list[TaskId] = field(default_factory=list)
    # A group whose timer has fired is kept only to recognise its late clients.
    fired: bool = False
    fastest: float | None = None

    @property
    def timer(self) -> str:
        """Name of the timer at T_max."""
        return f"group {self.id}"


@dataclass
class Compass:
    """The scheduler's state: S by client, G by client, the groups, and Δ̄'s tasks."""

    seconds_per_step: dict[ClientId, float] = field(default_factory=dict)
    group_of: dict[ClientId, int] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    late: list[TaskId] = field(default_factory=list)
    created: int = 0


@checked_dataclass
class CompassSchedule(Schedule):
    """Algorithms 1-3: q_min ≤ Q ≤ q_max local steps, λ = `latest`, ρ = `speed_memory`."""

    q_min: QMin
    q_max: QMax
    latest: Latest = 1.2
    speed_memory: SpeedMemory = 0.0
    resolution = RESOLUTION
    snapshots = True

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.q_min > self.q_max:
            raise ValueError(f"q_min = {self.q_min} must not be above q_max = {self.q_max}")
        return self

    def initial(self) -> Compass:
        """No speed is known, and no group."""
        return Compass()

    def on(self, event: Event, state: Compass, view: View) -> Iterator[Command]:
        """Algorithm 1, FEDCOMPASS-SERVER."""
        match event:
            case Begin():
                for client in view.fleet.idle():
                    yield Train(client, self.q_min)  # line 8
            case Joined():
                if view.fleet.is_idle(event.client):
                    yield Train(event.client, self.q_min)
            case Arrived():
                yield from self._arrived(event, state, view)
            case Timer():
                group = state.groups[int(event.timer.removeprefix("group "))]
                group.fired = True
                yield from self._group_aggregate(group, state, view)
            case Lost():
                yield from self._without(event.client, state, view)
                yield from self._dispatch(event.client, state, view)
            case Left():
                for group in state.groups.values():
                    if event.client in group.waiting:
                        group.waiting.remove(event.client)
                        group.fastest = None
                yield from self._without(event.client, state, view)

    def _arrived(self, event: Arrived, state: Compass, view: View) -> Iterator[Command]:
        client, task = event.client, event.task
        elapsed = view.now - view.task(task).started
        # Line 12. A clock may not resolve an empty task, and steps are a time divided by seconds per step.
        measured = max(elapsed / event.steps, 1e-9)
        known = state.seconds_per_step.get(client, measured)
        state.seconds_per_step[client] = (1 - self.speed_memory) * measured + self.speed_memory * known
        group = state.groups.get(state.group_of.pop(client, -1))
        if group is None:  # lines 25-27
            yield Aggregate((task,), {"first": True}, server_step=False)
            yield from self._dispatch(client, state, view)
        elif is_after(view.now, group.T_max):  # lines 16-19
            state.late.append(task)
            yield from self._stop_waiting(client, group, state, view)
            yield from self._dispatch(client, state, view)
        else:  # lines 21-23
            group.waiting.add(client)
            group.arrived.append(task)
            yield from self._stop_waiting(client, group, state, view)
            # A driver may feed the timer before an update that arrives at T_max: the group ends now.
            if group.expected and group.fired:
                yield from self._group_aggregate(group, state, view)

    def _without(self, client: ClientId, state: Compass, view: View) -> Iterator[Command]:
        """A client is lost or gone: its group, if it has one, stops waiting for it."""
        group = state.groups.get(state.group_of.pop(client, -1))
        if group is not None:
            yield from self._stop_waiting(client, group, state, view)

    def _stop_waiting(self, client: ClientId, group: Group, state: Compass, view: View) -> Iterator[Command]:
        """End a group whose last expected client this was, and aggregate the clients that have arrived."""
        group.expected.discard(client)
        group.fastest = None
        if group.expected:
            return
        del state.groups[group.id]
        if not group.fired:
            yield CancelTimer(group.timer)
        if group.arrived:
            yield from self._group_aggregate(group, state, view)

    def _group_aggregate(self, group: Group, state: Compass, view: View) -> Iterator[Command]:
        """Algorithm 3: Δ̄^g + Δ̄ at once, then new work from the fastest member to the slowest."""
        tasks = (*group.arrived, *state.late)
        if not tasks:
            return
        seconds = {client: state.seconds_per_step[client] for client in group.waiting}
        members = fastest_first(seconds, view.now)
        group.waiting.clear()
        group.fastest = None
        group.arrived.clear()
        state.late.clear()
        yield Aggregate(tasks, {"group": group.id})
        for client in members:
            yield from self._dispatch(client, state, view)

    def _dispatch(self, client: ClientId, state: Compass, view: View) -> Iterator[Command]:
        """Algorithm 2, ASSIGNGROUP: join a group or else create one, and train."""
        # The client's first task was lost, so its speed is unknown.
        if client not in state.seconds_per_step:
            yield Train(client, self.q_min)
            return
        steps, group = self._join(client, state, view.now)
        if group is None:
            steps, group = self._create(client, state, view.now)
            yield SetTimer(group.timer, group.T_max)
        group.expected.add(client)
        if group.fastest is not None:
            group.fastest = min(group.fastest, state.seconds_per_step[client])
        state.group_of[client] = group.id
        yield Train(client, steps, {"group": group.id, "T_a": group.T_a, "T_max": group.T_max})

    def _join(self, client: ClientId, state: Compass, now: float) -> tuple[int, Group | None]:
        """JOINGROUP: of the groups that q_min ≤ q ≤ q_max steps fit into, the one with most steps."""
        S = state.seconds_per_step[client]
        fits = [(steps_until(g.T_a, now, S), g.id) for g in state.groups.values()]
        fits = [(q, g) for q, g in fits if self.q_min <= q <= self.q_max]
        if not fits:
            return 0, None
        # Among equal q the later group is taken.
        q, g = max(fits)
        return q, state.groups[g]

    def _create(self, client: ClientId, state: Compass, now: float) -> tuple[int, Group]:
        """CREATEGROUP: aim at the time when a running group's fastest client ends its next q_max steps."""
        S, Q = state.seconds_per_step[client], -1
        for g in state.groups.values():
            if is_after(g.T_a, now):
                if g.fastest is None:
                    g.fastest = min(state.seconds_per_step[c] for c in (*g.expected, *g.waiting))
                T_exp = g.T_a + g.fastest * self.q_max
                Q = max(Q, steps_until(T_exp, now, S))
        if 0 <= Q < self.q_min:
            Q = self.q_min
        elif Q < 0 or self.q_max < Q:
            Q = self.q_max
        state.created += 1
        others = (g.T_max for g in state.groups.values() if not g.fired)
        T_max = latest_time(now + self.latest * Q * S, now, others)
        group = Group(state.created, T_a=now + Q * S, T_max=T_max)
        state.groups[group.id] = group
        return Q, group


@algorithm(
    paper="Li et al., FedCompass: Efficient Cross-Silo Federated Learning, ICLR 2024, Algorithms 1-3",
    kind="semi-asynchronous",
)
def fedcompass(
    q_min: QMin = 20,
    q_max: QMax = 100,
    *,
    latest: Latest = 1.2,
    staleness: StalenessWeight = PolynomialWeight(0.9, 0.5),
    momentum: Annotated[Memory, Field(description="server momentum β (+M); 0: none")] = 0.0,
    normalize: Annotated[bool, Field(description="divide each update by its steps (+N)")] = False,
    speed_memory: SpeedMemory = 0.0,
) -> Algorithm:
    """Clients get as many local steps as lets groups of them arrive together; no group waits past λ.

    w := w + Σ s(τ_i) p_i Δ_i over a group's and the late updates, s(τ) = 0.9 (τ + 1)^−½. A client's
    first response is applied by itself at once, without momentum. With `normalize` (FedNova's averaging,
    Section 5.1): w := w + (Σ p_i Q_i / Σ p_i) Σ s(τ_i) p_i Δ_i / Q_i.
    """
    return Algorithm(
        schedule=CompassSchedule(q_min, q_max, latest, speed_memory),
        aggregator=SumOfDeltas(staleness, normalize=Normalization() if normalize else None),
        objective=Plain(),
        server_steps=(Momentum(momentum),) if momentum else (),
    )
