"""Differential privacy of each example of a client: DP-SGD in its local steps.

Abadi et al., Deep Learning with Differential Privacy, 2016, Algorithm 1. A step takes each of the client's n
examples with probability p = min(1, batch size / n), clips each one's gradient, and steps with

    (Σ clipped gradients + N(0, (noise · clip)² I)) / (p n).

The examples that a step takes, and the noise of the step, follow from 32 secret bytes of the task. The update
of a task, and everything that is made from it, reveals no more about the client's data than these steps. The
noise consists of floating-point numbers, which the theorem does not cover.
"""

import re
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import lru_cache
from math import inf, isfinite, sqrt
from threading import Lock
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from offbeat.core.buffers import unwrap_buffers
from offbeat.core.errors import UsageError
from offbeat.core.extras import requires_extra
from offbeat.core.objective import Objective
from offbeat.core.privacy.words import WordStream
from offbeat.core.types import NUMBER, Positive
from offbeat.core.validation import checked_dataclass
from offbeat.data.dataset import Batch
from offbeat.data.federated import FederatedData
from offbeat.local.copies import copied

# `History` is part of this module's interface.
from offbeat.local.examples_accounting import History as History
from offbeat.local.examples_accounting import exact_epsilon, renyi_epsilon
from offbeat.local.gradient_flow import DETACHED, GradientFlow
from offbeat.local.objectives import Plain, Proximal
from offbeat.local.training import Training

# Up to `_FEW` steps of a site are counted exactly, and no more than `_MANY` at all.
_FEW, _MANY = 10_000, 1_000_000
# From this ε √steps on, the exact accountant takes more than ten seconds.
_SLOW = 12_000
# Warnings of libraries: the beginning of the message, and the module that gives it.
_EXPECTED = (
    # PyTorch warns of the first layer, whose input needs no gradient.
    ("Full backward hook is firing", ""),
    # Opacus warns where the best order of the Rényi divergence is the largest of those tried.
    ("", r"opacus\."),
)
_filters = Lock()


@checked_dataclass
class ExamplesPrivacy:
    """Options of private examples: DP-SGD in the local steps of a client.

    Attributes:
        noise: Standard deviation of a step's noise, divided by `clip`.
        clip: L2 norm to which each example's gradient is clipped, over all trained parameters.
        epsilon: ε that all tasks of a site may spend together, in all runs. None means that the spent ε is
            counted but not limited.
        delta: δ, in (0, 1); it must be below 1 / number of the site's examples.
    """

    noise: Positive = 1.0
    clip: Positive = 1.0
    epsilon: Positive | None = None
    delta: Annotated[float, Field(gt=0, lt=1), NUMBER] = 1e-5

    def check_objective(self, objective: Objective) -> None:
        """Raises `UsageError` for an objective whose steps take more of the examples than a gradient."""
        own = unwrap_buffers(objective)
        if type(own) not in (Plain, Proximal):
            name = type(own).__name__.lower()
            raise UsageError(
                f"examples privacy knows the objectives plain and proximal, {name} is another: choose an "
                "algorithm with one of them"
            )


def _ignore_warnings() -> None:
    """Leave out the warnings that are expected, from now on.

    `warnings.catch_warnings` would leave them out for a while, but is not for threads: where two of them are
    in it at once, as in a process with several sites, the first to leave gives the other its filters.
    """
    with _filters:
        for message, module in _EXPECTED:
            found = re.compile(message, re.I) if message else None, re.compile(module) if module else None
            if not any((at[1], at[3]) == found for at in warnings.filters[: len(_EXPECTED)]):
                warnings.filterwarnings("ignore", message=message, module=module)


def examples_epsilon(history: History, delta: float) -> float:
    """ε of each example after these steps, by an accountant of Opacus.

    It is that of Gopi et al., 2021. Its time grows with ε √steps: where it would take minutes, which is far
    beyond any privacy, it is that of Rényi divergences, whose bound is looser.

    Args:
        history: The steps.
        delta: δ.

    Raises:
        UsageError: Opacus is not installed.
    """
    return _epsilon(tuple(entry for entry in history if entry[2]), delta)


@lru_cache(maxsize=256)
def _epsilon(history: tuple[tuple[float, float, int], ...], delta: float) -> float:
    """ε after these steps. A site asks for it again and again."""
    _ignore_warnings()
    with requires_extra("opacus"):
        if not history:
            return 0.0
        bound = renyi_epsilon(history, delta)
        if not bound * sqrt(sum(steps for _, _, steps in history)) <= _SLOW:
            return bound
        return exact_epsilon(history, delta)


