"""Local objectives: what a client minimises, as changes of the loss's gradient.

>>> w, w_o = torch.tensor([3.0]), torch.tensor([1.0])
>>> w.grad = torch.tensor([0.5])
>>> Proximal(mu=0.1).adjust([w], [w_o])
>>> w.grad
tensor([0.7000])
"""

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from offbeat.core.validation import CLOSED


@dataclass(frozen=True, config=CLOSED)
class Plain:
    """The loss itself."""

    def adjust(self, parameters: Sequence[Tensor], anchor: Sequence[Tensor]) -> None:
        """Nothing to add."""


@dataclass(frozen=True, config=CLOSED)
class Proximal:
    """loss + (μ/2)‖w − w_o‖² (FedProx, Li et al. 2020): its gradient adds μ(w − w_o)."""

    mu: Annotated[float, Field(ge=0)]

    def adjust(self, parameters: Sequence[Tensor], anchor: Sequence[Tensor]) -> None:
        """Add μ(w − w_o) to each gradient."""
        if self.mu == 0:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        ends = [p.detach() for p in parameters if p.grad is not None]
        starts = [a for p, a in zip(parameters, anchor, strict=True) if p.grad is not None]
        torch._foreach_add_(gradients, torch._foreach_sub(ends, starts), alpha=self.mu)
