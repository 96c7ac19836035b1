"""Multinomial logistic regression."""

import torch
from torch import nn


class LogisticRegression(nn.Module):
    """Logistic regression: one linear layer from [N, ...] with `inputs` numbers each to logits [N, classes].

    It has inputs x classes + classes parameters.
    """

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [N, classes] of x [N, ...]."""
        logits: torch.Tensor = self.linear(x.flatten(1))
        return logits
