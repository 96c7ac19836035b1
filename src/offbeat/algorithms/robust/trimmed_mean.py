"""Trimmed mean (Yin et al., Byzantine-Robust Distributed Learning, ICML 2018, Definition 2)."""

from collections.abc import Sequence
from math import ceil, floor
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from offbeat.algorithms.robust.rule import Rule
from offbeat.core.layout import Layout
from offbeat.core.model import Tensors
from offbeat.core.types import NUMBER
from offbeat.core.validation import checked_dataclass
from offbeat.vectors.arithmetic import weighted_sum
from offbeat.vectors.chunked import map_chunks
from offbeat.vectors.sorting import middle_of_sorted

Beta = Annotated[float, Field(ge=0, lt=0.5, description="share β dropped at either end"), NUMBER]
ROUNDING = 1e-9


@checked_dataclass(kw_only=True)
class TrimmedMean(Rule):
    """The mean of each coordinate without the ⌊βk⌋ smallest and the ⌊βk⌋ largest of k values.

    The rule withstands ⌊βk⌋ malicious updates of k. In the paper β is between the share of malicious clients
    and ½; the default is our choice.
    """

    beta: Beta = 0.1
    kind: Literal["trimmed_mean"] = "trimmed_mean"

    @property
    def title(self) -> str:
        """Name with β."""
        return f"TrimmedMean with beta = {self.beta:g}"

    @property
    def least(self) -> int:
        """⌈1/β⌉, from which on something is dropped; 1 where nothing ever is."""
        return ceil(1 / self.beta - ROUNDING) if self.beta else 1

    def combine(self, x: Sequence[Tensor], s: Sequence[float], layout: Layout, memory: Tensors) -> Tensor:
        """Drop ⌊βk⌋ at either end, coordinate by coordinate."""
        return trimmed_mean(x, s, floor(self.beta * len(x) + ROUNDING))


def trimmed_mean(x: Sequence[Tensor], s: Sequence[float], drop: int) -> Tensor:
    """Per coordinate the mean of s_i x_i without the `drop` least and greatest, in a fresh tensor.

    Args:
        x: k vectors of one size.
        s: s_i, one for each.
        drop: Number of values dropped at either end, less than k/2.
    """
    weights = torch.tensor(s, dtype=x[0].dtype, device=x[0].device)[:, None]

    def mean(out: Tensor | None, *parts: Tensor) -> Tensor:
        rows = torch.stack(parts).mul_(weights)
        kept = middle_of_sorted(list(rows), drop) if drop else list(rows)
        return weighted_sum(kept, [1 / len(kept)] * len(kept), out).add_(
            0.0
        )  # no −0.0, whatever the sort did

    return map_chunks(mean, *x)
