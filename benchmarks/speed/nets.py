"""The models of the measurements as plain modules: the same numbers as Offbeat's own, in any environment."""

import torch
from torch import Tensor, nn


class Seen:
    """How many batches and samples have gone through a counted model in training, in this process."""

    batches = 0
    samples = 0


def _count(module: nn.Module, x: Tensor) -> None:
    if module.training:
        Seen.batches += 1
        Seen.samples += len(x)


class CNN(nn.Module):
    """21,840 parameters: twice conv 5x5 (10, 20), max-pool 2, ReLU; dense 320-50, ReLU, dense 50-10."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, 10] of x [N, 1, 28, 28]."""
        _count(self, x)
        x = torch.relu(nn.functional.max_pool2d(self.conv1(x), 2))
        x = torch.relu(nn.functional.max_pool2d(self.conv2(x), 2))
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


class Logistic(nn.Module):
    """7,850 parameters: one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(784, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, 10] of x [N, 1, 28, 28]."""
        _count(self, x)
        return self.linear(x.flatten(1))


class MLP(nn.Module):
    """159,010 parameters: 784-200-10 with ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(784, 200)
        self.fc2 = nn.Linear(200, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, 10] of x [N, 1, 28, 28]."""
        _count(self, x)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


class Vector(nn.Module):
    """21,840 parameters that nothing is done with: for tasks without work."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(21_840))

    def forward(self, x: Tensor) -> Tensor:
        """Ten zeros a sample, which depend on the parameters."""
        return x.flatten(1)[:, :1] * 0 + self.w[:10]


class _Block(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outer)
        self.short = nn.Sequential()
        if stride > 1:
            self.short = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.short(x))


class ResNet18(nn.Module):
    """ResNet-18 for 32x32 images (He et al., 2016): a 3x3 stem without pooling, 11,173,962 parameters."""

    def __init__(self) -> None:
        super().__init__()
        widths = [64, 64, 128, 256, 512]
        layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
        for group in range(4):
            layers.append(_Block(widths[group], widths[group + 1], 1 if group == 0 else 2))
            layers.append(_Block(widths[group + 1], widths[group + 1], 1))
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, 10] of x [N, 3, 32, 32]."""
        _count(self, x)
        return self.head(self.layers(x).mean((2, 3)))


NETS: dict[str, type[nn.Module]] = {
    "cnn": CNN,
    "logistic": Logistic,
    "mlp": MLP,
    "resnet18": ResNet18,
    "none": Vector,
}


def build(name: str, seed: int) -> nn.Module:
    """A model by name, its weights drawn from the seed."""
    torch.manual_seed(seed)
    return NETS[name]()


def parameters(module: nn.Module) -> int:
    """Number of trainable numbers."""
    return sum(p.numel() for p in module.parameters())
