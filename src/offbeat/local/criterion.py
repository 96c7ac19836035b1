"""The loss of a batch: by a loss of the module's output and a target, or by a user's function.

Batches and outputs of these forms are understood; anything else is for `step` and `evaluate`.

| batch                   | the module is called as | target            |
|-------------------------|-------------------------|-------------------|
| (x, y)                  | module(x)               | y                 |
| ((a, b), y)             | module(a, b)            | y                 |
| ({"a": a, "b": b}, y)   | module(a=a, b=b)        | y                 |
| {"a": a, "labels": y}   | module(a=a, labels=y)   | batch["labels"]   |
| x                       | module(x)               | none              |

| output                                    | scores              | its own loss   |
|-------------------------------------------|---------------------|----------------|
| a tensor                                  | itself              | none           |
| a mapping, or an object with attributes   | "logits"            | "loss"         |
| a tuple                                   | its first           | none           |

A loss of PyTorch gets the scores, and the target in its own form, as `local/targets.py` says. A function of
the user's own gets both as they come.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from offbeat.core.errors import UsageError
from offbeat.data.dataset import Batch
from offbeat.local.losses import Loss
from offbeat.local.misread_scores import ScoreWatch
from offbeat.local.targets import (
    TargetKind,
    all_ignored,
    check_form,
    check_targets,
    fitted,
    kind_of_targets,
)

Step = Callable[[nn.Module, Batch], Tensor]
"""step(module, batch): the loss to differentiate, a scalar."""

Evaluate = Callable[[nn.Module, Batch], Any]
"""evaluate(module, batch): means over the batch by name, or the pair (scores, target) for metrics."""


@dataclass(frozen=True)
class Criterion:
    """The loss of a batch, in training and in evaluation.

    Attributes:
        loss: Loss of output and target. None means the output's own loss where it has one, else the cross
            entropy of its scores.
        step: Loss of module and batch, in place of `loss`.
        evaluate: Evaluation of module and batch. None means that the loss is that of training, and that
            metrics compare the output's scores with the target.
        class_weights: Weights of the classes in the default cross entropy. None means equal ones.
    """

    loss: Loss | None = None
    step: Step | None = None
    evaluate: Evaluate | None = None
    class_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.loss is not None and self.step is not None:
            raise UsageError("loss and step: give one of them; step(module, batch) returns the loss itself")
        if self.class_weights is not None and (self.loss is not None or self.step is not None):
            raise UsageError("class_weights are for the default cross entropy: weigh your own loss yourself")

    @property
    def probabilities(self) -> bool:
        """Whether the loss is one of probabilities, so that the scores are no logits."""
        return self.loss is functional.binary_cross_entropy or isinstance(self.loss, nn.BCELoss)

    def train(self, module: nn.Module, batch: Batch, watch: ScoreWatch | None = None) -> Tensor:
        """The loss of a batch in training; `watch` looks at what the loss is called with."""
        if self.step is not None:
            with nullcontext() if watch is None else watch.of(_target(batch), in_step=True):
                return self.step(module, batch)
        x, target = split(batch)
        output = call(module, x)
        with nullcontext() if watch is None else watch.of(target):
            return self._loss(output, target)

    def score(self, module: nn.Module, batch: Batch) -> "Scored":
        """Evaluate a module, in evaluation mode, on a batch."""
        result = self.evaluate(module, batch) if self.evaluate is not None else None
        if isinstance(result, Mapping):
            return Scored(dict(result))
        if result is not None and not (isinstance(result, tuple) and len(result) == 2):
            raise UsageError(
                f"evaluate(module, batch) returned a {type(result).__name__}: it must return numbers by "
                "name, or the pair (scores, target)"
            )
        if self.step is not None:
            named = {"loss": self.step(module, batch)}
            return Scored(named, *result) if result is not None else Scored(named)
        x, target = split(batch)
        output = call(module, x)
        if self.loss is None and target is None and _own_loss(output) is None:
            return Scored({}, *(result or (None, None)))
        named = {"loss": self._loss(output, target)}
        return Scored(named, *(result or (scores(output), self.fitted(scores(output), target))))

    def _loss(self, output: Any, target: Any) -> Tensor:
        if self.loss is not None and self._kind is None:
            return self.loss(output, target)
        own = _own_loss(output) if self.loss is None and self.class_weights is None else None
        if own is not None:
            return own
        if target is None and self.loss is not None:
            raise UsageError("a batch without a target, which the loss needs: give pairs (x, y), or step")
        if target is None:
            raise UsageError("a batch without a target, and an output without a loss: give loss or step")
        found = scores(output)
        target = self.fitted(found, target)
        if isinstance(found, Tensor) and isinstance(target, Tensor):
            self._check_form(found, target)
        if self.loss is not None:
            return self.loss(found, target)
        if self.class_weights is None:
            return functional.cross_entropy(found, target)
        return functional.cross_entropy(found, target, self._weights_on(found.device))

    def fitted(self, found: Any, target: Any) -> Any:
        """The target of these scores in the form that a loss of PyTorch takes; as it comes for one's own."""
        if self._kind is None or not isinstance(found, Tensor) or not isinstance(target, Tensor):
            return target
        return fitted(self._kind, found, target)

    def _weights_on(self, device: torch.device) -> Tensor:
        """The weights of the classes on a device, where they stay: to bring them there would wait for it."""
        if device not in self._weights:
            # Training uses what an evaluation has made, so it must not be made in inference mode.
            with torch.inference_mode(False):
                self._weights[device] = torch.tensor(self.class_weights, device=device)
        return self._weights[device]

    @cached_property
    def _weights(self) -> dict[torch.device, Tensor]:
        """The weights of the classes by device."""
        return {}

    def check_batch(self, batch: Batch, name: Callable[[int], str]) -> None:
        """Check that the loss can mean a batch's targets; arguments and errors as of `check_targets`."""
        if self.loss is not None and kind_of_targets(self.loss) is not None:
            check_targets(self.loss, split(batch)[1], name)

    def ignores_all(self, batch: Batch) -> bool:
        """Whether the loss counts none of a batch's labels, so that its mean is not a number."""
        if self.step is not None or self.evaluate is not None:
            return False
        return all_ignored(self.loss, split(batch)[1], self.class_weights)

    def _check_form(self, found: Tensor, target: Tensor) -> None:
        """Check the first batch of each form."""
        one_length = found.shape[:1] == target.shape[:1]
        form = found.shape[1:], found.ndim, target.shape[1:], target.ndim, target.dtype, one_length
        if form not in self._known:
            check_form(self.loss, found, target)
            self._known.add(form)

    @cached_property
    def _kind(self) -> TargetKind | None:
        """Kind of the loss's targets. None means that the loss is the user's own."""
        return "classes" if self.loss is None else kind_of_targets(self.loss)

    @cached_property
    def _known(self) -> set[Any]:
        """Forms of batches that have been checked."""
        return set()


