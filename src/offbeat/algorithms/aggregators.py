"""Aggregators and server steps that several papers share.

All of them are a weighted sum of vectors with different weights: the equation of each is in the line that
computes its weights. n_i is a client's number of samples, p_i its share of all
samples, τ_i the staleness of its update, Δ_i = w_i − w_o its change of the model it started from.
"""

from collections.abc import Mapping, Sequence
from math import expm1, log1p
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from offbeat.algorithms.option_types import Memory, ServerRate
from offbeat.core.aggregator import Aggregator, FullWeight, SumOnly, Update, UpdateSum
from offbeat.core.algorithm import ServerStep
from offbeat.core.buffers import Buffers
from offbeat.core.features import Feature
from offbeat.core.model import Model, Tensors
from offbeat.core.schedule import Task
from offbeat.core.staleness import ConstantWeight, StalenessWeight
from offbeat.core.types import NUMBER
from offbeat.core.validation import checked_dataclass
from offbeat.vectors.arithmetic import weighted_steps, weighted_sum
from offbeat.vectors.memory_pool import POOL

MixingWeight = Annotated[float, Field(gt=0, le=1, description="mixing weight α of a fresh update"), NUMBER]


def from_memory(memory: Tensors, name: str, like: Tensor, value: float = 0.0) -> Tensor:
    """Copy the tensor of this name in a part's memory, and put the copy in its place.

    The tensor itself does not change, so that the memory can be restored if the aggregation is skipped.

    Args:
        memory: The part's memory, which is saved with a run.
        name: The tensor's name in the memory.
        like: A tensor with its shape and dtype.
        value: The initial value of its elements.

    Returns:
        The copy; changes of it stay in the memory.
    """
    known = memory.get(name)
    memory[name] = torch.full_like(like, value) if known is None else POOL.like(known).copy_(known)
    return memory[name]


def toward_models(
    updates: Sequence[Update], weights: Sequence[float], model: Model, out: Tensor | None = None
) -> Tensor:
    """Σ c_i (w_i − w): the step toward the clients' models w_i = base + Δ_i.

    Args:
        updates: the updates, with their bases.
        weights: c_i, one for each update.
        model: the current global model w.
        out: where the step goes; it may be the first update's Δ. None means a fresh tensor.

    Returns:
        The step over the flat values.
    """
    deltas, bases = [u.delta for u in updates], [u.base.values for u in updates]
    return weighted_steps(deltas, weights, bases, model.values, out)


def toward_bases(summed: UpdateSum, model: Model) -> Tensor:
    """Σ c_i Δ_i + Σ c_i (base_i − w), in place of the sum: what `toward_models` gives."""
    for base, weight in zip(summed.bases, summed.weights, strict=True):
        if base is not model:
            summed.total.add_(base.values - model.values, alpha=weight)
    return summed.total


def by_samples(tasks: Sequence[Task], full: FullWeight) -> list[float]:
    """min(1, n_i / n̂) of each task."""
    return [min(1.0, t.samples / full.samples) for t in tasks]


def shares(numbers: Sequence[float]) -> list[float]:
    """Each number divided by their sum."""
    total = sum(numbers)
    return [number / total for number in numbers]


