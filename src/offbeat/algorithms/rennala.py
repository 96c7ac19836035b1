"""Rennala and Malenia SGD: fresh updates only, until there are enough (Tyurin, Richtárik, NeurIPS 2023).

All clients train from the current model, again and again. B_i of client i's updates have arrived. The version
is made once there are enough of them:

    Rennala:  Σ B_i = S                         w := w + γ (1 / Σ B_i) Σ_i Σ_j Δ_ij
    Malenia:  (1/n Σ 1 / B_i)⁻¹ > S / n         w := w + γ (1/n) Σ_i (1 / B_i) Σ_j Δ_ij

Then the tasks under way are stopped, or their updates dropped when they arrive, and all start anew. So
Rennala is for data of one distribution: whom it does not wait for, it does not learn from. Malenia waits for
everybody.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import field
from fractions import Fraction
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from offbeat.algorithms.aggregators import SumOfDeltas
from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import Concurrency, Count, Epochs, ServerRate, Steps
from offbeat.algorithms.schedules import train
from offbeat.core.aggregator import Aggregator, Update
from offbeat.core.algorithm import Algorithm
from offbeat.core.buffers import Buffers
from offbeat.core.commands import Aggregate, Command, Discard, Drop
from offbeat.core.events import Arrived, ClientId, Event, TaskId
from offbeat.core.features import NONE, Feature
from offbeat.core.model import Model, Tensors
from offbeat.core.programme import Programme, programme
from offbeat.core.schedule import Schedule, View
from offbeat.core.validation import checked_dataclass
from offbeat.local.objectives import Plain
from offbeat.vectors.arithmetic import weighted_sum

__all__ = ["Collected", "MeanByClient", "malenia", "rennala"]

Size = Annotated[Count, Field(description="updates S that make a version")]
Stop = Annotated[bool, Field(description="whether the tasks under way are stopped when a version is made")]
OLDER = "it starts from an older version"
MADE = "a version has been made"


@dataclass
class Collection:
    """The updates from the current version that have arrived, and their numbers B_i by client."""

    tasks: list[TaskId] = field(default_factory=list)
    made: dict[ClientId, int] = field(default_factory=dict)


@checked_dataclass
class Collected(Schedule):
    """Synchronous: all train from the current version, again and again, until enough updates are together.

    By "count" `size` updates are enough. By "harmonic" they are enough once every client that is there has
    one, and the harmonic mean of the clients' numbers is above `size` / n. An update from an older version
    is dropped. With `stop` the tasks under way are stopped when a version is made.
    """

    programme: Programme
    size: Size = 10
    enough: Literal["count", "harmonic"] = "count"
    stop: Stop = True
    concurrency: Concurrency = None
    snapshots = True

    @property
    def requires(self) -> frozenset[Feature]:
        """Clients that can be told to stop, where tasks are stopped."""
        return frozenset({Feature.CANCEL}) if self.stop else NONE

    @property
    def one_distribution(self) -> bool:
        """Whether it does not wait for everybody."""
        return self.enough == "count"

    @property
    def largest_aggregation(self) -> int | None:
        """S, where it is a count."""
        return self.size if self.enough == "count" else None

    def initial(self) -> Collection:
        """No update has arrived."""
        return Collection()

    def on(self, event: Event, state: Collection, view: View) -> Iterator[Command]:
        """Collect updates; enough of them make a version. Every free place is given to an idle client."""
        if isinstance(event, Arrived):
            if view.task(event.task).staleness:
                yield Drop(event.task, OLDER)
            else:
                state.tasks.append(event.task)
                state.made[event.client] = state.made.get(event.client, 0) + 1
        # A client that leaves may be the one that was waited for.
        if state.tasks and self._is_enough(state, view):
            yield Aggregate(tuple(state.tasks))
            state.tasks.clear()
            state.made.clear()
            for client in list(view.tasks) if self.stop else ():
                yield Discard(client, MADE)
        free = (self.concurrency or len(view.fleet)) - view.running
        for client in view.sample_idle(free) if free > 0 else ():
            yield train(client, self.programme, view)

    def _is_enough(self, state: Collection, view: View) -> bool:
        if self.enough == "count":
            return len(state.tasks) >= self.size
        if any(client not in state.made for client in view.fleet):
            return False
        n = len(state.made)
        # Exact: sums of floating-point reciprocals decide equality by their rounding.
        reciprocals = sum(Fraction(clients, b) for b, clients in Counter(state.made.values()).items())
        return n * n > self.size * reciprocals


@checked_dataclass
class MeanByClient(Aggregator):
    """w := w + scale · (1/n) Σ_i (1 / B_i) Σ_j Δ_ij over the n clients, of which each has B_i updates."""

    scale: ServerRate = 1.0
    requires = frozenset({Feature.SINGLE_UPDATES})
    # Summed changes could take a running variance below 0.
    buffers: ClassVar[Buffers] = "mean"

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """The mean of the clients' own means."""
        return self._step(updates)

    def step_in_place(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """The step, in place of the first Δ."""
        return self._step(updates, updates[0].delta)

    def _step(self, updates: Sequence[Update], out: Tensor | None = None) -> Tensor:
        made = Counter(u.task.client for u in updates)
        c = [self.scale * (1 / (len(made) * made[u.task.client])) for u in updates]
        return weighted_sum([u.delta for u in updates], c, out)


_PAPER = (
    "Tyurin, Richtárik, Optimal Time Complexities of Parallel Stochastic Optimization Methods Under a Fixed "
    "Computation Model, NeurIPS 2023"
)


@algorithm(paper=_PAPER, kind="synchronous")
def rennala(
    size: Size = 10,
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    stop: Stop = True,
    concurrency: Concurrency = None,
    server_lr: ServerRate = 1.0,
) -> Algorithm:
    """All train from the current model, again and again, until S updates of any clients are together.

    w := w + γ (1/S) Σ Δ over the first S updates from the current model; `size` is S and `server_lr` is γ.
    What comes later is dropped or, with `stop`, ended at once. For clients whose data are of one
    distribution.
    """
    return Algorithm(
        schedule=Collected(programme(steps, epochs), size, "count", stop, concurrency),
        aggregator=SumOfDeltas(weights="equal", scale=server_lr),
        objective=Plain(),
    )


@algorithm(paper=_PAPER, kind="synchronous")
def malenia(
    size: Size = 10,
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    stop: Stop = True,
    server_lr: ServerRate = 1.0,
) -> Algorithm:
    """All train from the current model, again and again, until every client has updates, and they are enough.

    w := w + γ (1/n) Σ_i (1 / B_i) Σ_j Δ_ij over the B_i updates of each of n clients, once
    (1/n Σ 1 / B_i)⁻¹ > S / n; `size` is S and `server_lr` is γ. For clients of different data.
    """
    return Algorithm(
        schedule=Collected(programme(steps, epochs), size, "harmonic", stop),
        aggregator=MeanByClient(server_lr),
        objective=Plain(),
    )
