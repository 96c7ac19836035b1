"""FedAT: synchronous tiers of clients of similar speed, asynchronous to each other (Chai et al., SC 2021).

The paper takes the tiers as given. Here they are found on the fly: everybody is given a first task, and
a client's response time is the time from dispatch to arrival. The first arrival opens a tier for times
up to v times its own; the first one that no tier covers opens the next. A tier's first round is over
when everybody it covers must have answered, so nobody waits for a slower tier.

Where the paper leaves something open, this file follows these rules:

- ranges are half-open and disjoint; a tier that is opened where the next one begins below v r ends there,
  and begins v times lower, or where the one before ends;
- a client that joins later, or whose first task is lost, is measured by a task of its own; that update is
  aggregated with its tier's round at hand, and the client takes part from the next round on;
- a client that comes back goes to the tier it was in;
- a tier counts from its first aggregation on and while it has clients: until then it has no model, and a
  model that nobody renews must not outweigh the others. The counts T_m start at 1.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from offbeat.algorithms.aggregators import MeanOfModels, by_samples, from_memory, shares, toward_bases
from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import Count, Epochs, ProximalWeight, Steps
from offbeat.algorithms.schedules import Round, train
from offbeat.core.aggregator import FullWeight, SumOnly, Update, UpdateSum
from offbeat.core.algorithm import Algorithm
from offbeat.core.commands import Aggregate, CancelTimer, Command, SetTimer
from offbeat.core.events import Arrived, Begin, ClientId, Event, Joined, Left, Lost, TaskId, Timer
from offbeat.core.features import Feature
from offbeat.core.model import Model, Tensors
from offbeat.core.programme import Programme, programme
from offbeat.core.schedule import Schedule, Task, View
from offbeat.core.streams import Purpose
from offbeat.core.types import NUMBER
from offbeat.core.validation import checked_dataclass
from offbeat.local.objectives import Proximal
from offbeat.vectors.arithmetic import weighted_sum
from offbeat.vectors.chunked import for_each_chunk

__all__ = ["TierWeights", "Tiers", "fedat"]

Ratio = Annotated[
    float, Field(gt=1, allow_inf_nan=False, description="ratio v of response times within a tier"), NUMBER
]
ClientsPerTier = Annotated[
    Count | None, Field(description="clients in a tier's round; None means all of the tier")
]
Retier = Annotated[bool, Field(description="move clients whose response time changes")]


@dataclass
class Tier(Round):
    """The present clients whose response time (seconds) is in [low, high), and their current round."""

    id: int = 0
    low: float = 0.0
    high: float = 0.0
    members: set[ClientId] = field(default_factory=set)
    # The first round takes all clients that answer in time.
    forming: bool = False
    # Only tiers that have been aggregated have a weight.
    counted: bool = False

    @property
    def timer(self) -> str:
        """Name of the timer that ends its first round."""
        return f"tier {self.id}"


@dataclass
class Tiering:
    """The schedule's state: the tiers from the fastest on, and the response time of each client."""

    started: float = 0.0
    # These clients still train the task that they got at the start.
    first: set[ClientId] = field(default_factory=set)
    tiers: list[Tier] = field(default_factory=list)
    tier_of: dict[ClientId, int] = field(default_factory=dict)  # by the tier's number
    seconds: dict[ClientId, float] = field(default_factory=dict)

    def tier(self, client: ClientId) -> Tier | None:
        """The tier of a client; None before its response time is known."""
        number = self.tier_of.get(client)
        return next((tier for tier in self.tiers if tier.id == number), None)


