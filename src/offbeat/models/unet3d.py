"""3D U-Net (Çiçek et al., 2016) in the form of FLamby's Fed-IXI (Ogier du Terrail et al., 2022)."""

import torch
from torch import nn


def _block(before: int, channels: int, norm: bool = True) -> nn.Sequential:
    """3x3x3 convolution, BatchNorm (or a bias), PReLU."""
    convolution = nn.Conv3d(before, channels, 3, padding=1, bias=not norm)
    return nn.Sequential(convolution, *([nn.BatchNorm3d(channels)] if norm else []), nn.PReLU())


class UNet3D(nn.Module):
    """3D U-Net of three levels: [N, 1, D, H, W] to logits [N, classes, D, H, W]; 246,156 parameters with two.

    Each level has two 3x3x3 convolutions with BatchNorm and PReLU: 8-16, 16-32 and 32-64 channels on the way
    down (max-pool 2), 32-32 and 16-16 on the way up (trilinear, joined with the way down). The first has a
    bias in place of BatchNorm. D, H and W are multiples of 4. FLamby's gives probabilities, this one logits.

    Args:
        classes: Number of classes of a voxel.
    """

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.down1 = nn.Sequential(_block(1, 8, norm=False), _block(8, 16))
        self.down2 = nn.Sequential(_block(16, 16), _block(16, 32))
        self.bottom = nn.Sequential(_block(32, 32), _block(32, 64))
        self.up2 = nn.Sequential(_block(64 + 32, 32), _block(32, 32))
        self.up1 = nn.Sequential(_block(32 + 16, 16), _block(16, 16))
        self.classifier = nn.Conv3d(16, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [N, classes, D, H, W] of x [N, 1, D, H, W]."""
        first = self.down1(x)
        second = self.down2(nn.functional.max_pool3d(first, 2))
        x = self.bottom(nn.functional.max_pool3d(second, 2))
        x = self.up2(torch.cat([second, _twice(x)], dim=1))
        x = self.up1(torch.cat([first, _twice(x)], dim=1))
        logits: torch.Tensor = self.classifier(x)
        return logits


def _twice(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.interpolate(x, scale_factor=2, mode="trilinear", align_corners=False)
