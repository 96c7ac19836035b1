"""AFLGuard (Fang et al., Byzantine-robust Asynchronous Federated Learning, ACSAC 2022, Equation 5)."""

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from offbeat.algorithms.option_types import Positive
from offbeat.algorithms.robust.root_rule import RootRule
from offbeat.core.validation import checked_dataclass

Deviation = Annotated[
    Positive, Field(description="most deviation λ from the server's own update, in its norms")
]


@checked_dataclass(kw_only=True)
class AFLGuard(RootRule):
    """The mean of the updates with ‖x_i − Δ_s‖ ≤ λ ‖Δ_s‖; Δ_s is the server's own update.

    The server makes Δ_s on trusted data. Each x_i in the mean has a norm of at most (1 + λ) ‖Δ_s‖. With λ ≥ 2
    the mean keeps the update −Δ_s too. The paper filters gradients, one at a time. λ = 1.5 and the server's
    training every 10 versions are our choice.
    """

    lam: Deviation = 1.5
    kind: Literal["aflguard"] = "aflguard"

    def factors(self, squares: Tensor, along: Tensor, root: float) -> Tensor:
        """1 for the updates that are near enough, else 0."""
        return (squares - 2 * along + root <= self.lam**2 * root).double()
