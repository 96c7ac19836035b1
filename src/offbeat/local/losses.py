"""Losses by name: those of PyTorch that take an output and a target, and the Dice loss."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor
from torch.nn import functional

from offbeat.core.errors import UsageError

Loss = Callable[[Any, Any], Tensor]
"""loss(output, target): a mean over the batch; PyTorch's losses get the scores of the module's output."""


def dice_loss(scores: Tensor, target: Tensor) -> Tensor:
    """Soft Dice loss 1 − mean of 2 Σ p t / (Σ p + Σ t) over samples and classes (Milletari et al., 2016).

    Args:
        scores: Logits [N, C, ...]; p is their softmax.
        target: Classes int64 [N, ...], one at each position; t is 1 at the class and 0 at the others.

    Returns:
        The loss, a scalar in [0, 1]. FLamby trains Fed-IXI by it.

    Raises:
        UsageError: There are not two classes or more.
    """
    if scores.ndim < 3 or scores.shape[1] == 1:
        raise UsageError(
            f"dice_loss of scores of shape {list(scores.shape)}: give a score for each class, [N, C, ...] "
            "with C of 2 or more, as the softmax of one is always 1"
        )
    p = scores.softmax(dim=1).flatten(2)
    t = functional.one_hot(target.flatten(1), scores.shape[1]).movedim(-1, 1).to(p.dtype)
    overlap = 2 * (p * t).sum(dim=2) / (p.sum(dim=2) + t.sum(dim=2)).clamp_min(1e-9)
    return 1 - overlap.mean()


LOSSES: Mapping[str, Loss] = MappingProxyType(
    {
        name: getattr(functional, name)
        for name in (
            "binary_cross_entropy",
            "binary_cross_entropy_with_logits",
            "cross_entropy",
            "huber_loss",
            "l1_loss",
            "mse_loss",
            "nll_loss",
            "smooth_l1_loss",
        )
    }
    | {"dice_loss": dice_loss}
)
"""Functions of `torch.nn.functional`, and `dice_loss`, by name."""
