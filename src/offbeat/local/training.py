"""Options of the local training: optimizer, learning rate, batch size. Each task has a fresh optimizer."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import cos, pi
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from offbeat.core.errors import UsageError
from offbeat.core.types import NUMBER, Count, NonNegative, Positive, PositiveShare, Share
from offbeat.core.validation import checked_dataclass, did_you_mean
from offbeat.local.fast.adam import FusedAdam
from offbeat.local.fast.sgd import SGD


@checked_dataclass
class ExponentialDecay:
    """Exponential decay, rate · gamma^⌊n / every⌋.

    Attributes:
        gamma: Factor in (0, 1].
        every: Versions (steps, epochs) between two factors, at least 1.
    """

    gamma: PositiveShare
    every: Count = 1
    kind: Literal["exponential"] = "exponential"

    def factor(self, n: int) -> float:
        """Factor of the rate after `n` versions (steps, epochs)."""
        return float(self.gamma ** (n // self.every))


@checked_dataclass
class InverseDecay:
    """Inverse decay, rate · kappa / (kappa + n), as the wireless paper's β / (t + κ).

    Attributes:
        kappa: Versions (steps, epochs) after which the rate is half, above 0.
    """

    kappa: Positive
    kind: Literal["inverse"] = "inverse"

    def factor(self, n: int) -> float:
        """Factor of the rate after `n` versions (steps, epochs)."""
        return self.kappa / (self.kappa + n)


@checked_dataclass
class CosineDecay:
    """Cosine decay, rate · (floor + (1 − floor)(1 + cos(π · min(1, n / versions))) / 2).

    Attributes:
        versions: Versions (steps, epochs) until the floor, at least 1.
        floor: Factor from then on, in [0, 1].
    """

    versions: Count
    floor: Share = 0.0
    kind: Literal["cosine"] = "cosine"

    def factor(self, n: int) -> float:
        """Factor of the rate after `n` versions (steps, epochs)."""
        wave = (1 + cos(pi * min(1.0, n / self.versions))) / 2
        return self.floor + (1 - self.floor) * wave


Decay = Annotated[ExponentialDecay | InverseDecay | CosineDecay, Field(discriminator="kind")]


Optimizer = SGD | FusedAdam | torch.optim.Optimizer


MakeOptimizer = Callable[[list[Tensor], float], Optimizer]
"""make(parameters, lr): an optimizer of one's own."""

_OPTIMIZERS = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type)
    and issubclass(kind, torch.optim.Optimizer)
    and name not in ("Optimizer", "LBFGS")
}
_SGD_OPTIONS = frozenset({"momentum", "weight_decay", "nesterov"})
_ADAM_OPTIONS = frozenset({"betas", "eps", "weight_decay"})
_OWN: dict[str, tuple[Callable[..., Optimizer], frozenset[str]]] = {
    "sgd": (SGD, _SGD_OPTIONS),
    "adam": (FusedAdam, _ADAM_OPTIONS),
    "adamw": (partial(FusedAdam, decoupled=True), _ADAM_OPTIONS),
}
"""Optimizers that take PyTorch's steps without its classes, each with the options that it takes."""


