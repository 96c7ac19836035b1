"""EfficientNet-B0 (Tan and Le, 2019)."""

import torch
from torch import nn

_STAGES = (  # Table 1: expansion, channels, blocks, stride, kernel
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)


def _convolution(before: int, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution and BatchNorm with the constants of the paper's code."""
    return nn.Sequential(
        nn.Conv2d(before, channels, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01),
    )


class _InvertedBottleneck(nn.Module):
    """Expansion, depthwise convolution, squeeze and excitation, projection; plus the input if it fits."""

    def __init__(self, before: int, channels: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        inner, squeezed = before * expansion, max(1, before // 4)
        expand = [_convolution(before, inner, 1), nn.SiLU()] if expansion > 1 else []
        self.features = nn.Sequential(*expand, _convolution(inner, inner, kernel, stride, inner), nn.SiLU())
        self.excite = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(inner, squeezed, 1), nn.SiLU(),
            nn.Conv2d(squeezed, inner, 1), nn.Sigmoid(),
        )  # fmt: skip
        self.project = _convolution(inner, channels, 1)
        self.residual = stride == 1 and before == channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.features(x)
        y = self.project(y * self.excite(y))
        return x + y if self.residual else y


class EfficientNetB0(nn.Module):
    """EfficientNet-B0: [N, 3, H, W] to logits [N, classes]; 4,017,796 parameters with eight classes.

    Neither dropout nor stochastic depth. The weights are random.

    Args:
        classes: Number of classes.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [_convolution(3, 32, 3, stride=2), nn.SiLU()]
        before = 32
        for expansion, channels, blocks, stride, kernel in _STAGES:
            for block in range(blocks):
                layers.append(
                    _InvertedBottleneck(before, channels, expansion, kernel, stride if block == 0 else 1)
                )
                before = channels
        self.features = nn.Sequential(*layers, _convolution(before, 1280, 1), nn.SiLU())
        self.fc = nn.Linear(1280, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [N, classes] of x [N, 3, H, W]."""
        logits: torch.Tensor = self.fc(self.features(x).mean(dim=(2, 3)))
        return logits
