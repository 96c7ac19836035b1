"""A small multilayer perceptron."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn


class MLP(nn.Module):
    """Linear layers with ReLU between them: [N, ...] with `inputs` numbers each to logits [N, classes].

    `hidden` are the widths of the hidden layers; no dropout and no normalisation.
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
