"""How a client trains: optimizer, learning rate, batch size. Fresh for every task."""

from collections.abc import Iterable
from math import cos, pi
from typing import Annotated, Any, Literal, Protocol, Self

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from offbeat.core.types import Positive
from offbeat.core.validation import STRICT
from offbeat.local.fast.sgd import SGD


@dataclass(frozen=True, config=STRICT)
class ExponentialDecay:
    """rate · gamma^⌊version / every⌋."""

    gamma: Annotated[float, Field(gt=0, le=1)]
    every: Annotated[int, Field(ge=1)] = 1
    kind: Literal["exponential"] = "exponential"

    def factor(self, version: int) -> float:
        """What the rate is multiplied by for a task that starts from `version`."""
        return float(self.gamma ** (version // self.every))


@dataclass(frozen=True, config=STRICT)
class InverseDecay:
    """rate · kappa / (kappa + version): diminishing as the wireless paper's β / (t + κ)."""

    kappa: Positive
    kind: Literal["inverse"] = "inverse"

    def factor(self, version: int) -> float:
        """What the rate is multiplied by for a task that starts from `version`."""
        return self.kappa / (self.kappa + version)


@dataclass(frozen=True, config=STRICT)
class CosineDecay:
    """rate · (floor + (1 − floor)(1 + cos(π · min(1, version / versions))) / 2)."""

    versions: Annotated[int, Field(ge=1)]
    floor: Annotated[float, Field(ge=0, le=1)] = 0.0
    kind: Literal["cosine"] = "cosine"

    def factor(self, version: int) -> float:
        """What the rate is multiplied by for a task that starts from `version`."""
        wave = (1 + cos(pi * min(1.0, version / self.versions))) / 2
        return self.floor + (1 - self.floor) * wave


Decay = Annotated[ExponentialDecay | InverseDecay | CosineDecay, Field(discriminator="kind")]


class Optimizer(Protocol):
    """What a training asks of an optimizer: a part of what PyTorch's have."""

    def zero_grad(self) -> None:
        """Forget the gradients."""

    def step(self) -> None:
        """Move the parameters."""

    def state_dict(self) -> dict[str, Any]:
        """What the steps so far have left: tensors by name in ["state"][place of the parameter]."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""


@dataclass(frozen=True, config=STRICT)
class Training:
    """Local SGD, Adam or AdamW on batches drawn by reshuffled passes over the client's data.

    `decay` lowers the learning rate with the version of the global model a task starts from.
    `channels_last` is the memory layout of convolutions (none: where the module has any and the
    device is a CPU or a CUDA GPU, which is faster there). `device` is a PyTorch device name.
    """

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Positive = 0.1
    batch_size: Annotated[int, Field(ge=1)] = 32
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
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
        """The learning rate of a task that starts from `version`, times `factor`."""
        return self.lr * factor * (self.decay.factor(version) if self.decay else 1.0)

    def build(self, parameters: Iterable[Tensor], lr: float) -> Optimizer:
        """A fresh optimizer for one task."""
        parameters = list(parameters)
        if self.optimizer == "sgd":
            return SGD(parameters, lr, self.momentum, self.weight_decay)
        kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.AdamW
        return kind(parameters, lr, weight_decay=self.weight_decay, fused=self.device != "mps")
