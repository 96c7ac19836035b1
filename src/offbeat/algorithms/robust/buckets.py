"""Buckets (BASGD, Yang and Li, Buffered Asynchronous SGD for Byzantine Learning, ICML 2021, Algorithm 2).

The paper's reassignment of buckets is left out: it maps clients to buckets anew when some have been silent
for long. Here the buckets of clients are fixed for a run. If all clients of one bucket have gone, it stays
empty, and the model no longer changes.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from offbeat.algorithms.aggregators import from_memory
from offbeat.algorithms.option_types import ServerRate
from offbeat.algorithms.robust.median import median
from offbeat.algorithms.robust.rule import Malicious
from offbeat.algorithms.robust.trimmed_mean import trimmed_mean
from offbeat.core.algorithm import Aggregator, Update
from offbeat.core.features import Feature
from offbeat.core.model import Model, Tensors
from offbeat.core.staleness import ConstantWeight, StalenessWeight
from offbeat.core.validation import checked_dataclass

Number = Annotated[int, Field(ge=3, description="number B of buckets")]
BucketRule = Annotated[
    Literal["median", "trimmed_mean"], Field(description="what is taken of the buckets' means")
]


@checked_dataclass(kw_only=True)
class Buckets(Aggregator):
    """Client c adds s(τ) Δ to bucket c mod B; when none is empty, the rule of their means is the step.

    Then all are emptied; until then the step is zero. It is for schedules that aggregate each update as it
    comes; those that come together are added in the order of tasks. `trimmed_mean` drops the f least and
    greatest of each coordinate. Buckets with a malicious client may be f at most, B ≥ 2f + 1. B and s(τ) = 1
    are as in the paper, which chooses B for each experiment: there is no default.

    BASGD's reassignment of buckets is left out: a client keeps its bucket, and a bucket whose clients have
    all gone stops the model. So let B be well below the number of clients.
    """

    buckets: Number
    f: Malicious = 1
    rule: BucketRule = "median"
    staleness: StalenessWeight = ConstantWeight()
    scale: ServerRate = 1.0
    kind: Literal["buckets"] = "buckets"
    requires = frozenset({Feature.SINGLE_UPDATES, Feature.BOUNDED})

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.buckets < 2 * self.f + 1:
            raise ValueError(
                f"buckets = {self.buckets} is not allowed with f = {self.f}: at least 2 f + 1 = "
                f"{2 * self.f + 1}"
            )
        return self

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """Fill the buckets; the step is the sum of the combined means, taken whenever no bucket is empty."""
        step = torch.zeros_like(model.values)
        counts = memory["counts"] = memory.get("counts", torch.zeros(self.buckets, dtype=torch.int64)).clone()
        for update in sorted(updates, key=lambda u: u.task.id):
            number = update.task.client % self.buckets
            mean = from_memory(memory, f"mean.{number}", model.values)
            counts[number] += 1
            share = 1 / int(counts[number])
            mean.mul_(1 - share).add_(update.delta, alpha=share * self.staleness(update.task.staleness))
            if bool(counts.all()):
                step.add_(self._take([memory[f"mean.{b}"] for b in range(self.buckets)]), alpha=self.scale)
                counts.zero_()
        return step

    def _take(self, means: Sequence[Tensor]) -> Tensor:
        equal = [1.0] * self.buckets
        return median(means, equal) if self.rule == "median" else trimmed_mean(means, equal, self.f)
