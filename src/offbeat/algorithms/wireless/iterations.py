"""Asynchronous federated learning over a shared radio (Hu, Chen, Larsson, 2023, Sections III-V).

Devices train at their own pace and say when they are ready. Every T̃ seconds the server measures the
channels of those that are, 𝒦(t), and schedules some of them, Π(t), to upload: the symbols of the period
are shared so that each can send the same number of bits, and each compresses its update to them. The new
model is a mean of models, w := Σ_{k∈Π} w_k (w_o + û_k), weighted by data and age, and goes to all of
𝒦(t), scheduled or not: the updates of the others are discarded. Who is not ready keeps training.

- the age a_k = t − s_k counts the iterations since a device received its model; a device that received
  one at the end of iteration t − 1 and is ready at t has age 0;
- iterations count on when nobody is ready;
- γ < 1 favours fresh updates (the paper's proposal), γ > 1 old ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any

from msgspec.structs import replace
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from offbeat.algorithms.aggregators import by_samples, shares, toward_bases, toward_models
from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import Count, Epochs, Positive, ProximalWeight, Steps
from offbeat.algorithms.schedules import Round, train
from offbeat.algorithms.wireless.bandwidth import Halving, equal_bits, with_decayed_lr
from offbeat.algorithms.wireless.policies import Candidate, DataImportance, Policy
from offbeat.codec import AnyCodec, SparseQuantised
from offbeat.core.aggregator import FullWeight, SumOnly, Update, UpdateSum
from offbeat.core.algorithm import Algorithm
from offbeat.core.commands import Aggregate, Command, Discard, Measure, SetTimer, Upload
from offbeat.core.events import Arrived, Begin, ClientId, Event, Joined, Left, Lost, Measured, Ready, Timer
from offbeat.core.features import Feature
from offbeat.core.model import Model, Tensors
from offbeat.core.programme import Programme, programme
from offbeat.core.schedule import Schedule, Task, View
from offbeat.core.staleness import AgeWeight
from offbeat.core.streams import Purpose
from offbeat.core.validation import checked_dataclass
from offbeat.local.objectives import Plain, Proximal

Scheduled = Annotated[Count, Field(description="R, most clients that upload in an iteration")]
Period = Annotated[
    Positive | None, Field(description="T̃, seconds an iteration; None means until all are ready")
]
Slot = Annotated[
    Positive | None, Field(description="seconds of radio in an iteration; None means the period")
]
Gamma = Annotated[Positive, Field(description="γ of the age weights; below 1 favours fresh updates")]
TICK = "iteration"


@dataclass
class Iterations(Round):
    """The server's state.

    `t` is the number of the iteration, from 1; `since` s_k by client, `times` how often a client was
    scheduled and `last` when, `ready` the length ‖u_k‖ of the update each ready client holds, where it tells.
    While an iteration is under way, `expected` are the scheduled clients whose update is not here, `arrived`
    those that are with their `ages`, and `freed` all of 𝒦(t).
    """

    t: int = 0
    ticking: bool = False
    under_way: bool = False
    since: dict[ClientId, int] = field(default_factory=dict)
    times: dict[ClientId, int] = field(default_factory=dict)
    last: dict[ClientId, int] = field(default_factory=dict)
    ready: dict[ClientId, float | None] = field(default_factory=dict)
    ages: list[int] = field(default_factory=list)
    freed: list[ClientId] = field(default_factory=list)


@checked_dataclass
class RadioIterations(Schedule):
    """Every `period` seconds (T̃) at most `scheduled` (R) of the clients that are ready upload.

    Without a period, the schedule is synchronous: an iteration begins when every client is ready. An
    iteration has the radio for `slot` seconds; None means the period, or the channel's own iteration. The
    learning rate halves in the first `halving` seconds; None means that the learning rate stays.
    """

    programme: Programme
    scheduled: Scheduled
    policy: Policy
    period: Period = None
    slot: Slot = None
    halving: Halving = None

    @property
    def requires(self) -> frozenset[Feature]:
        """A channel, and the features that the policy needs."""
        own = {Feature.LABELS: self.policy.needs_labels, Feature.NORMS: self.policy.needs_norms}
        return frozenset({Feature.RADIO, *(feature for feature, needed in own.items() if needed)})

    @property
    def largest_aggregation(self) -> int | None:
        """The clients of an iteration."""
        return self.scheduled

    def initial(self) -> Iterations:
        """No device is ready."""
        return Iterations()

    def on(self, event: Event, state: Iterations, view: View) -> Iterator[Command]:
        """Count the ready clients, and take an iteration from its tick to the new model."""
        match event:
            case Begin():
                yield from self._train(view.fleet.idle(), state, view)
            case Joined():
                if view.begun and view.fleet.is_idle(event.client):
                    yield from self._train([event.client], state, view)
            case Ready():
                state.ready[event.client] = event.metrics.get("norm")
            case Timer():
                state.ticking = False
                if not state.under_way:
                    yield from self._begin(state)
            case Measured():
                yield from self._schedule(event, state, view)
            case Arrived():
                state.expected.discard(event.client)
                state.arrived.append(event.task)
                state.ages.append(state.t - state.since[event.client])
            case Lost() | Left():
                state.ready.pop(event.client, None)
                state.expected.discard(event.client)
                if isinstance(event, Lost):
                    yield from self._train([event.client], state, view)
        yield from self._go_on(event, state, view)

    def _go_on(self, event: Event, state: Iterations, view: View) -> Iterator[Command]:
        """Close an iteration whose updates have all arrived; start one if no further device is waited for."""
        if state.under_way and not state.expected and state.freed:
            yield from self._close(state, view)
        if self.period is not None:
            if view.begun and not state.ticking and len(view.fleet):
                state.ticking = True
                yield SetTimer(TICK, view.now + self.period)
        elif not state.under_way and state.ready and len(state.ready) == view.running:
            yield from self._begin(state)

    def _begin(self, state: Iterations) -> Iterator[Command]:
        """Count an iteration, and measure the channels; nothing happens in it where 𝒦(t) is empty."""
        state.t += 1
        if state.ready:
            state.under_way = True
            yield Measure(tuple(sorted(state.ready)), self.slot or self.period)

    def _schedule(self, event: Measured, state: Iterations, view: View) -> Iterator[Command]:
        """Choose Π(t) and share the symbols (Eq. 9); the others of 𝒦(t) discard their updates."""
        capacity = dict(event.capacities)
        candidates = [
            Candidate(k, capacity[k], norm, view.fleet.labels(k), self._unscheduled(k, state))
            for k, norm in sorted(state.ready.items())
            # Nothing can be sent through a channel without capacity.
            if capacity.get(k, 0.0) > 0
        ]
        rng = view.rng(Purpose.SCHEDULE)
        chosen, bits = [], 0.0
        if candidates:
            chosen = self.policy.choose(candidates, self.scheduled, rng, len(view.fleet))
            bits, _ = equal_bits(event.symbols, [capacity[k] for k in chosen])
        state.freed, state.expected = sorted(state.ready), set(chosen)
        # If none is freed, all devices have left.
        state.under_way = bool(state.freed)
        state.ready.clear()
        for k in state.freed:
            if k in state.expected:
                state.times[k], state.last[k] = state.times.get(k, 0) + 1, state.t
                yield Upload(k, int(bits))
            else:
                yield Discard(k, "not scheduled")

    def _unscheduled(self, client: ClientId, state: Iterations) -> int:
        """c_k(t)."""
        return self.policy.unscheduled(state.t - 1, state.times.get(client, 0), state.last.get(client, 0))

    def _close(self, state: Iterations, view: View) -> Iterator[Command]:
        """The new model, to all of 𝒦(t)."""
        if state.arrived:
            yield Aggregate(tuple(state.arrived), {"iteration": state.t, "ages": list(state.ages)})
        freed = [k for k in state.freed if view.fleet.is_idle(k)]
        state.arrived.clear()
        state.ages.clear()
        state.freed.clear()
        state.under_way = False
        yield from self._train(freed, state, view)

    def _train(self, clients: Sequence[ClientId], state: Iterations, view: View) -> Iterator[Command]:
        for k in clients:
            state.since[k] = state.t + 1  # s_k: the device holds θ(t + 1)
            command = replace(train(k, self.programme, view), hold=True)
            yield with_decayed_lr(command, self.halving, view.now)


@checked_dataclass
class AgeWeighted(SumOnly):
    """w := Σ w_k (w_o + û_k), w_k = n_k γ^{a_k} / Σ n_j γ^{a_j} (Eq. 13).

    The schedule counts the ages in iterations. Under another schedule, a_k is the staleness τ_k.
    """

    gamma: Gamma = 1.0
    equal_weights = False

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """Toward the weighted mean of the models: nothing of the global model stays."""
        return self._step(updates, model)

    def step_in_place(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """The step, in place of the first Δ."""
        return self._step(updates, model, updates[0].delta)

    def _step(self, updates: Sequence[Update], model: Model, out: Tensor | None = None) -> Tensor:
        ages = updates[0].note.get("ages") or [u.task.staleness for u in updates]
        power = AgeWeight(self.gamma)
        weights = [u.task.samples * power(a) for u, a in zip(updates, ages, strict=True)]
        if not any(weights):
            # The powers are too small for floating point. Only the differences of the ages count.
            weights = [u.task.samples * power(a - min(ages)) for u, a in zip(updates, ages, strict=True)]
        return toward_models(updates, shares(weights), model, out)

    def importances(self, tasks: Sequence[Task], full: FullWeight, note: Mapping[str, Any]) -> list[float]:
        """min(1, n_i / n̂) γ^{a_i}."""
        ages = note.get("ages") or [t.staleness for t in tasks]
        power = AgeWeight(self.gamma)
        return [d_i * power(a) for d_i, a in zip(by_samples(tasks, full), ages, strict=True)]

    def sum_scale(self, tasks: Sequence[Task], importances: Sequence[float], full: FullWeight) -> float:
        """1 / Σ of the importances."""
        return 1 / sum(importances)

    def from_sum(self, summed: UpdateSum, model: Model, memory: Tensors) -> Tensor:
        """Toward the weighted mean of the models."""
        return toward_bases(summed, model)


@algorithm(
    paper="Hu et al., Scheduling and Aggregation Design for Asynchronous Federated Learning over "
    "Wireless Networks, 2023, Sections II to V",
    kind="semi-asynchronous",
)
def wireless(
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    scheduled: Scheduled = 8,
    period: Period = None,
    policy: Policy = DataImportance(),
    gamma: Gamma = 1.0,
    mu: ProximalWeight = 0.02,
    codec: Annotated[
        AnyCodec | None,
        Field(discriminator="kind", description="how updates are made to fit their bits; None means not"),
    ] = SparseQuantised(),
    slot: Slot = None,
    halving: Halving = None,
) -> Algorithm:
    """Periodically some of the ready clients send, within the capacity of the shared radio.

    θ(t+1) := Σ_{k∈Π} w_k (θ_k(t, 0) + û_k), w_k ∝ |S_k| γ^{a_k} (Eq. 13), goes to all clients that were
    ready. It needs a world with a channel. With the period T_max, γ = 1, μ = 0 and random scheduling it is
    synchronous FedAvg with R of N clients. The default γ = 1 weighs by data alone, as Equation 5; the paper
    gives no value for γ < 1.
    """
    local = programme(steps, epochs)
    return Algorithm(
        schedule=RadioIterations(local, scheduled, policy, period=period, slot=slot, halving=halving),
        aggregator=AgeWeighted(gamma),
        objective=Proximal(mu) if mu else Plain(),
        codec=codec,
    )
