"""Geometric median (Pillutla et al., Robust Aggregation for Federated Learning, 2019, smoothed Weiszfeld)."""

from typing import Literal

import torch
from torch import Tensor

from offbeat.algorithms.robust.distances import distances_to, norm
from offbeat.algorithms.robust.rule import Weigh, WeighingRule
from offbeat.core.validation import checked_dataclass

SMOOTHING = 1e-6
"""ν, the least distance that divides (Pillutla et al.)."""
ITERATIONS, TOLERANCE = 100, 1e-6
"""Most iterations, and the relative change of v that ends them: ours. One leaves b/(k − b) of what b vectors
far away have moved v, and costs nothing that grows with the vectors."""


@checked_dataclass(kw_only=True)
class GeometricMedian(WeighingRule):
    """The v of least Σ ‖x_i − v‖: v := Σ x_i/d_i / Σ 1/d_i, d_i = max(‖x_i − v‖, 1e-6), from the mean.

    The iteration ends after 100 steps, or when ‖change‖ < 1e-6 ‖v‖. The rule withstands malicious updates if
    they are fewer than half. It has no parameter.
    """

    weigh: Weigh = "after"
    kind: Literal["geometric_median"] = "geometric_median"

    @property
    def least(self) -> int:
        """3: any point between two is a median of them."""
        return 3

    def coefficients(self, products: Tensor) -> Tensor:
        """Weiszfeld's weights, computed without the vectors."""
        return weiszfeld(products)


def weiszfeld(products: Tensor) -> Tensor:
    """Weights c of the geometric median Σ c_i x_i, Σ c_i = 1, float64 [k], from ⟨x_i, x_j⟩."""
    c = torch.full((len(products),), 1 / len(products), dtype=torch.float64)
    for _ in range(ITERATIONS):
        closeness = 1 / distances_to(products, c).clamp_(min=SMOOTHING)
        before, c = c, closeness / closeness.sum()
        if norm(products, c - before) < TOLERANCE * norm(products, c):
            break
    return c