def steps_within(options: ExamplesPrivacy, history: History, rate: float) -> float:
    """How many more steps with probability `rate` the budget allows; infinite without one.

    It takes a second or more, as ε is computed some ten times. Beyond 10,000 steps, where that takes minutes,
    fewer are allowed: those that Rényi divergences give, whose bound is looser.
    """
    if options.epsilon is None:
        return inf
    limit = options.epsilon

    def allowed(steps: int) -> bool:
        return examples_epsilon([*history, (options.noise, rate, steps)], options.delta) <= limit

    least = _renyi_steps_within(options, history, rate)
    if least > _FEW:
        return least
    most = least + 1 + least // 4
    while most < _MANY and allowed(most):
        least, most = most, most + 1 + most // 4
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if allowed(middle) else (least, middle)
    return least


def _renyi_steps_within(options: ExamplesPrivacy, history: History, rate: float) -> int:
    """Number of steps that the budget allows by Rényi divergences; computed at once."""
    _ignore_warnings()
    with requires_extra("opacus"):

        def allowed(steps: int) -> bool:
            return renyi_epsilon([*history, (options.noise, rate, steps)], options.delta) <= limit

        limit = options.epsilon or 0.0
        most = 1
        while most < _MANY and allowed(most):
            most *= 2
        return most // 2 + bisect_left(range(most // 2 + 1, most), True, key=lambda steps: not allowed(steps))


def sampling_rate(batch_size: int, samples: int) -> float:
    """p: the probability with which a step takes an example."""
    return min(1.0, batch_size / samples)


class ExampleGradients:
    """The gradients of one task's steps.

    Args:
        options: Noise and clip.
        parameters: The parameters that are trained.
        batch: p n, what a step takes on average.
        secret: The task's 32 bytes.
    """

    def __init__(
        self, options: ExamplesPrivacy, parameters: Sequence[Tensor], batch: float, secret: bytes
    ) -> None:
        self._options, self._parameters, self._batch = options, list(parameters), batch
        self._noise = WordStream(secret, b"offbeat/1/example-noise")
        self._sums: list[Tensor] = []

    def begin(self, step: int) -> None:
        """Begin a step; its noise follows from its number, whether or not the earlier ones are made here."""
        self._noise.seek(step * len(self._parameters))
        self._sums = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._clear()

    def add(self) -> None:
        """Add the clipped gradients of the examples of which the loss was just differentiated."""
        pairs = [(total, _gradients(p)) for total, p in zip(self._sums, self._parameters, strict=True)]
        squares = sum((g.flatten(1).double().square().sum(1) for _, g in pairs if g is not None), 0.0)
        if isinstance(squares, float):
            return
        norms = squares.sqrt()
        factors = torch.where(norms.isfinite(), (self._options.clip / norms).clamp(max=1.0), 0.0)
        for total, gradients in pairs:
            if gradients is not None:
                kept = torch.where(norms.isfinite().view(-1, *[1] * total.ndim), gradients, 0.0)
                total += torch.tensordot(factors.to(kept.dtype), kept, 1)
        self._clear()

    def end(self) -> None:
        """Write the step's noised gradient where the optimizer takes it."""
        deviation = self._options.noise * self._options.clip
        for parameter, total in zip(self._parameters, self._sums, strict=True):
            drawn = torch.from_numpy(self._noise.normal(total.numel())).to(total)
            parameter.grad = (total + deviation * drawn.view_as(total)) / self._batch

    def _clear(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
            parameter.grad_sample = None  # type: ignore[attr-defined]


def _gradients(parameter: Tensor) -> Tensor | None:
    """The gradients of the examples [n, …] that Opacus has left at a parameter."""
    found: Any = getattr(parameter, "grad_sample", None)
    if isinstance(found, list):
        # Several passes through a layer leave one tensor each.
        found = torch.stack(found).sum(0)
    return found if found is None else found.detach()


def example_batches(secret: bytes, samples: int, rate: float, steps: int) -> Iterator[Tensor]:
    """The positions of the examples that each step takes, each with probability `rate`."""
    words = WordStream(secret, b"offbeat/1/examples")
    for _ in range(steps):
        yield torch.from_numpy((words.uniform(samples) < rate).nonzero()[0])


@contextmanager
def gradients_by_example(module: nn.Module) -> Iterator[None]:
    """Within it a backward pass of a mean over a batch leaves each example's gradient at the parameters.

    Raises:
        UsageError: The module mixes examples, or Opacus is not installed.
    """
    check_module_by_example(module)
    _ignore_warnings()
    with requires_extra("opacus"):
        from opacus import GradSampleModule
    wrapped = GradSampleModule(module, strict=False)
    try:
        yield
    finally:
        wrapped.to_standard_module()


def check_module_by_example(module: nn.Module) -> None:
    """Raises `UsageError` for a module whose outputs for an example depend on others."""
    if any(isinstance(layer, _BatchNorm) for layer in module.modules()):
        raise UsageError("batch_norm mixes examples: use group_norm")


def check_by_example(
    module: nn.Module, loss: Callable[[nn.Module, Batch], Tensor], together: Batch, alone: Sequence[Batch]
) -> None:
    """Check, on a few examples, that the gradients in a batch are those of its examples one at a time.

    Only then is what one of them changes at most `clip`. They are not where the module or the loss mixes
    examples, the loss is no mean, examples are not the first dimension of each layer's input, or a parameter
    is used by two layers. Dropout is left out, whose draws differ. Nor may the module keep anything of them
    in its buffers, which later steps would see.

    Args:
        module: The module, which is left as it is.
        loss: loss(module, batch), the mean over a batch.
        together: The examples in one batch.
        alone: The same examples, in a batch each.

    Raises:
        UsageError: They differ, the module writes to its buffers, or Opacus cannot find them.
    """
    _check_flow(copied(module).cpu().train(), loss, together)
    module = copied(module).cpu().train()
    for layer in module.modules():
        layer.train(not isinstance(layer, _DropoutNd))
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    buffers = deepcopy(dict(module.named_buffers()))
    try:
        with gradients_by_example(module):
            loss(module, together).backward()  # type: ignore[no-untyped-call]
            by_example = [_gradients(parameter) for parameter in parameters]
        written = [
            name
            for name, buffer in module.named_buffers()
            if name not in buffers or not torch.equal(buffer, buffers[name])
        ]
        one_by_one = [
            torch.autograd.grad(loss(module, batch), parameters, allow_unused=True) for batch in alone
        ]
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"{type(module).__name__} gives no gradients by example ({type(error).__name__}): make it of "
            "layers that Opacus knows"
        ) from error
    if written:
        raise UsageError(
            f"{type(module).__name__} writes to its buffer {written[0]} in training: what it keeps there of "
            "examples is neither clipped nor noised, so leave it out"
        )
    if not _alike(by_example, one_by_one):
        raise UsageError(
            f"{type(module).__name__} or its loss mixes examples: an example's gradient in a batch is not "
            "that of the example alone; the loss must be a mean, and examples the first dimension everywhere"
        )


