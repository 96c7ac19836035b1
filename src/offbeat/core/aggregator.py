"""Aggregators: how arrived updates, or a weighted sum of them, change the global model."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec
from torch import Tensor

from offbeat.core.buffers import Buffers
from offbeat.core.client_cache import ClientCache
from offbeat.core.events import Metrics
from offbeat.core.features import AlgorithmPart
from offbeat.core.model import Model, Tensors
from offbeat.core.root import RootTraining
from offbeat.core.schedule import Task


class Update(msgspec.Struct, frozen=True, gc=False):
    """One arrived update, as an aggregator sees it. Never write to its tensors.

    Attributes:
        task: The task, with staleness and share.
        base: Model w_o it was trained from.
        delta: Δ_i = w_i − w_o over the flat values, float32 [values].
        integers: The client's integer buffers, int64 [integers].
        metrics: The client's metrics.
        lr: Learning rate of the training.
        shared: Change for the shared vector, float32 [shared]. None means no change.
        fresh: Model merged in mid-task. None means none.
        note: Note of the schedule on this aggregation.
        norms: The norms of its parts, as of `LocalResult`. None means that they have not been computed.
    """

    task: Task
    base: Model
    delta: Tensor
    integers: Tensor
    metrics: Metrics = msgspec.field(default_factory=dict)
    lr: float = 0.0
    shared: Tensor | None = None
    fresh: Model | None = None
    note: Mapping[str, Any] = msgspec.field(default_factory=dict)
    norms: Mapping[str, float] | None = None


class Aggregator(AlgorithmPart, Protocol):
    """Turns updates into a step of the global model, w := w + step."""

    @property
    def title(self) -> str:
        """Name in messages; by default that of the class."""
        return type(self).__name__

    @property
    def least(self) -> int:
        """Fewest updates for which the rule does more than its fallback, which fewer get; by default 1."""
        return 1

    @property
    def buffers(self) -> Buffers:
        """Policy of the floating buffers that the rule is made for; by default "follow"."""
        return "follow"

    @property
    def root_training(self) -> RootTraining | None:
        """Training of the server whose Δ_s is `ROOT_UPDATE` in the memory. None, the default, means none."""
        return None

    @property
    def caches(self) -> bool:
        """Whether the rule keeps each client's last update, by `cached_step`; by default not."""
        return False

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """Compute the step.

        Args:
            updates: The updates to aggregate, in the schedule's order.
            model: The current global model.
            memory: The aggregator's state in this run, empty at first: to be changed in place, best by
                tensors that replace those in it. One that is written to cannot be restored where the guard
                skips the aggregation; then the memory is emptied.

        Returns:
            The step over the flat values, float32 [values], in a fresh tensor that the caller may change.
        """

    def step_in_place(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """Compute the same step where no update is read any more: it may be written over the first one's Δ.

        By default it is `step`, whose tensor is one model of memory more.

        Args:
            updates: As of `step`.
            model: As of `step`.
            memory: As of `step`.

        Returns:
            The step, as of `step`; may be the first update's `delta`.
        """
        return self.step(updates, model, memory)

    def cached_step(
        self, updates: Sequence[Update], model: Model, memory: Tensors, cache: ClientCache
    ) -> Tensor:
        """Compute the step of a rule that `caches`; by default it is `step`, which keeps no update.

        Args:
            updates: As of `step`.
            model: As of `step`.
            memory: As of `step`.
            cache: Each client's last update: what is put or dropped counts if the step is applied.

        Returns:
            The step, as of `step`: never an entry of the cache, since the caller may write over it.
        """
        return self.step(updates, model, memory)


class FullWeight(msgspec.Struct, frozen=True):
    """Data of a client whose update has full weight; one that has more weighs no more.

    Attributes:
        samples: n̂, number of samples.
        share: p̂, share of the samples of all clients present.
    """

    samples: int
    share: float


class UpdateSum(msgspec.Struct, frozen=True):
    """A weighted sum of updates, with the weight, the task and the base of each.

    Attributes:
        total: Σ c_i f_i Δ_i over the flat values, float32 [values]; may be changed.
        weights: c_i.
        tasks: The tasks in the sum.
        bases: The model that each was trained from.
        note: Note of the schedule on this aggregation.
    """

    total: Tensor
    weights: Sequence[float]
    tasks: Sequence[Task]
    bases: Sequence[Model]
    note: Mapping[str, Any] = msgspec.field(default_factory=dict)


@runtime_checkable
class SumOnly(Aggregator, Protocol):
    """An aggregator that needs a weighted sum of the updates, and no update by itself.

    Of the updates of one aggregation it is given Σ c_i f_i Δ_i, where c_i is `sum_scale` times the
    importance, rounded to a few bits. With exact importances `from_sum` is `step`.
    """

    @property
    def apart(self) -> tuple[str, ...]:
        """Names in a note: updates with different values of them are not summed together. By default none."""
        return ()

    @property
    def equal_weights(self) -> bool:
        """Whether all importances are 1."""

    def factor(self, task: Task) -> float:
        """f_i, with which a client multiplies its update before it clips it; by default 1."""
        return 1.0

    def importances(self, tasks: Sequence[Task], full: FullWeight, note: Mapping[str, Any]) -> list[float]:
        """The importance of each update, in (0, 1], from numbers only.

        Args:
            tasks: The tasks of one aggregation, with staleness, samples and share.
            full: Data of a client of full weight.
            note: Note of the schedule on this aggregation.
        """

    def sum_scale(self, tasks: Sequence[Task], importances: Sequence[float], full: FullWeight) -> float:
        """The public factor of the sum.

        Args:
            tasks: The tasks that are summed.
            importances: Their importances, rounded.
            full: Data of a client of full weight.
        """

    def from_sum(self, summed: UpdateSum, model: Model, memory: Tensors) -> Tensor:
        """Compute the step from a sum.

        Args:
            summed: The sum, and what is known of its updates.
            model: The current global model.
            memory: As of `step`.

        Returns:
            The step, as of `step`; may be `summed.total`.
        """
