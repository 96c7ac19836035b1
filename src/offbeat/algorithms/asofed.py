"""ASO-Fed: asynchronous online federated learning (Chen, Ning, Slawski, Rangwala, IEEE BigData 2020).

Each arrival is added at once by its share of the samples, w := w + (n_k/N) Δ_k, and the server may then
weigh the first layer's inputs ("feature learning"). A client keeps what its earlier gradients were: it goes

    ζ = ∇s − v + h,   s = f + (λ/2)‖w − w_o‖²,   and after its task   h := βh + (1 − β)v,   v := ∇s

with r times the learning rate, r = max(1, log d̄), d̄ its mean delay. Before its first task v = h = 0.

We know the method from its abstract, the equations others quote and third parties' code; these points we
could not establish, and chose:

- Δ_k is against the model the client started from, as in the third-party implementations we have seen.
  The other reading is against the server's copy of the client's last model (`against="copy"`, one model a
  client in the server's memory): it keeps w = Σ (n_k/N) w_k.
- v and h stay as they are during a task, every local step of which goes ζ; the ∇s kept afterwards is the
  mean over the task's steps.
- d̄ is in seconds of the driver's clock from dispatch to arrival, its logarithm is natural, and r = 1 before
  a client's first arrival. One implementation counts server iterations instead.
- λ = 0.01 and β = 0.5 are a third party's, not the paper's.
- Feature learning, w := α∘w with α = exp|w| / Σ exp|w| over each row of the first layer's weight (a row is an
  output unit's inputs; a convolution's kernel is laid out flat), is off by default. The mean of α over a row
  is 1 over the row's length, so that every aggregation shrinks the layer that many times: on the digits
  nothing is learned, and a third party has switched it off. Times the length of a row, the largest weights
  would grow at every aggregation: the digits' run ends in not-a-number. So there is no such option.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from math import e, log
from typing import Annotated, Any, ClassVar, Literal

import torch
from msgspec.structs import replace
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import Concurrency, Epochs, Positive, ProximalWeight, Share, Steps
from offbeat.algorithms.schedules import Buffered
from offbeat.core.aggregator import FullWeight, SumOnly, Update, UpdateSum
from offbeat.core.algorithm import Algorithm
from offbeat.core.buffers import Buffers
from offbeat.core.commands import Command, Train
from offbeat.core.errors import UsageError
from offbeat.core.events import Arrived, ClientId, Event, Metrics
from offbeat.core.features import NONE, Feature
from offbeat.core.layout import Layout
from offbeat.core.model import Model, Tensors
from offbeat.core.objective import LocalRun, Objective, flat
from offbeat.core.programme import programme
from offbeat.core.schedule import Schedule, ScheduleWrapper, Task, View
from offbeat.core.validation import checked_dataclass
from offbeat.vectors.arithmetic import weighted_sum

__all__ = ["DelayScaled", "Online", "OnlineSum", "asofed"]

Beta = Annotated[Share, Field(description="share β of the old h kept")]
Against = Annotated[
    Literal["start", "copy"],
    Field(description="a change is counted from the model started from, or the last sent"),
]
DelayUnit = Annotated[Positive, Field(description="seconds in which the delay d̄ of r counts as 1")]
Features = Annotated[bool, Field(description="reweigh the first layer's inputs, w := α∘w")]


@checked_dataclass
class OnlineSum(SumOnly):
    """w := w + (n_k/N) Δ_k, then, with `features`, the first layer's weight w := α∘w."""

    against: Against = "start"
    features: Features = False
    equal_weights = False
    # Summed changes could take a running variance below 0.
    buffers: ClassVar[Buffers] = "mean"

    @property
    def requires(self) -> frozenset[Feature]:
        """Each update, where the server keeps a copy of each client's model."""
        return frozenset({Feature.SINGLE_UPDATES}) if self.against == "copy" else NONE

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """The sum of the changes by their clients' shares, and the reweighting."""
        changes = [_from_copy(u, model, memory) if self.against == "copy" else u.delta for u in updates]
        return self._reweighed(weighted_sum(changes, [u.task.share for u in updates]), model)

    def importances(self, tasks: Sequence[Task], full: FullWeight, note: Mapping[str, Any]) -> list[float]:
        """min(1, p_i / p̂)."""
        return [min(1.0, t.share / full.share) for t in tasks]

    def sum_scale(self, tasks: Sequence[Task], importances: Sequence[float], full: FullWeight) -> float:
        """p̂."""
        return full.share

    def from_sum(self, summed: UpdateSum, model: Model, memory: Tensors) -> Tensor:
        """The sum, and the reweighting."""
        return self._reweighed(summed.total, model)

    def _reweighed(self, step: Tensor, model: Model) -> Tensor:
        """The step, and then w := α∘w with `features`."""
        if self.features:
            layer, rows = _first_layer(model.layout)
            w = (model.values[layer] + step[layer]).view(rows, -1)
            alpha = torch.softmax(w.abs(), dim=1)
            step[layer] = (alpha * w).view(-1) - model.values[layer]
        return step