@checked_dataclass
class MeanOfModels(SumOnly):
    """w := Σ n_i w_i / Σ n_i (FedAvg, McMahan et al. 2017, Algorithm 1)."""

    equal_weights = False

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """Toward the mean of the clients' models, weighted by their numbers of samples."""
        return self._step(updates, model)

    def step_in_place(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """The step, in place of the first Δ."""
        return self._step(updates, model, updates[0].delta)

    def _step(self, updates: Sequence[Update], model: Model, out: Tensor | None = None) -> Tensor:
        return toward_models(updates, shares([u.task.samples for u in updates]), model, out)

    def importances(self, tasks: Sequence[Task], full: FullWeight, note: Mapping[str, Any]) -> list[float]:
        """min(1, n_i / n̂)."""
        return by_samples(tasks, full)

    def sum_scale(self, tasks: Sequence[Task], importances: Sequence[float], full: FullWeight) -> float:
        """1 / Σ of the importances."""
        return 1 / sum(importances)

    def from_sum(self, summed: UpdateSum, model: Model, memory: Tensors) -> Tensor:
        """Toward the mean of the clients' models."""
        return toward_bases(summed, model)


@checked_dataclass
class Mixing(Aggregator):
    """w := (1 − α_τ) w + α_τ w_i with α_τ = α s(τ_i), one update after the other (FedAsync)."""

    alpha: MixingWeight
    staleness: StalenessWeight = ConstantWeight()
    requires = frozenset({Feature.SINGLE_UPDATES})

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """Mix the updates in one by one; later ones reduce the weight of earlier ones."""
        return self._step(updates, model)

    def step_in_place(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """The step, in place of the first Δ."""
        return self._step(updates, model, updates[0].delta)

    def _step(self, updates: Sequence[Update], model: Model, out: Tensor | None = None) -> Tensor:
        weights: list[float] = []
        for update in updates:
            alpha = self.alpha * self.staleness(update.task.staleness)
            weights = [c * (1 - alpha) for c in weights] + [alpha]
        return toward_models(updates, weights, model, out)


@checked_dataclass
class Normalization:
    """Divisor a_i of a client's update: the sum of its local steps' weights (FedNova, Wang et al. 2020).

    `momentum` is the ρ of the clients' SGD; `proximal` is η μ, their learning rate times the weight of
    their proximal term. With neither, a is the number of steps.
    """

    momentum: Memory = 0.0
    proximal: Memory = 0.0

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.momentum and self.proximal:
            raise ValueError(
                f"momentum = {self.momentum} and proximal = {self.proximal} have no common normaliser; "
                "set one of them to 0"
            )
        return self

    def a(self, steps: int) -> float:
        """The weight with which `steps` gradients enter an update, summed."""
        if rho := self.momentum:
            return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
        # `expm1` and `log1p` keep [1 − (1 − x)^steps] / x accurate for a small x.
        if x := self.proximal:
            return -expm1(steps * log1p(-x)) / x
        return float(steps)


@checked_dataclass
class SumOfDeltas(SumOnly):
    """w := w + scale · Σ s(τ_i) q_i Δ_i.

    q_i is p_i ("share"), 1 / number of these updates ("equal") or n_i / Σ n_i over them ("samples"). With
    `normalize`: w := w + scale · ā Σ s(τ_i) q_i Δ_i / a_i, where ā = Σ q_i a_i / Σ q_i.
    """

    staleness: StalenessWeight = ConstantWeight()
    weights: Literal["share", "equal", "samples"] = "share"
    scale: ServerRate = 1.0
    normalize: Normalization | None = None
    # Summed changes could take a running variance below 0.
    buffers: ClassVar[Buffers] = "mean"

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """The weighted sum of the deltas, whatever versions they started from."""
        return self._step(updates)

    def step_in_place(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """The step, in place of the first Δ."""
        return self._step(updates, updates[0].delta)

    def _step(self, updates: Sequence[Update], out: Tensor | None = None) -> Tensor:
        tasks = [u.task for u in updates]
        q = self._weights(tasks)
        c = [self.scale * self.staleness(t.staleness) * q_i for t, q_i in zip(tasks, q, strict=True)]
        if self.normalize:
            a = [self.normalize.a(t.steps) for t in tasks]
            mean_a = sum(q_i * a_i for q_i, a_i in zip(q, a, strict=True)) / sum(q)
            c = [mean_a * c_i / a_i for c_i, a_i in zip(c, a, strict=True)]
        return weighted_sum([u.delta for u in updates], c, out)

    @property
    def equal_weights(self) -> bool:
        """Whether neither data nor staleness counts."""
        return self.weights == "equal" and type(self.staleness) is ConstantWeight

    def factor(self, task: Task) -> float:
        """1 / a_i, where updates are normalised."""
        return 1 / self.normalize.a(task.steps) if self.normalize else 1.0

    def importances(self, tasks: Sequence[Task], full: FullWeight, note: Mapping[str, Any]) -> list[float]:
        """s(τ_i) times 1, min(1, p_i / p̂) or min(1, n_i / n̂); a constant s stands in the scale."""
        constant = type(self.staleness) is ConstantWeight
        s = [1.0 if constant else self.staleness(t.staleness) for t in tasks]
        return [s_i * d_i for s_i, d_i in zip(s, self._data(tasks, full), strict=True)]

    def sum_scale(self, tasks: Sequence[Task], importances: Sequence[float], full: FullWeight) -> float:
        """η_g / k, η_g p̂ or η_g / Σ min(1, n_j / n̂); times ā, where updates are normalised."""
        data, factor = self._data(tasks, full), self.scale
        if type(self.staleness) is ConstantWeight:
            factor *= self.staleness.value
        if self.normalize:
            a = [self.normalize.a(t.steps) for t in tasks]
            factor *= sum(d_i * a_i for d_i, a_i in zip(data, a, strict=True)) / sum(data)
        return factor * full.share if self.weights == "share" else factor / sum(data)

    def from_sum(self, summed: UpdateSum, model: Model, memory: Tensors) -> Tensor:
        """The sum itself."""
        return summed.total

    def _data(self, tasks: Sequence[Task], full: FullWeight) -> list[float]:
        """Each client's importance by its data."""
        match self.weights:
            case "share":
                return [min(1.0, t.share / full.share) for t in tasks]
            case "equal":
                return [1.0] * len(tasks)
            case "samples":
                return by_samples(tasks, full)

    def _weights(self, tasks: Sequence[Task]) -> list[float]:
        match self.weights:
            case "share":
                return [t.share for t in tasks]
            case "equal":
                return [1 / len(tasks)] * len(tasks)
            case "samples":
                return shares([t.samples for t in tasks])


@checked_dataclass
class Momentum(ServerStep):
    """m := β m + step; w := w + m (FedAvgM, Hsu et al. 2019)."""

    beta: Memory

    def transform(self, step: Tensor, memory: Tensors) -> Tensor:
        """Replace the step by the momentum it feeds."""
        m = from_memory(memory, "m", step).mul_(self.beta).add_(step)
        return step.copy_(m)
