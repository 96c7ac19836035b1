"""Local objectives, as changes of the loss's gradient.

>>> w, w_o = torch.tensor([3.0]), torch.tensor([1.0])
>>> w.grad = torch.tensor([0.5])
>>> Proximal(mu=0.1).adjust(LocalRun([w], [w_o]))
>>> w.grad
tensor([0.7000])
"""

import torch

from offbeat.core.objective import LocalRun, Objective
from offbeat.core.types import NonNegative
from offbeat.core.validation import checked_dataclass


@checked_dataclass
class Plain(Objective):
    """Plain objective: the loss itself."""


@checked_dataclass
class Proximal(Objective):
    """Proximal objective, loss + (μ/2)‖w − w_o‖² (FedProx, Li et al. 2020): its gradient adds μ(w − w_o).

    Attributes:
        mu: μ, at least 0.
    """

    mu: NonNegative

    def adjust(self, run: LocalRun) -> None:
        """Add μ(w − w_o) to each gradient."""
        if self.mu:
            pull = torch._foreach_sub(run.values, list(run.anchor))
            torch._foreach_add_(run.gradients, pull, alpha=self.mu)