@checked_dataclass
class Tiers(Schedule):
    """A round per tier of clients within `ratio` (v) of each other: `clients_per_tier` at random or all.

    With `retier` a client's time is the mean of what it was and its newest; after a round, it goes to
    the tier that covers it.
    """

    programme: Programme
    ratio: Ratio = 2.0
    clients_per_tier: ClientsPerTier = None
    retier: Retier = False
    snapshots = True
    provides = frozenset({Feature.TIERS})

    def initial(self) -> Tiering:
        """No speed is known, and no tier."""
        return Tiering()

    def on(self, event: Event, state: Tiering, view: View) -> Iterator[Command]:
        """Measure new clients; collect the rounds' updates; close the rounds that are over."""
        match event:
            case Begin():
                state.started = view.now
                state.first.update(view.fleet.idle())
                for client in view.fleet.idle():
                    yield train(client, self.programme, view)
            case Joined():
                if (tier := state.tier(event.client)) is not None:
                    tier.members.add(event.client)
                elif view.fleet.is_idle(event.client):
                    yield train(event.client, self.programme, view)
            case Arrived():
                yield from self._arrived(event.client, event.task, state, view)
            case Lost() | Left():
                yield from self._without(event, state, view)
            case Timer():
                next(t for t in state.tiers if t.timer == event.timer).forming = False
        # No client trains the task of the start any more.
        if not state.first:
            for tier in state.tiers:
                if tier.forming:
                    tier.forming = False
                    yield CancelTimer(tier.timer)
        yield from self._rounds(state, view)

    def _arrived(self, client: ClientId, task: TaskId, state: Tiering, view: View) -> Iterator[Command]:
        # A clock may not resolve an empty task, and a response time of 0 is in no tier.
        seconds = max(view.now - view.task(task).started, 1e-9)
        state.first.discard(client)
        if client not in state.tier_of:
            state.seconds[client] = seconds
            yield from self._assign_tier(client, state, view)
        elif self.retier:
            state.seconds[client] = (state.seconds[client] + seconds) / 2
        tier = state.tier(client)
        assert tier is not None
        tier.expected.discard(client)
        tier.arrived.append(task)

    def _without(self, event: Lost | Left, state: Tiering, view: View) -> Iterator[Command]:
        """Stop waiting for a client."""
        client = event.client
        state.first.discard(client)
        tier = state.tier(client)
        if tier is not None:
            tier.expected.discard(client)
            if isinstance(event, Left):
                tier.members.discard(client)
        # The client has lost its first task: it has no response time yet, so it trains again.
        elif isinstance(event, Lost):
            yield train(client, self.programme, view)

    def _assign_tier(self, client: ClientId, state: Tiering, view: View) -> Iterator[Command]:
        """Put a client into the tier that covers its response time; a new one where none does."""
        r, tiers = state.seconds[client], state.tiers
        after = bisect_right(tiers, r, key=lambda tier: tier.low)
        if after and r < tiers[after - 1].high:
            tier = tiers[after - 1]
        else:
            tier = self._open(r, after, state)
            tier.forming = bool(state.first) and view.now < state.started + tier.high
            if tier.forming:
                yield SetTimer(tier.timer, state.started + tier.high)
        tier.members.add(client)
        state.tier_of[client] = tier.id

    def _open(self, r: float, after: int, state: Tiering) -> Tier:
        """A new tier that covers the response time r, before the tier number `after` of those there are."""
        tiers = state.tiers
        low, high = r, self.ratio * r
        if after < len(tiers) and high > tiers[after].low:
            high = tiers[after].low
            low = min(r, max(high / self.ratio, tiers[after - 1].high if after else 0.0))
        tier = Tier(id=len(tiers) + 1, low=low, high=high)
        tiers.insert(after, tier)
        return tier

    def _rounds(self, state: Tiering, view: View) -> Iterator[Command]:
        """Aggregate every tier whose round is over; then let its clients train again."""
        for tier in [t for t in state.tiers if t.arrived and not t.expected and not t.forming]:
            tier.counted = True
            order = [t.id for t in state.tiers if t is tier or (t.counted and t.members)]
            yield Aggregate(tuple(tier.arrived), {"tier": tier.id, "order": order})
            tier.arrived.clear()
            if self.retier:
                yield from self._move(tier, state, view)
        for tier in state.tiers:
            if not tier.expected and not tier.forming:
                for client in self._choose(tier, view):
                    tier.expected.add(client)
                    yield train(client, self.programme, view)

    def _move(self, tier: Tier, state: Tiering, view: View) -> Iterator[Command]:
        """The clients of a tier whose response time is not in its range any more go where it is."""
        for client in sorted(tier.members):
            if not tier.low <= state.seconds[client] < tier.high:
                tier.members.discard(client)
                yield from self._assign_tier(client, state, view)

    def _choose(self, tier: Tier, view: View) -> list[ClientId]:
        """The clients of the next round."""
        idle = sorted(client for client in tier.members if view.fleet.is_idle(client))
        if self.clients_per_tier is None or len(idle) <= self.clients_per_tier:
            return idle
        chosen = view.rng(Purpose.SCHEDULE).choice(idle, self.clients_per_tier, replace=False)
        return sorted(int(client) for client in chosen)


