"""Centred clipping (Karimireddy, He, Jaggi, Learning from History, ICML 2021, Algorithm 2)."""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from offbeat.algorithms.aggregators import from_memory
from offbeat.algorithms.option_types import Count, Positive
from offbeat.algorithms.robust.distances import distances_to, gram
from offbeat.algorithms.robust.rule import Rule, parameters
from offbeat.core.features import Feature
from offbeat.core.layout import Layout
from offbeat.core.model import Tensors
from offbeat.core.validation import checked_dataclass
from offbeat.vectors.arithmetic import weighted_sum

Radius = Annotated[Positive, Field(description="L2 distance τ from the centre up to which an update counts")]
Iterations = Annotated[Count, Field(description="iterations l")]


@checked_dataclass(kw_only=True)
class CenteredClip(Rule):
    """l times v := v + (1/k) Σ (x_i − v) min(1, τ/‖x_i − v‖), from the last result v.

    An update that is not finite counts as v. Any number of updates k is enough, and no clip is needed: a
    malicious update moves v by at most l τ/k. If updates are aggregated one by one, give l = 1. τ has no
    default, because it depends on the task: choose about the median norm of updates. The authors' experiments
    have l = 1, 3 and 5; the default 3 is our choice.
    """

    tau: Radius
    iterations: Iterations = 3
    kind: Literal["centered_clip"] = "centered_clip"
    requires = frozenset({Feature.SINGLE_UPDATES})
    provides = frozenset({Feature.BOUNDED})

    def combine(self, x: Sequence[Tensor], s: Sequence[float], layout: Layout, memory: Tensors) -> Tensor:
        """The new centre: weights computed without the vectors, then one weighted sum of them."""
        centre = from_memory(memory, "v", x[0])
        weights = torch.tensor([*s, 1.0], dtype=torch.float64)
        products = gram(parameters([*x, centre], layout)) * weights[:, None] * weights
        finite = products.diagonal().isfinite()
        kept = finite.nonzero().flatten()
        c = centre_weights(products[kept][:, kept], len(x), self.tau, self.iterations) * weights[kept]
        vectors = [*x, centre]
        return centre.copy_(weighted_sum([vectors[i] for i in kept.tolist()], c.tolist())).clone()


def centre_weights(products: Tensor, k: int, tau: float, iterations: int) -> Tensor:
    """Weights c of the new centre Σ c_i x_i, float64, where the last vector is the old centre.

    Args:
        products: ⟨x_i, x_j⟩ of the vectors that are finite and the old centre.
        k: Number of all updates.
        tau: τ.
        iterations: l.
    """
    c = torch.zeros(len(products), dtype=torch.float64)
    c[-1] = 1.0
    for _ in range(iterations):
        # An update at the centre has the distance 0; τ/0 is infinite and is clamped to 1.
        share = (tau / distances_to(products, c)[:-1]).clamp_(max=1.0) / k
        c = torch.cat([share + c[:-1] * (1 - share.sum()), (c[-1] * (1 - share.sum()))[None]])
    return c
