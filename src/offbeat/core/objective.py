"""What a client minimises: the contract of local objectives."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Objective(Protocol):
    """Changes the loss's gradient before each local step.

    An objective is a frozen dataclass of hyper-parameters, so that it can be sent to any process.
    """

    def adjust(self, parameters: Sequence[Tensor], anchor: Sequence[Tensor]) -> None:
        """Add this objective's own gradient to each `parameter.grad`, in place.

        `anchor` are the parameters w_o the task started from, in the same order and shapes.
        """
