"""Optimizer steps of many clients together, each at a rate of its own.

Plain SGD never forms the gradient of a linear layer: what its two factors change is added as it is computed,
and the rate is in the weights of the samples' losses. Where a gradient is clipped, or Adam takes its square,
it is formed first.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from offbeat.local.fast.batched_module import Gradient, ParameterSlots
from offbeat.local.training import Training

Gradients = Mapping[ParameterSlots, Sequence[Gradient]]

ADAM_OPTIONS = frozenset({"betas", "eps"})
"""Options of Adam and AdamW that clients can have together."""
_BETAS, _EPS = (0.9, 0.999), 1e-8  # PyTorch's
_CLIP_EPS = 1e-6  # of `nn.utils.clip_grad_norm_`


_Move = Callable[[ParameterSlots, Tensor], None]
"""Moves a slot's active values along a formed gradient, which may be overwritten."""


class BatchedOptimizer(Protocol):
    """Steps of the clients at work.

    Attributes:
        takes_rate: Whether gradients come times each client's rate.
    """

    takes_rate: bool

    def step(self, gradients: Gradients) -> None:
        """Move the active slots against their gradients."""


def batched_optimizer(
    training: Training, rate: Tensor, mu: float, slots: Sequence[ParameterSlots]
) -> BatchedOptimizer:
    """The optimizer of a batch of tasks, whose slots have the models that they start from.

    Args:
        training: The options.
        rate: The clients' rates, [clients].
        mu: Weight of the proximal term; 0 means none.
        slots: The slots that are trained.
    """
    if training.optimizer == "sgd" and training.clip_norm is None:
        return AddedSgd(rate, training.momentum, training.weight_decay, mu, slots)
    move: _Move
    if training.optimizer == "sgd":
        move = _Sgd(rate, training.momentum, training.weight_decay)
    else:
        options = training.optimizer_options
        decoupled = training.optimizer == "adamw"
        betas, eps = options.get("betas", _BETAS), options.get("eps", _EPS)
        move = _Adam(rate, betas, eps, training.weight_decay, decoupled=decoupled)
    return FormedSteps(move, mu, training.clip_norm, slots, len(rate))


class AddedSgd:
    """SGD and the proximal term; gradients come times each client's `rate`, [clients]."""

    takes_rate = True

    def __init__(
        self, rate: Tensor, momentum: float, decay: float, mu: float, slots: Sequence[ParameterSlots]
    ) -> None:
        self._momentum, self._pull, self._mu = momentum, rate * (decay + mu), rate * mu
        self._shrinks, self._anchored = bool(decay or mu), bool(mu)
        self._anchors = {s: s.values[: len(rate)].clone() for s in slots} if mu else {}
        slots_of = {s: ParameterSlots.like(s.values[0], len(rate)) for s in slots} if momentum else {}
        self._velocity = {s: own.values.zero_() for s, own in slots_of.items()}

    def step(self, gradients: Gradients) -> None:
        """w := w − v, v := momentum v + rate (g + decay w + mu (w − w_o)), for the clients at work."""
        # The proximal term gives each parameter a gradient.
        for slots in self._anchors or gradients:
            values, parts = slots.active, gradients.get(slots, ())
            if not self._momentum:
                self._add(values, -1.0, slots, parts)
            else:
                velocity = self._velocity[slots][: len(values)].mul_(self._momentum)
                self._add(velocity, 1.0, slots, parts)
                values -= velocity

    def _add(self, target: Tensor, sign: float, slots: ParameterSlots, parts: Sequence[Gradient]) -> None:
        """target := target + sign · rate (g + decay w + mu (w − w_o))."""
        values = slots.active
        if self._shrinks:
            target.addcmul_(values, per_client(self._pull, values), value=sign)
        if self._anchored:
            target.addcmul_(self._anchors[slots][: len(target)], per_client(self._mu, values), value=-sign)
        for part in parts:
            part.add_to(target, sign)


