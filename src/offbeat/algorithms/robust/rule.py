"""Base of the robust rules: x_i = s(τ_i) Δ_i in the order of tasks, fallback, scale of the step."""

from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor

from offbeat.algorithms.option_types import ServerRate, Whole
from offbeat.algorithms.robust.distances import gram
from offbeat.core.aggregator import Aggregator, Update
from offbeat.core.features import Feature
from offbeat.core.layout import Layout
from offbeat.core.model import Model, Tensors
from offbeat.core.staleness import INVERSE_SQRT, StalenessWeight
from offbeat.core.validation import checked_dataclass
from offbeat.vectors.arithmetic import head, weighted_sum

RuleWeights = Annotated[
    Literal["equal", "share"],
    Field(description="equal: the step is one update; share: it is multiplied by Σ p_i, as in FedCompass"),
]
Weigh = Annotated[
    Literal["before", "after"],
    Field(description="before: the rule sees s(τ_i) Δ_i; after: it sees Δ_i, and s multiplies what it gives"),
]
Malicious = Annotated[Whole, Field(ge=0, description="most malicious updates f of an aggregation")]


@checked_dataclass(kw_only=True)
class Rule(Aggregator, Protocol):
    """A robust mean of the updates of one aggregation: w := w + η_g · weight · rule(x_1, …, x_k).

    x_i is s(τ_i) Δ_i, or Δ_i if `weigh` is "after". The x_i are sorted by task, so that updates that arrive
    at the same time give equal bits in any order. `weight` is 1 or Σ p_i. With fewer than `least` updates,
    the mean of s(τ_i) Δ_i replaces the rule.

    Attributes:
        staleness: s(τ).
        weigh: Whether s is applied before or after the rule.
        weights: Weight of the step.
        scale: η_g.
    """

    staleness: StalenessWeight = INVERSE_SQRT
    weigh: Weigh = "before"
    weights: RuleWeights = "equal"
    scale: ServerRate = 1.0

    @property
    def requires(self) -> frozenset[Feature]:
        """Single updates of bounded norm, because more updates may be malicious than a rule withstands."""
        return frozenset({Feature.SINGLE_UPDATES, Feature.BOUNDED})

    def combine(self, x: Sequence[Tensor], s: Sequence[float], layout: Layout, memory: Tensors) -> Tensor:
        """Combine the vectors s_i x_i.

        Args:
            x: x_i over the flat values, at least `least`, to be read only.
            s: s_i, one for each.
            layout: The model's layout.
            memory: The aggregator's memory.

        Returns:
            The result over the flat values, in a fresh tensor.
        """

    def weigh_after(self, x: Sequence[Tensor], s: Sequence[float], layout: Layout, memory: Tensors) -> Tensor:
        """Combine the vectors x_i; the mean of s_i multiplies the result. Arguments as of `combine`."""
        return self.combine(x, [1.0] * len(s), layout, memory).mul_(sum(s) / len(s))

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """The rule's result, or the mean where there are too few updates for it."""
        updates = sorted(updates, key=lambda u: u.task.id)
        x, s = [u.delta for u in updates], [self.staleness(u.task.staleness) for u in updates]
        weight = self.scale * (sum(u.task.share for u in updates) if self.weights == "share" else 1.0)
        if len(x) < self.least:
            return weighted_sum(x, [weight * s_i / len(x) for s_i in s])
        combine = self.combine if self.weigh == "before" else self.weigh_after
        result = combine(x, s, model.layout, memory)
        return result if weight == 1 else result.mul_(weight)


class WeighingRule(Rule, Protocol):
    """A rule whose result is Σ c_i s_i x_i, with weights c_i that follow from inner products.

    If `weigh` is "after", the c_i follow from the inner products of the x_i instead of the s_i x_i.
    """

    def coefficients(self, products: Tensor) -> Tensor:
        """The weights c_i; 0 for a vector that is not used.

        Args:
            products: ⟨x_i, x_j⟩ over the parameters, float64; its last rows and columns are of `references`.

        Returns:
            c_i for the updates, float64 [k].
        """

    def references(self, memory: Tensors) -> list[Tensor]:
        """Further vectors that updates are compared with; none by default."""
        return []

    def combine(self, x: Sequence[Tensor], s: Sequence[float], layout: Layout, memory: Tensors) -> Tensor:
        """Σ c_i s_i x_i, with c of the vectors s_i x_i."""
        return self._sum(x, s, s, layout, memory)

    def weigh_after(self, x: Sequence[Tensor], s: Sequence[float], layout: Layout, memory: Tensors) -> Tensor:
        """Σ c_i s_i x_i, with c of the vectors x_i."""
        return self._sum(x, s, [1.0] * len(s), layout, memory)

    def _sum(
        self,
        x: Sequence[Tensor],
        s: Sequence[float],
        seen: Sequence[float],
        layout: Layout,
        memory: Tensors,
    ) -> Tensor:
        others = self.references(memory)
        factors = torch.tensor([*seen, *[1.0] * len(others)], dtype=torch.float64)
        products = gram(parameters([*x, *others], layout)) * factors[:, None] * factors
        c = self.coefficients(products).tolist()
        weights = [(x_i, c_i * s_i) for x_i, c_i, s_i in zip(x, c, s, strict=True) if c_i]
        if not weights:
            return torch.zeros_like(x[0])
        return weighted_sum([x_i for x_i, _ in weights], [weight for _, weight in weights])


def parameters(x: Sequence[Tensor], layout: Layout) -> list[Tensor]:
    """The parameters of each vector, without floating buffers: norms and distances are of parameters."""
    return [head(x_i, layout.parameters) for x_i in x]