def _check_flow(module: nn.Module, loss: Callable[[nn.Module, Batch], Tensor], batch: Batch) -> None:
    """Check that gradients reach the module's parameters, before each example's are looked for.

    Raises:
        UsageError: They reach none.
    """
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    flow = GradientFlow(module, trained, loss)
    try:
        found = loss(module, batch)
        if found.requires_grad:
            flow.watch(found)
            found.backward()  # type: ignore[no-untyped-call]
            flow.reached()
    except Exception:
        # The error is reported where each example's gradients are computed.
        return
    if not flow.watched:
        raise UsageError(f"{type(module).__name__} cannot be trained: {DETACHED}")
    flow.end("the first examples", 1.0, moved=flow.nonzero)


def _alike(by_example: Sequence[Tensor | None], one_by_one: Sequence[Sequence[Tensor | None]]) -> bool:
    """Whether each example's gradients are its own, up to rounding; those not finite are left out."""
    for row, gradients in enumerate(one_by_one):
        difference = size = 0.0
        for together, alone in zip(by_example, gradients, strict=True):
            if together is None and alone is None:
                continue
            if together is not None and len(together) != len(one_by_one):
                return False
            theirs = 0.0 if together is None else together[row].double()
            ours = 0.0 if alone is None else alone.double()
            difference += float(torch.as_tensor(theirs - ours).square().sum())
            size += float(torch.as_tensor(ours).square().sum())
        if isfinite(size) and not difference <= 1e-6 * size + 1e-12:
            return False
    return True


def check_examples(options: ExamplesPrivacy, training: Training, data: FederatedData) -> None:
    """Raises `UsageError` unless training options and clients go with privacy of examples."""
    for option in ("precision", "class_weights", "drop_last"):
        if (value := getattr(training, option)) != getattr(Training(), option):
            raise UsageError(f"examples privacy does not go with {option} = {value!r}: leave it out")
    check_delta(options, int((data.rows.offsets[1:] - data.rows.offsets[:-1]).max()) if data.clients else 0)


def check_delta(options: ExamplesPrivacy, examples: int) -> None:
    """Raises `UsageError` where δ is too large for a client with this number of examples."""
    if options.delta * examples >= 1:
        raise UsageError(
            f"delta = {options.delta:g} is not allowed with {examples} examples: it must be below "
            f"1/{examples}"
        )