class FormedSteps:
    """Forms each gradient, with the proximal term; clips it where a norm is given; then moves."""

    takes_rate = False

    def __init__(
        self,
        move: _Move,
        mu: float,
        clip_norm: float | None,
        slots: Sequence[ParameterSlots],
        clients: int,
    ) -> None:
        self._move, self._mu, self._clip_norm = move, mu, clip_norm
        self._anchors = {s: s.values[:clients].clone() for s in slots} if mu else {}
        self._formed = {s: ParameterSlots.like(s.values[0], clients).values for s in slots}

    def step(self, gradients: Gradients) -> None:
        """Move the active slots; a slot without a gradient stays, as PyTorch leaves its parameter."""
        formed = {}
        for slots in self._anchors or gradients:
            gradient = formed[slots] = self._formed[slots][: len(slots.active)].zero_()
            for part in gradients.get(slots, ()):
                part.add_to(gradient, 1.0)
            if self._mu:
                gradient.add_(slots.active - self._anchors[slots][: len(slots.active)], alpha=self._mu)
        if self._clip_norm is not None and formed:
            norms = sum(map(_squares, formed.values()), torch.zeros(())).sqrt()
            factor = (self._clip_norm / (norms + _CLIP_EPS)).clamp_(max=1.0)
            for gradient in formed.values():
                gradient.mul_(per_client(factor, gradient))
        for slots, gradient in formed.items():
            self._move(slots, gradient)


class _Sgd:
    """v := momentum v + g + decay w; w := w − rate v."""

    def __init__(self, rate: Tensor, momentum: float, decay: float) -> None:
        self._rate, self._momentum, self._decay = rate, momentum, decay
        self._velocity: dict[ParameterSlots, Tensor] = {}

    def __call__(self, slots: ParameterSlots, gradient: Tensor) -> None:
        """Move the active values."""
        values = slots.active
        if self._decay:
            gradient.add_(values, alpha=self._decay)
        if self._momentum:
            if slots in self._velocity:
                velocity = self._velocity[slots][: len(values)].mul_(self._momentum)
                gradient = velocity.add_(gradient)
            else:
                self._velocity[slots] = gradient.clone()
        values.addcmul_(gradient, per_client(self._rate, values), value=-1.0)


class _Adam:
    """Adam, and AdamW where the decay is decoupled: it shrinks the values, and is no part of the gradient."""

    def __init__(
        self, rate: Tensor, betas: tuple[float, float], eps: float, decay: float, *, decoupled: bool
    ) -> None:
        self._rate, self._betas, self._eps, self._decay = rate, betas, eps, decay
        self._decoupled, self._steps = decoupled, dict[ParameterSlots, int]()
        self._means: dict[ParameterSlots, tuple[Tensor, Tensor]] = {}

    def __call__(self, slots: ParameterSlots, gradient: Tensor) -> None:
        """Move the active values."""
        values, (beta1, beta2) = slots.active, self._betas
        rate = per_client(self._rate, values)
        if self._decay and self._decoupled:
            values.mul_(1 - rate * self._decay)
        elif self._decay:
            gradient.add_(values, alpha=self._decay)
        if slots not in self._means:
            self._means[slots] = torch.zeros_like(gradient), torch.zeros_like(gradient)
        n = self._steps[slots] = self._steps.get(slots, 0) + 1
        first, second = (mean[: len(values)] for mean in self._means[slots])
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        spread = torch.sqrt(second, out=gradient).div_((1 - beta2**n) ** 0.5).add_(self._eps)
        values.sub_(torch.div(first, spread, out=spread).mul_(rate / (1 - beta1**n)))


def _squares(gradient: Tensor) -> Tensor:
    """‖g_i‖² of each client, [clients]; on a CPU one by one, with bits that do not depend on the others."""
    if gradient.device.type == "cpu":
        return torch.stack([own.square().sum() for own in gradient])
    norms: Tensor = torch.linalg.vector_norm(gradient.flatten(1), dim=1)
    return norms.square_()


def per_client(numbers: Tensor, values: Tensor) -> Tensor:
    """One number a client, to multiply the client's values with."""
    return numbers[: len(values)].view(-1, *[1] * (values.ndim - 1))
