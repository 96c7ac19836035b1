"""Adam and AdamW as `torch.optim` has them, fused and bit for bit, without its classes.

The first optimizer of `torch.optim` that a process makes imports PyTorch's compiler. That takes as long as
the import of PyTorch itself, and no step uses it.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class FusedAdam:
    """Adam, and AdamW where `decoupled`: the decay shrinks the values, and is no part of the gradient.

    A parameter without a gradient stays as it is.

    Args:
        parameters: Floating tensors on one device.
        lr: Learning rate.
        betas: Factors of the running means of gradient and square, in [0, 1).
        eps: Added to the root of the mean square, at least 0.
        weight_decay: Weight decay, at least 0.
        decoupled: Whether the decay is AdamW's.

    Raises:
        ValueError: An option is out of range.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        decoupled: bool = False,
    ) -> None:
        beta1, beta2 = betas
        if not (0 <= beta1 < 1 and 0 <= beta2 < 1):
            raise ValueError(f"betas = {betas} must be in [0, 1)")
        if not (eps >= 0 and weight_decay >= 0):
            raise ValueError(f"eps = {eps} and weight_decay = {weight_decay} must be at least 0")
        self._parameters, self._fused = list(parameters), _FUSED[decoupled]
        self._options = {"beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        self.param_groups: list[dict[str, Any]] = [{"lr": lr}]
        self._state: dict[int, dict[str, Tensor]] = {}  # by the parameter's place

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move the parameters against their gradients, which stay as they are."""
        # The kernel takes tensors of one type.
        by_type: dict[torch.dtype, list[int]] = {}
        for place, parameter in enumerate(self._parameters):
            if parameter.grad is not None:
                by_type.setdefault(parameter.dtype, []).append(place)
        for places in by_type.values():
            parameters = [self._parameters[place] for place in places]
            gradients = [_laid_out(p.grad, p) for p in parameters]  # type: ignore[arg-type]
            states = [self._of(place) for place in places]
            means, squares, steps = ([state[name] for state in states] for name in _NAMES)
            torch._foreach_add_(steps, 1)
            self._fused(
                parameters, gradients, means, squares, [], steps, lr=self.param_groups[0]["lr"],
                amsgrad=False, maximize=False, **self._options,
            )  # fmt: skip

    def _of(self, place: int) -> dict[str, Tensor]:
        if place not in self._state:
            parameter = self._parameters[place]
            steps = torch.zeros((), dtype=torch.float32, device=parameter.device)
            zeros = (torch.zeros_like(parameter) for _ in range(2))
            self._state[place] = dict(zip(_NAMES, (*zeros, steps), strict=True))
        return self._state[place]

    def state_dict(self) -> dict[str, Any]:
        """The state after the steps so far, with the names of `torch.optim.Adam`."""
        return {"state": dict(self._state)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the result of `state_dict`, of tensors on any device and in any memory layout."""
        self._state = {}
        for place, parts in state["state"].items():
            own = self._of(place)
            for name in _NAMES:
                own[name].copy_(parts[name])


_FUSED: dict[bool, Callable[..., None]] = {False: torch._fused_adam_, True: torch._fused_adamw_}
"""The kernel by `decoupled`."""

_NAMES = ("exp_avg", "exp_avg_sq", "step")
"""Names of a parameter's state."""


def _laid_out(gradient: Tensor, parameter: Tensor) -> Tensor:
    """A gradient in the parameter's order in memory, as the kernel reads it."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
