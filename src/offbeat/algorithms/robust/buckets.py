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
from offbeat.algorithms.option_types import ServerRate, Whole
from offbeat.algorithms.robust.median import median
from offbeat.algorithms.robust.rule import Malicious
from offbeat.algorithms.robust.trimmed_mean import trimmed_mean
from offbeat.core.aggregator import Aggregator, Update
from offbeat.core.features import Feature
from offbeat.core.model import Model, Tensors
from offbeat.core.staleness import ConstantWeight, StalenessWeight
from offbeat.core.validation import checked_dataclass

Number = Annotated[Whole, Field(ge=3, description="number B of buckets")]
BucketRule = Annotated[
    Literal["median", "trimmed_mean"], Field(description="rule that combines the buckets' means")
]


@checked_dataclass(kw_only=True)
class Buckets(Aggregator):
    """Client c adds s(τ) Δ to bucket c mod B. Once no bucket is empty, the rule of the B means is the step.

    Then all buckets are emptied. While a bucket is empty, the step is zero. The aggregator is meant for
    schedules that aggregate each update on its arrival. Updates that arrive together are added in the order
    of their tasks. The rule `trimmed_mean` drops the f smallest and the f largest values of each coordinate.
    At most f buckets may have a malicious client, and B must be at least 2f + 1. s(τ) = 1 is the paper's. The
    paper chooses B for each experiment, so B has no default.

    BASGD's reassignment of buckets is left out: a client keeps its bucket. If all clients of one bucket have
    gone, the model no longer changes. So choose B well below the number of clients.
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
