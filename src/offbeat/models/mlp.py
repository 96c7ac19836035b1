"""A small multilayer perceptron."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn


class MLP(nn.Module):
    """Multilayer perceptron with ReLU: [N, ...] with `inputs` numbers each to logits [N, classes].

    No dropout and no normalisation.

    Args:
        inputs: Numbers of a sample.
        classes: Number of classes.
        hidden: Widths of the hidden layers, first to last.
    """

    def __init__(self, inputs: int, classes: int, hidden: Sequence[int] = (64,)) -> None:
        super().__init__()
        widths = [inputs, *hidden]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [N, classes] of x [N, ...]."""
        logits: torch.Tensor = self.layers(x.flatten(1))
        return logits
