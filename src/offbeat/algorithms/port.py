"""PORT: asynchronous up to a bound on staleness (Su and Li, IWQoS 2022).

The server aggregates as soon as K updates are here, unless that would make the update of somebody who
still trains more than τ_max versions old. Then it waits for that client or, *urgent*, asks it to report
at its next epoch's end what it has.

Where the paper leaves something open, this file follows these rules:

- free places are given out after an aggregation, not before, as in its authors' implementation; a place
  that becomes free because a task is lost stays free until then;
- when nobody trains any more, what is here is aggregated, be it fewer than K updates;
- a client whose task is lost or who leaves is not waited for;
- an update that is zero has the cosine 0 with a movement of the model.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from math import sqrt
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor

from offbeat.algorithms.aggregators import by_samples, shares, toward_bases, toward_models
from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import Concurrency, Count, Epochs, NonNegative, Steps
from offbeat.algorithms.schedules import train
from offbeat.core.aggregator import FullWeight, SumOnly, Update, UpdateSum
from offbeat.core.algorithm import Algorithm
from offbeat.core.buffers import Buffers
from offbeat.core.commands import Aggregate, Command, Recall
from offbeat.core.events import Arrived, Event, TaskId
from offbeat.core.features import NONE, Feature
from offbeat.core.model import Model, Tensors
from offbeat.core.programme import Programme, programme
from offbeat.core.schedule import Schedule, Task, View
from offbeat.core.validation import checked_dataclass
from offbeat.local.objectives import Plain
from offbeat.vectors.arithmetic import chunks, head, weighted_sum

__all__ = ["Bounded", "Similarity", "port"]

Size = Annotated[Count, Field(description="fewest updates K of an aggregation")]
TauMax = Annotated[Count, Field(description="bound τ_max on an update's staleness")]
Urgent = Annotated[bool, Field(description="recall clients at the bound instead of waiting")]
Alpha = Annotated[NonNegative, Field(description="weight α of an update's freshness")]
Beta = Annotated[NonNegative, Field(description="weight β of an update's direction")]
Average = Annotated[
    Literal["deltas", "models"], Field(description="what is averaged; the authors' code: models")
]


@checked_dataclass
class Bounded(Schedule):
    """`concurrency` clients (None: all) train; `size` updates or more are aggregated, none staler than τ_max.

    Before an aggregation that would make a running task staler than `tau_max`, the server waits for it
    or, `urgent`, recalls it.
    """

    programme: Programme
    size: Size
    tau_max: TauMax
    concurrency: Concurrency = None
    urgent: Urgent = False
    snapshots = True

    @property
    def requires(self) -> frozenset[Feature]:
        """Clients that can be recalled, if the schedule recalls them."""
        return frozenset({Feature.RECALL}) if self.urgent else NONE

    def initial(self) -> list[TaskId]:
        """No update has arrived."""
        return []

    def on(self, event: Event, state: list[TaskId], view: View) -> Iterator[Command]:
        """Whatever happens, see whether the updates that are here can be aggregated now."""
        if isinstance(event, Arrived):
            state.append(event.task)
        if view.running and len(state) < self.size:
            return
        overdue = takewhile(lambda t: view.version + 1 - t.base > self.tau_max, view.tasks.values())
        if (oldest := next(overdue, None)) is not None:
            for task in (oldest, *overdue) if self.urgent else ():
                if not task.recalled:
                    yield Recall(task.client)
            return
        if state:
            yield Aggregate(tuple(state))
            state.clear()
        free = (self.concurrency or len(view.fleet)) - view.running
        for client in view.sample_idle(free) if free > 0 else ():
            yield train(client, self.programme, view)


@checked_dataclass
class Similarity(SumOnly):
    """w := w + Σ ω_i Δ_i, ω_i ∝ n_i (α g(τ_i) + β (1 + cos(Δ_i, w − w_o)) / 2), Σ ω_i = 1.

    g(τ) = τ_max / (τ + τ_max). The cosine, over the parameters without buffers, is 1 where the model has
    not moved since the update's base w_o. With `average` "models" it is w := Σ ω_i w_i. Where all
    weights are 0 they are ∝ n_i.
    """

    alpha: Alpha = 1.0
    beta: Beta = 1.0
    tau_max: TauMax = 10
    average: Average = "deltas"
    equal_weights = False
    # Summed changes could take a running variance below 0.
    buffers: ClassVar[Buffers] = "mean"

    @property
    def requires(self) -> frozenset[Feature]:
        """Each update, where its direction counts."""
        return frozenset({Feature.SINGLE_UPDATES}) if self.beta else NONE

    @model_validator(mode="after")
    def _some_weight(self) -> Self:
        if self.alpha == self.beta == 0:
            raise ValueError("alpha and beta must not both be 0")
        return self

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """The sum of the updates, by their samples, freshness and direction."""
        return self._step(updates, model)

    def step_in_place(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """The step, in place of the first Δ."""
        return self._step(updates, model, updates[0].delta)

    def _step(self, updates: Sequence[Update], model: Model, out: Tensor | None = None) -> Tensor:
        weights = [u.task.samples * self._trust(u, model) for u in updates]
        if not any(weights):
            weights = [float(u.task.samples) for u in updates]
        if self.average == "models":
            return toward_models(updates, shares(weights), model, out)
        return weighted_sum([u.delta for u in updates], shares(weights), out)

    def importances(self, tasks: Sequence[Task], full: FullWeight, note: Mapping[str, Any]) -> list[float]:
        """min(1, n_i / n̂) g(τ_i): without directions, α is a common factor."""
        data = by_samples(tasks, full)
        return [d_i * self._freshness(t) for d_i, t in zip(data, tasks, strict=True)]

    def sum_scale(self, tasks: Sequence[Task], importances: Sequence[float], full: FullWeight) -> float:
        """1 / Σ of the importances."""
        return 1 / sum(importances)

    def from_sum(self, summed: UpdateSum, model: Model, memory: Tensors) -> Tensor:
        """The sum itself, or toward the models."""
        return toward_bases(summed, model) if self.average == "models" else summed.total

    def _freshness(self, task: Task) -> float:
        """g(τ)."""
        return self.tau_max / (task.staleness + self.tau_max)

    def _trust(self, update: Update, model: Model) -> float:
        """α g(τ) + β (1 + cos) / 2."""
        g = self._freshness(update.task)
        cos = _cosine(update, model) if self.beta else 1.0
        return self.alpha * g + self.beta * (1 + cos) / 2


def _cosine(update: Update, model: Model) -> float:
    """cos(Δ_i, w − w_o) over the parameters, in one pass; 1 where w = w_o."""
    if update.base is model:
        return 1.0
    vectors = (update.delta, model.values, update.base.values)
    along = delta2 = moved2 = 0.0
    d = model.layout.parameters
    for delta, now, base in chunks(*(head(v, d) for v in vectors)):
        # `double` returns a float64 vector itself: nothing here may be changed in place.
        delta, moved = delta.double(), now.double() - base
        along += float(delta.dot(moved))
        delta2 += float(delta.dot(delta))
        moved2 += float(moved.dot(moved))
    if moved2 == 0:
        return 1.0
    return max(-1.0, min(1.0, along / sqrt(delta2 * moved2))) if delta2 else 0.0


@algorithm(paper="Su, Li, How Asynchronous can Federated Learning Be?, IWQoS 2022", kind="semi-asynchronous")
def port(
    size: Size = 10,
    tau_max: TauMax = 10,
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    concurrency: Concurrency = None,
    alpha: Alpha = 1.0,
    beta: Beta = 1.0,
    urgent: Urgent = False,
    average: Average = "deltas",
) -> Algorithm:
    """K updates or more are aggregated at a time, and no update becomes staler than a bound.

    w := w + Σ ω_i Δ_i, ω_i ∝ n_i (α g(τ_i) + β (1 + cos(Δ_i, w − w_o)) / 2), g(τ) = τ_max / (τ + τ_max).
    The server waits for a client that would exceed τ_max, or recalls it with `urgent`. A recalled client
    reports at the end of its epoch, so a task of less than an epoch is not shortened. No client starts
    between aggregations.
    """
    return Algorithm(
        schedule=Bounded(programme(steps, epochs), size, tau_max, concurrency, urgent),
        aggregator=Similarity(alpha, beta, tau_max, average),
        objective=Plain(),
    )