def _from_copy(update: Update, model: Model, memory: Tensors) -> Tensor:
    """w_k less the copy of client k's last model, which was the first global model before it had any."""
    name = f"client {update.task.client}"
    copy = memory.get(name, memory.setdefault("first", model.values))
    memory[name] = update.base.values + update.delta
    return memory[name] - copy


def _first_layer(layout: Layout) -> tuple[slice, int]:
    """Where the first weight matrix (or kernel) is in the flat values, and its rows: the output units."""
    start = 0
    for entry in layout.section("parameter"):
        if len(entry.shape) > 1:
            return slice(start, start + entry.size), entry.shape[0]
        start += entry.size
    raise UsageError("features need a model with a weight matrix: use features = false")


@checked_dataclass
class Online(Objective):
    """Each step goes ζ = ∇s − v + h, with ∇s = ∇f + λ(w − w_o); the state is v and h."""

    proximal: ProximalWeight
    beta: Beta
    requires = frozenset({Feature.CLIENT_STATE})

    def begin(self, run: LocalRun) -> None:
        """v and h are 0 before the first task."""
        zeros = torch.zeros_like(flat(run.anchor))
        v, h = run.state.setdefault("v", zeros), run.state.setdefault("h", zeros)
        run.scratch["h - v"] = run.shaped(h - v)
        run.scratch["sum"] = [torch.zeros_like(w) for w in run.anchor]

    def adjust(self, run: LocalRun) -> None:
        """Make each gradient ∇s, note it, and add h − v."""
        if self.proximal:
            pull = torch._foreach_sub(run.values, list(run.anchor))
            torch._foreach_add_(run.gradients, pull, alpha=self.proximal)
        torch._foreach_add_(list(run.scratch["sum"]), run.gradients)
        torch._foreach_add_(run.gradients, list(run.scratch["h - v"]))

    def end(self, run: LocalRun) -> Metrics:
        """h := βh + (1 − β)v, then v := the mean of ∇s over the steps."""
        run.state["h"] = self.beta * run.state["h"] + (1 - self.beta) * run.state["v"]
        run.state["v"] = flat(run.scratch["sum"]) / run.steps
        return {}


@dataclass
class Delays:
    """The schedule inside and its state, and each client's tasks and seconds so far."""

    inner: Any
    tasks: dict[ClientId, int] = field(default_factory=dict)
    seconds: dict[ClientId, float] = field(default_factory=dict)


@plain_dataclass(frozen=True)
class DelayScaled(ScheduleWrapper):
    """Any schedule, with a client's learning rate times r = max(1, log d̄), d̄ its mean time for a task.

    d̄ is counted in units of `unit` seconds.
    """

    inner: Schedule
    unit: DelayUnit = 1.0

    def initial(self) -> Delays:
        """No delay is measured yet."""
        return Delays(self.inner.initial())

    def on(self, event: Event, state: Delays, view: View) -> Iterator[Command]:
        """Measure an arrival; scale the tasks that the schedule inside starts."""
        if isinstance(event, Arrived):
            client, took = event.client, view.now - view.task(event.task).started
            state.tasks[client] = state.tasks.get(client, 0) + 1
            state.seconds[client] = state.seconds.get(client, 0.0) + took
        for command in self.inner.on(event, state.inner, view):
            if isinstance(command, Train) and command.client in state.tasks:
                mean = state.seconds[command.client] / state.tasks[command.client] / self.unit
                r = log(mean) if mean > e else 1.0
                command = replace(command, lr_factor=command.lr_factor * r)
            yield command


@algorithm(
    paper="Chen et al., Asynchronous Online Federated Learning for Edge Devices, IEEE BigData 2020",
    kind="asynchronous",
)
def asofed(
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    concurrency: Concurrency = None,
    proximal: ProximalWeight = 0.01,
    beta: Beta = 0.5,
    against: Against = "start",
    delay_unit: DelayUnit = 1.0,
    features: Features = False,
) -> Algorithm:
    """Every update is added on its arrival; clients balance their gradients with earlier ones.

    w := w + (n_k/N) Δ_k. The client steps along ζ = ∇s − v + h, s = loss + (λ/2)‖w − w_o‖², with max(1, log
    d̄) times its learning rate (d̄: its mean time for a task in units of `delay_unit` seconds). Then h := βh
    + (1 − β)v, v := ∇s. We had no access to the paper's text; the head of the module says what is our
    reading. A client keeps v and h.
    """
    return Algorithm(
        schedule=DelayScaled(Buffered(programme(steps, epochs), 1, concurrency), delay_unit),
        aggregator=OnlineSum(against, features),
        objective=Online(proximal, beta),
    )