@dataclass(frozen=True)
class Scored:
    """Evaluation of a batch: means by name, and the values that metrics compare; None means no values."""

    means: dict[str, Any]
    scores: Any = None
    target: Any = None


def split(batch: Batch) -> tuple[Any, Any]:
    """The module's input and the target of a batch. Raises `UsageError` for one of another form."""
    match batch:
        case (x, y):
            return x, y
        case Tensor():
            return batch, None
        case Mapping():
            return batch, batch.get("labels")
        case _:
            told = (
                f"{len(batch)} parts" if isinstance(batch, tuple | list) else f"type {type(batch).__name__}"
            )
            raise UsageError(
                f"a batch of {told} is neither (x, y) nor a mapping nor a tensor: give step(module, batch) "
                "and evaluate(module, batch), or a collate that makes one of these"
            )


def _target(batch: Batch) -> Any:
    """The target of a batch for a step; None where it has another form."""
    return batch[1] if isinstance(batch, tuple | list) and len(batch) == 2 else None


def call(module: nn.Module, x: Any) -> Any:
    """The module's output for an input: one argument, a tuple of them, or a mapping of named ones."""
    if isinstance(x, Tensor):
        return module(x)
    if isinstance(x, Mapping):
        return module(**x)
    return module(*x) if isinstance(x, tuple | list) else module(x)


def scores(output: Any) -> Any:
    """The scores in a module's output."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping) and "logits" in output:
        return output["logits"]
    if isinstance(output, tuple | list):
        return output[0]
    if (found := getattr(output, "logits", None)) is not None:
        return found
    raise UsageError(
        f"an output of type {type(output).__name__} has no scores: return a tensor, a tuple, or a mapping "
        "with 'logits'; or give loss or step, and evaluate"
    )


def _own_loss(output: Any) -> Tensor | None:
    if isinstance(output, Tensor):
        return None
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return own if isinstance(own, Tensor) else None
