"""Options of the local training: optimizer, learning rate, batch size. Each task has a fresh optimizer."""

from collections.abc import Iterable
from math import cos, pi
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from offbeat.core.types import Count, NonNegative, Positive, PositiveShare, Share
from offbeat.core.validation import STRICT
from offbeat.local.fast.sgd import SGD


@dataclass(frozen=True, config=STRICT)
class ExponentialDecay:
    """Exponential decay, rate · gamma^⌊version / every⌋.

    Attributes:
        gamma: Factor in (0, 1].
        every: Versions between two factors, at least 1.
    """

    gamma: PositiveShare
    every: Count = 1
    kind: Literal["exponential"] = "exponential"

    def factor(self, version: int) -> float:
        """Factor of the rate for a task that starts from `version`."""
        return float(self.gamma ** (version // self.every))


@dataclass(frozen=True, config=STRICT)
class InverseDecay:
    """Inverse decay, rate · kappa / (kappa + version), as the wireless paper's β / (t + κ).

    Attributes:
        kappa: Versions after which the rate is half, above 0.
    """

    kappa: Positive
    kind: Literal["inverse"] = "inverse"

    def factor(self, version: int) -> float:
        """Factor of the rate for a task that starts from `version`."""
        return self.kappa / (self.kappa + version)


@dataclass(frozen=True, config=STRICT)
class CosineDecay:
    """Cosine decay, rate · (floor + (1 − floor)(1 + cos(π · min(1, version / versions))) / 2).

    Attributes:
        versions: Versions until the floor, at least 1.
        floor: Factor from then on, in [0, 1].
    """

    versions: Count
    floor: Share = 0.0
    kind: Literal["cosine"] = "cosine"

    def factor(self, version: int) -> float:
        """Factor of the rate for a task that starts from `version`."""
        wave = (1 + cos(pi * min(1.0, version / self.versions))) / 2
        return self.floor + (1 - self.floor) * wave


Decay = Annotated[ExponentialDecay | InverseDecay | CosineDecay, Field(discriminator="kind")]


Optimizer = SGD | torch.optim.Optimizer


@dataclass(frozen=True, config=STRICT)
class Training:
    """Options of the local training, on batches of reshuffled passes over the client's data.

    Attributes:
        optimizer: "sgd", "adam" or "adamw".
        lr: Learning rate, above 0.
        batch_size: Samples of a batch, at least 1.
        momentum: Momentum of SGD, in [0, 1).
        weight_decay: Weight decay, at least 0.
        decay: Decay of the learning rate with the version of the global model that a task starts from. None
            means no decay.
        channels_last: Whether convolutions use this memory layout. None means where the module has any and
            the device is a CPU or a CUDA GPU, on which it is faster.
        device: Name of a PyTorch device, such as "cpu" or "cuda:0".
    """

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Positive = 0.1
    batch_size: Count = 32
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: NonNegative = 0.0
    decay: Decay | None = None
    channels_last: bool | None = None
    device: str = "cpu"

    @model_validator(mode="after")
    def _used(self) -> Self:
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(
                f"momentum = {self.momentum} is for sgd, {self.optimizer} has its own; leave it out"
            )
        return self

    def rate(self, version: int, factor: float = 1.0) -> float:
        """Learning rate of a task that starts from `version`, times `factor`."""
        return self.lr * factor * (self.decay.factor(version) if self.decay else 1.0)

    def build(self, parameters: Iterable[Tensor], lr: float) -> Optimizer:
        """Build a fresh optimizer for one task."""
        parameters = list(parameters)
        if self.optimizer == "sgd":
            return SGD(parameters, lr, self.momentum, self.weight_decay)
        kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.AdamW
        return kind(parameters, lr, weight_decay=self.weight_decay, fused=self.device != "mps")
