"""Krum and Multi-Krum (Blanchard et al., Machine Learning with Adversaries, NeurIPS 2017, Section 4)."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from offbeat.algorithms.option_types import Count
from offbeat.algorithms.robust.distances import squared_distances
from offbeat.algorithms.robust.rule import Malicious, Weigh, WeighingRule
from offbeat.core.validation import checked_dataclass

Selected = Annotated[
    Count | None, Field(description="updates n that are averaged; 1 is Krum, None means k − f")
]


@checked_dataclass(kw_only=True)
class MultiKrum(WeighingRule):
    """The mean of the n updates of least score; score_i = Σ of the k − f − 2 least ‖x_i − x_j‖², j ≠ i.

    Of equal scores, the one with the smaller task number counts as less. n = 1 is Krum: the paper proves that
    Krum withstands f malicious updates of k ≥ 2f + 3. The default n = k − f is the number of updates that are
    not malicious if f are.
    """

    f: Malicious
    n: Selected = None
    weigh: Weigh = "after"
    kind: Literal["multi_krum"] = "multi_krum"

    @property
    def title(self) -> str:
        """Name with f."""
        return f"MultiKrum with f = {self.f}"

    @property
    def least(self) -> int:
        """2f + 3, or n + f where that is more."""
        return max(2 * self.f + 3, (self.n or 0) + self.f)

    def coefficients(self, products: Tensor) -> Tensor:
        """1/n for the n updates of least score."""
        k = len(products)
        chosen = krum_scores(products, self.f).argsort(stable=True)[: self.n or k - self.f]
        return torch.zeros(k, dtype=torch.float64).index_fill_(0, chosen, 1 / len(chosen))


def krum_scores(products: Tensor, f: int) -> Tensor:
    """Σ of the k − f − 2 least ‖x_i − x_j‖², j ≠ i, float64 [k], for k ≥ f + 3 vectors."""
    apart = squared_distances(products).fill_diagonal_(torch.inf)
    return apart.sort(dim=1).values[:, : len(products) - f - 2].sum(1)
