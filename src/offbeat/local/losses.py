"""Losses by name: those of PyTorch that take an output and a target."""

from collections.abc import Mapping
from types import MappingProxyType

from torch.nn import functional

from offbeat.local.criterion import Loss

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
)
"""Functions of `torch.nn.functional` by name."""
