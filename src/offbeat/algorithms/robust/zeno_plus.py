"""Zeno++ (Xie, Koyejo, Gupta, Robust Fully Asynchronous SGD, ICML 2020, Definition 3 and Algorithm 2).

The paper accepts a gradient g̃, scaled to the norm of the server's v, if γ⟨v, g̃⟩ − ρ_g ‖g̃‖² ≥ −γ ε_g. In
units of steps, Δ = γ g, that is cos(x, Δ_s) ≥ ρ − ε with ρ = ρ_g/γ and ε = γ² ε_g/‖Δ_s‖².
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from offbeat.algorithms.option_types import NonNegative
from offbeat.algorithms.robust.root_rule import RootRule
from offbeat.core.validation import checked_dataclass

Rho = Annotated[NonNegative, Field(description="weight ρ of an update's length")]
Epsilon = Annotated[NonNegative, Field(description="tolerance ε, in units of ‖Δ_s‖²")]


@checked_dataclass(kw_only=True)
class ZenoPlus(RootRule):
    """The mean of x̃_i = x_i ‖Δ_s‖/‖x_i‖ over the updates with ⟨Δ_s, x̃_i⟩ − ρ ‖x̃_i‖² ≥ −ε ‖Δ_s‖².

    Δ_s is the server's own update on trusted data. The defaults are those of the authors' script: ρ_g = 0.001
    at the learning rate 0.1, which is ρ = 0.01; ε = 0; and a gradient of the server's own every 10 steps.
    """

    rho: Rho = 0.01
    epsilon: Epsilon = 0.0
    kind: Literal["zeno_plus"] = "zeno_plus"

    def factors(self, squares: Tensor, along: Tensor, root: float) -> Tensor:
        """‖Δ_s‖/‖x_i‖ for those that point where Δ_s does."""
        # The factor is infinite for an update of zeros; its product is then not a number and is not kept.
        to_root = (root / squares).sqrt()
        kept = along * to_root - self.rho * root >= -self.epsilon * root
        # The factor of an update near zero can go past float32.
        usable = to_root <= torch.finfo(torch.float32).max
        return torch.where(kept & usable, to_root, 0.0)