@checked_dataclass
class Training:
    """Options of the local training, on batches of reshuffled passes over the client's data.

    Attributes:
        optimizer: Name of an optimizer of `torch.optim`, such as "sgd", "adam" or "rmsprop", in small
            letters or as PyTorch writes it; in Python also a function (parameters, lr) that makes one.
        lr: Learning rate, above 0.
        batch_size: Samples of a batch, at least 1.
        drop_last: Whether the incomplete batch at the end of each pass is left out, which BatchNorm may
            need. An epoch then has ⌊n / batch size⌋ local steps, and at least one. A client with fewer
            samples than a batch has one batch with all of them.
        momentum: Momentum of SGD, in [0, 1).
        weight_decay: Weight decay, at least 0.
        optimizer_options: Further options of a named optimizer, such as {"nesterov": True}.
        decay: Decay of the learning rate. None means no decay.
        decay_per: What the decay counts: the "version" of the global model from which a task starts, or each
            "step" or "epoch" of the task, from 0.
        clip_norm: Largest norm of the gradient for the optimizer. A longer gradient is scaled down to this
            norm. None means no limit.
        accumulate: Number of parts in which a batch goes through the module, to save memory. The gradients
            of the parts add up to that of the batch if the loss is a mean over the samples.
        precision: Type in which the module computes: "float32", or "bfloat16" or "float16" under autocast.
            "float16" scales the loss. Parameters are always float32.
        class_weights: Weights of the classes in the default cross entropy. None means equal weights.
        evaluation_batch_size: Samples of a batch in evaluation, at least 1.
        channels_last: Whether convolutions use this memory layout. None means yes if the module has
            convolutions and the device is a CPU or a CUDA GPU, where the layout is faster.
        cuda_graph: Whether a CUDA GPU gets the kernels of a step as one captured graph, and not one by
            one. A small model is faster so. Its module and its loss must do the same for each batch. On
            another device it changes nothing.
        device: Name of a PyTorch device, such as "cpu" or "cuda:0".
    """

    optimizer: str | MakeOptimizer = "sgd"
    lr: Positive = 0.1
    batch_size: Count = 32
    drop_last: bool = False
    momentum: Annotated[float, Field(ge=0, lt=1), NUMBER] = 0.0
    weight_decay: NonNegative = 0.0
    optimizer_options: dict[str, Any] = Field(default_factory=dict)
    decay: Decay | None = None
    decay_per: Literal["version", "step", "epoch"] = "version"
    clip_norm: Positive | None = None
    accumulate: Count = 1
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    class_weights: tuple[NonNegative, ...] | None = None
    evaluation_batch_size: Count = 1000
    channels_last: bool | None = None
    cuda_graph: bool = False
    device: str = "cpu"

    @field_validator("optimizer", mode="before")
    @classmethod
    def _known(cls, optimizer: Any) -> Any:
        if isinstance(optimizer, str):
            name = optimizer.lower().removeprefix("torch.optim.")
            if name not in _OPTIMIZERS:
                raise ValueError(f"it is unknown{did_you_mean(name, _OPTIMIZERS)}")
            return name
        if isinstance(optimizer, torch.optim.Optimizer):
            name = type(optimizer).__name__.lower()
            raise ValueError(
                f"each task makes its own: give the name, {name!r}, or a function (parameters, lr)"
            )
        if not callable(optimizer):
            raise ValueError(f"give a name, such as {'sgd'!r}, or a function (parameters, lr)")
        if optimizer is torch.optim.LBFGS:
            raise ValueError("a step of it needs the loss several times: choose another optimizer")
        return optimizer

    @model_validator(mode="after")
    def _used(self) -> Self:
        if not isinstance(self.optimizer, str):
            own = {
                "momentum": self.momentum,
                "weight_decay": self.weight_decay,
                "optimizer_options": self.optimizer_options,
            }
            if given := [name for name, value in own.items() if value]:
                named = next((name for name, kind in _OPTIMIZERS.items() if kind is self.optimizer), None)
                other = f", or give the name, {named!r}" if named else ""
                raise ValueError(
                    f"{given[0]} is for optimizers by name: give it to your own one where you make it{other}"
                )
            return self
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(
                f"momentum = {self.momentum} is for sgd, {self.optimizer} has its own; leave it out"
            )
        if self.decay is None and self.decay_per != "version":
            raise ValueError(f"decay_per = {self.decay_per!r} needs a decay; leave it out")
        return self

    def rate(self, version: int, factor: float = 1.0) -> float:
        """Learning rate with which a task that starts from `version` begins, times `factor`."""
        n = version if self.decay_per == "version" else 0
        return self.lr * factor * (self.decay.factor(n) if self.decay else 1.0)

    def factor(self, step: int, per_epoch: int) -> float:
        """Factor of the task's rate at its local step `step`, from 0, of `per_epoch` an epoch."""
        if self.decay is None or self.decay_per == "version":
            return 1.0
        return self.decay.factor(step if self.decay_per == "step" else step // per_epoch)

    def autocast(self) -> AbstractContextManager[Any]:
        """Context in which the module computes in `precision`."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(torch.device(self.device).type, getattr(torch, self.precision))

    def scaler(self) -> torch.amp.GradScaler | None:
        """Scales the loss of one task in float16, whose gradients would else vanish; None elsewhere."""
        if self.precision != "float16":
            return None
        return torch.amp.GradScaler(torch.device(self.device).type)

    def build(self, parameters: Iterable[Tensor], lr: float) -> Optimizer:
        """Build a fresh optimizer for one task.

        Raises:
            UsageError: The optimizer does not take these options.
        """
        parameters, options = list(parameters), dict(self.optimizer_options)
        if not isinstance(self.optimizer, str):
            return _of_parameters(self.optimizer(parameters, lr), parameters)
        options |= {n: v for n in ("momentum", "weight_decay") if (v := getattr(self, n))}
        adam = self.optimizer in ("adam", "adamw")
        if adam:
            options.setdefault("weight_decay", 0.0)  # PyTorch's AdamW has another default.
        kind: Callable[..., Optimizer] = _OPTIMIZERS[self.optimizer]
        make, taken = _OWN.get(self.optimizer, (kind, frozenset()))
        # The scaler of float16 calls PyTorch's own; the fused kernels are for other devices than mps.
        if options.keys() - taken or self.precision == "float16" or self.device == "mps":
            make = kind
            if adam:
                options.setdefault("fused", self.device != "mps")
        try:
            return make(parameters, lr=lr, **options)
        except (TypeError, ValueError) as error:
            raise UsageError(f"optimizer = {self.optimizer!r} with {options}: {error}") from None


def _of_parameters(optimizer: Optimizer, parameters: Iterable[Tensor]) -> Optimizer:
    """An optimizer of the user's function. Raises `UsageError` for one of other tensors than it was given."""
    given = {id(parameter) for parameter in parameters}
    groups = getattr(optimizer, "param_groups", [])
    stepped = [id(parameter) for group in groups for parameter in group.get("params", ())]
    if stepped and given.isdisjoint(stepped):
        raise UsageError(
            "optimizer: the function (parameters, lr) has made an optimizer of other tensors than the "
            "parameters that it was given: make it of these"
        )
    return optimizer
