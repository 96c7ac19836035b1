"""Coordinate-wise median (Yin et al., Byzantine-Robust Distributed Learning, ICML 2018, Definition 1)."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from offbeat.algorithms.robust.rule import Rule, Weigh
from offbeat.algorithms.robust.trimmed_mean import trimmed_mean
from offbeat.core.layout import Layout
from offbeat.core.model import Tensors
from offbeat.core.validation import checked_dataclass


@checked_dataclass(kw_only=True)
class Median(Rule):
    """The median of each coordinate; of an even number of values the mean of the middle two.

    The rule withstands malicious updates if they are fewer than half. It has no parameter.
    """

    weigh: Weigh = "after"
    kind: Literal["median"] = "median"

    @property
    def least(self) -> int:
        """3: the median of two is their mean."""
        return 3

    def combine(self, x: Sequence[Tensor], s: Sequence[float], layout: Layout, memory: Tensors) -> Tensor:
        """The median, coordinate by coordinate."""
        return median(x, s)


def median(x: Sequence[Tensor], s: Sequence[float]) -> Tensor:
    """Per coordinate the median of s_i x_i: the mean of all but the ⌊(k − 1)/2⌋ least and greatest."""
    return trimmed_mean(x, s, (len(x) - 1) // 2)
