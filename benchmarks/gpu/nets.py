"""The models of the measurements, each with the samples that it takes: random ones, of the usual shapes."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from offbeat.models.resnet import ResNet

CLASSES, VOCABULARY, LENGTH = 10, 8192, 128


@dataclass(frozen=True)
class Net:
    """A model: `make` makes it, `samples(n)` are n inputs for it, and a client's task has so many `steps`."""

    make: Callable[[], nn.Module]
    samples: Callable[[int], Tensor]
    steps: int


def cnn() -> nn.Module:
    """Two convolutions and two linear layers, for images of CIFAR-10."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(4096, 512), nn.ReLU(), nn.Linear(512, CLASSES),
    )  # fmt: skip


def resnet18() -> nn.Module:
    """ResNet-18 for images of CIFAR-10, with GroupNorm, as batch norm is not trained together."""
    return group_normed(ResNet(3, CLASSES, 64, (2, 2, 2, 2)))


def group_normed(module: nn.Module) -> nn.Module:
    """The module with GroupNorm of 32 groups in place of each batch norm."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, nn.GroupNorm(min(32, child.num_features), child.num_features))
        else:
            group_normed(child)
    return module


class Transformer(nn.Module):
    """An encoder of 10 M parameters that classifies texts of 128 tokens."""

    def __init__(self, width: int = 320, layers: int = 6) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.classes = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Scores [N, 10] of tokens [N, 128]."""
        y = self.tokens(x)
        for layer in self.layers:
            y = layer(y)
        scores: Tensor = self.classes(y.mean(1))
        return scores


def _images(n: int) -> Tensor:
    return torch.randn(n, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def _texts(n: int) -> Tensor:
    return torch.randint(VOCABULARY, (n, LENGTH), generator=torch.Generator().manual_seed(0))


NETS = {
    "CNN": Net(cnn, _images, 10),
    "ResNet-18": Net(resnet18, _images, 4),
    "transformer": Net(Transformer, _texts, 2),
}