@checked_dataclass
class TierWeights(SumOnly):
    """w := Σ_m (T_{M+1−m} / T) w_m over the M tiers in `order`, each with its own w_m = Σ n_i w_i / Σ n_i.

    Tier 1 is the fastest, T_m is 1 + the number of its aggregations, T = Σ T_m. So the slowest tier has
    the share that the fastest one has of the aggregations.
    """

    requires = frozenset({Feature.TIERS})
    apart = ("tier",)
    equal_weights = False

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """Renew the tier's own model, and go to the weighted mean of all tiers' models."""
        return _mix(MeanOfModels().step(updates, model, memory), updates[0].note, model, memory)

    def step_in_place(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """The step, in place of the first Δ."""
        return _mix(MeanOfModels().step_in_place(updates, model, memory), updates[0].note, model, memory)

    def importances(self, tasks: Sequence[Task], full: FullWeight, note: Mapping[str, Any]) -> list[float]:
        """min(1, n_i / n̂)."""
        return by_samples(tasks, full)

    def sum_scale(self, tasks: Sequence[Task], importances: Sequence[float], full: FullWeight) -> float:
        """1 / Σ of the importances."""
        return 1 / sum(importances)

    def from_sum(self, summed: UpdateSum, model: Model, memory: Tensors) -> Tensor:
        """The tier's own model from the sum, and the weighted mean of all tiers' models."""
        return _mix(toward_bases(summed, model), summed.note, model, memory)


def _mix(step: Tensor, note: Mapping[str, Any], model: Model, memory: Tensors) -> Tensor:
    """Make the step to a tier's model the step to the weighted mean, in place; the tier's model is kept.

    A tier whose updates are still pooled has no model, and does not count yet.
    """
    tier = note["tier"]
    from_memory(memory, f"tier.{tier}", step)
    order = [m for m in note["order"] if f"tier.{m}" in memory]
    memory[f"updates.{tier}"] = memory.get(f"updates.{tier}", torch.ones(1, dtype=torch.int64)) + 1
    weights = shares([int(memory[f"updates.{m}"]) for m in reversed(order)])  # T_{M+1−m} / T

    def mix(out: Tensor, w: Tensor, *tiers: Tensor) -> None:
        torch.add(out, w, out=tiers[order.index(tier)])  # w_m
        weighted_sum(tiers, weights, out).sub_(w)

    for_each_chunk(mix, step, model.values, *(memory[f"tier.{m}"] for m in order))
    return step


@algorithm(
    paper="Chai et al., FedAT: A High-Performance and Communication-Efficient FL System, SC 2021",
    kind="semi-asynchronous",
)
def fedat(
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    ratio: Ratio = 2.0,
    clients_per_tier: ClientsPerTier = None,
    mu: ProximalWeight = 0.4,
    retier: Retier = False,
) -> Algorithm:
    """Clients of similar speed form tiers; each tier has its own rounds, and rare tiers weigh more.

    w := Σ_m (T_{M+1−m} / T) w_m, where w_m is tier m's mean of models and T_m counts its aggregations: the
    weight of the slowest tier is the fastest tier's share of the aggregations. The tiers are found during
    the run, within a ratio v of response times; FedCompass's tables use v = 2. Clients minimise their loss
    + (λ/2)‖w − w_o‖².
    """
    return Algorithm(
        schedule=Tiers(programme(steps, epochs), ratio, clients_per_tier, retier),
        aggregator=TierWeights(),
        objective=Proximal(mu),
    )
