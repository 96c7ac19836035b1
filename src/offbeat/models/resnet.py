"""Residual networks for small images (He et al., 2016)."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with BatchNorm, added to the input; ReLU. FedCompass, Table 11.

    Where the number of channels changes, the input goes through a 1x1 convolution with BatchNorm.
    """

    def __init__(self, before: int, channels: int) -> None:
        super().__init__()
        stride = 1 if before == channels else 2
        self.conv1 = nn.Conv2d(before, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if before != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, before, H, W] to [N, channels, H / stride, W / stride]."""
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet for small images: [N, channels, H, W] of any size to logits [N, classes].

    A 3x3 convolution with BatchNorm, groups of residual blocks each twice as wide and half as high as the one
    before it, average pooling, a linear layer.

    Args:
        channels: Channels of an image.
        classes: Number of classes.
        width: Channels of the first group.
        blocks: Residual blocks of each group. (2, 2, 2, 2) of width 64 is ResNet-18 in the form of FedCompass
            (Table 10), (3, 3, 3) of width 16 is ResNet-20.
    """

    def __init__(self, channels: int, classes: int, width: int, blocks: Sequence[int]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        widths = [width, *(width << group for group, count in enumerate(blocks) for _ in range(count))]
        self.blocks = nn.Sequential(*(ResidualBlock(before, after) for before, after in pairwise(widths)))
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [N, classes] of x [N, channels, H, W]."""
        x = self.blocks(torch.relu(self.norm(self.conv(x))))
        logits: torch.Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits
