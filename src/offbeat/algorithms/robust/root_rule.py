"""Base of the rules that compare updates with the server's own update, on trusted data.

Every `every` versions the server trains from the current model (see `core.root`); this needs a driver with
root data. A rule keeps some of the updates, and its result is their mean, or zeros if the rule keeps none. So
any number of clients may be malicious, as long as the trusted data resemble those of the honest clients.
"""

from typing import Annotated, Protocol

import torch
from pydantic import Field
from torch import Tensor

from offbeat.algorithms.option_types import Count
from offbeat.algorithms.robust.rule import Weigh, WeighingRule
from offbeat.core.features import Feature
from offbeat.core.model import Tensors
from offbeat.core.root import ROOT_UPDATE, RootTraining
from offbeat.core.validation import checked_dataclass

RootSteps = Annotated[Count, Field(description="local steps of the server: as many as a client's task has")]
Every = Annotated[Count, Field(description="versions from one training of the server to the next")]


@checked_dataclass(kw_only=True)
class RootRule(WeighingRule, Protocol):
    """The mean of the updates that are like the server's own update Δ_s.

    Attributes:
        steps: Local steps of the server's training.
        every: Versions from one training to the next.
    """

    steps: RootSteps
    every: Every = 10
    weigh: Weigh = "after"

    @property
    def requires(self) -> frozenset[Feature]:
        """Single updates, and a server with root data."""
        return frozenset({Feature.SINGLE_UPDATES, Feature.ROOT_DATA})

    @property
    def provides(self) -> frozenset[Feature]:
        """Updates of bounded norm: Δ_s bounds it."""
        return frozenset({Feature.BOUNDED})

    def factors(self, squares: Tensor, along: Tensor, root: float) -> Tensor:
        """Factor of each update, float64 [k]; 0 drops it.

        Args:
            squares: ‖x_i‖².
            along: ⟨x_i, Δ_s⟩.
            root: ‖Δ_s‖².
        """

    @property
    def root_training(self) -> RootTraining:
        """The server's training."""
        return RootTraining(self.steps, self.every)

    def references(self, memory: Tensors) -> list[Tensor]:
        """Δ_s."""
        return [memory[ROOT_UPDATE]]

    def coefficients(self, products: Tensor) -> Tensor:
        """The factors, divided by the number of updates kept."""
        factors = self.factors(products.diagonal()[:-1], products[-1, :-1], float(products[-1, -1]))
        kept = factors != 0
        return torch.where(kept, factors / max(1, int(kept.sum())), 0.0)
