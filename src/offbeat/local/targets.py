"""Targets that a loss cannot mean: checked for PyTorch's losses, which train on many of them without a word.

| losses | targets |
|---|---|
| cross entropy, negative log likelihood, multi-margin, Dice | classes; for the first also probabilities |
| binary cross entropy, multi-label soft margin | numbers in [0, 1] |
| soft margin, hinge embedding | −1 and 1 |
| Poisson negative log likelihood | numbers from 0 |
| squared, absolute, smooth absolute and Huber error | numbers |

`fitted` converts what can be meant in one way alone: integers of any dtype, and a dimension 1 of size 1 too
many or too few, as in [N, 1] for [N] and in masks [N, 1, H, W].

A function of one's own means what it likes: nothing is converted or checked.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from offbeat.core.errors import UsageError
from offbeat.data.dataset import describe_batch
from offbeat.local.losses import dice_loss
from offbeat.metrics.kinds import IGNORE_INDEX

TargetKind = Literal["classes", "shares", "signs", "counts", "numbers"]


class TargetError(UsageError):
    """A target that the loss cannot take. A site sends its server `told`, which has nothing of the data."""

    told = "a target of this site is none for the run's loss, which its own log says more of"


_LOSSES: tuple[tuple[TargetKind, tuple[Any, ...], tuple[type[nn.Module], ...]], ...] = (
    (
        "classes",
        (functional.cross_entropy, functional.nll_loss, functional.multi_margin_loss, dice_loss),
        (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss),
    ),
    (
        "shares",
        (
            functional.binary_cross_entropy,
            functional.binary_cross_entropy_with_logits,
            functional.multilabel_soft_margin_loss,
        ),
        (nn.BCELoss, nn.BCEWithLogitsLoss, nn.MultiLabelSoftMarginLoss),
    ),
    (
        "signs",
        (functional.soft_margin_loss, functional.hinge_embedding_loss),
        (nn.SoftMarginLoss, nn.HingeEmbeddingLoss),
    ),
    ("counts", (functional.poisson_nll_loss,), (nn.PoissonNLLLoss,)),
    (
        "numbers",
        (functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss),
        (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss),
    ),
)
_ALLOWED: dict[TargetKind, str] = {
    "classes": "classes from 0",
    "shares": "targets in [0, 1], such as 0 and 1",
    "signs": "targets −1 and 1",
    "counts": "targets from 0",
}
_SUM_ERROR = 1e-2  # of probabilities in half precision


def kind_of_targets(loss: Callable[..., Any] | None) -> TargetKind | None:
    """Kind of a loss's targets; None means that it is not known."""
    while isinstance(loss, partial):
        loss = loss.func
    return next(
        (kind for kind, functions, classes in _LOSSES if loss in functions or isinstance(loss, classes)), None
    )


def ignored_label(loss: Callable[..., Any] | None) -> int:
    """The label of an element that a loss of classes does not count."""
    while isinstance(loss, partial):
        if (given := loss.keywords.get("ignore_index")) is not None:
            return int(given)
        loss = loss.func
    found = getattr(loss, "ignore_index", IGNORE_INDEX)
    return found if isinstance(found, int) else IGNORE_INDEX


def fitted(kind: TargetKind, scores: Tensor, target: Tensor) -> Tensor:
    """A target in the form that a loss takes: another dtype, or a dimension 1 of size 1 more or less.

    Args:
        kind: Kind of the loss's targets.
        scores: The module's output.
        target: The targets.

    Returns:
        Integers and booleans as classes int64, or as numbers of the scores' dtype. Anything that could be
        meant in several ways is returned as it is, for `check_form`.
    """
    if target.is_complex():
        return target
    if kind != "classes":
        values = target if target.is_floating_point() else target.to(scores.dtype)
        alike = min(scores.ndim, values.ndim) > 0 and _without_unit(values) == _without_unit(scores)
        return values.reshape(scores.shape) if alike else values
    if target.is_floating_point():
        return target
    one_too_many = target.ndim == scores.ndim > 1 == target.shape[1] != scores.shape[1]
    return (target.squeeze(1) if one_too_many else target).long()


def _without_unit(values: Tensor) -> tuple[int, ...]:
    """The shape without its dimension 1, where that is of size 1."""
    shape = tuple(values.shape)
    return shape[:1] + shape[2:] if shape[1:2] == (1,) else shape


def check_form(loss: Callable[..., Any] | None, scores: Tensor, target: Tensor) -> None:
    """Check that dtypes and shapes of a batch's scores and targets fit a loss of PyTorch.

    Args:
        loss: The loss. None means the default, the cross entropy of classes.
        scores: The module's output.
        target: The targets, as `fitted` returns them.

    Raises:
        UsageError: There is one score for several classes, the labels are no classes, or the shapes differ,
            where PyTorch would make [N, N] of [N, 1] and [N].
    """
    pair = f"scores {describe_batch(scores)} with target {describe_batch(target)}"
    if kind_of_targets(loss) in (None, "classes") and (why := _no_classes(loss, scores, target)):
        default = "the default loss is the cross entropy of classes, and " * (loss is None)
        raise UsageError(f"{pair}: {default}{why}")
    if kind_of_targets(loss) not in (None, "classes") and scores.shape != target.shape:
        raise UsageError(
            f"{pair}: {_name(loss)} compares each score with a target: give them one shape; for the cross "
            "entropy of classes leave loss out"
        )


def _no_classes(loss: Callable[..., Any] | None, scores: Tensor, target: Tensor) -> str:
    """Why targets are no classes of these scores, and what to do; "" means that they are."""
    if scores.ndim < 2 or scores.shape[1] == 1:
        return (
            "the loss of one score for all classes is always the same: give the module a score for each "
            "class; or give loss=, nn.BCEWithLogitsLoss() for targets 0 and 1, nn.MSELoss() for numbers"
        )
    each = target.shape == scores.shape
    probabilities = _is(loss, functional.cross_entropy, nn.CrossEntropyLoss)
    if each and not (probabilities and target.is_floating_point()):
        return (
            "a class is one number for each sample: make classes of one-hot targets by .argmax(1); or give "
            "loss=, nn.BCEWithLogitsLoss() for several labels of a sample, nn.CrossEntropyLoss() for "
            "probabilities of float32, nn.MSELoss() for numbers"
        )
    if not each and (target.is_floating_point() or target.is_complex()):
        return (
            "labels of classes are int64: convert them with .long(), of NumPy and pandas .astype('int64'); "
            "for numbers give loss=, such as nn.MSELoss(), and a module with one score"
        )
    wanted = scores.shape[:1] + scores.shape[2:]
    if not each and target.shape != wanted:
        return (
            f"scores [N, C, ...] take a class at each place, here a target of {list(wanted)}: give the "
            "target this shape, or the scores their classes in dimension 1"
        )
    if (
        _is(loss, functional.nll_loss, nn.NLLLoss)
        and scores.numel()
        and float(scores.detach().amax()) > _SUM_ERROR
    ):
        return (
            f"{_name(loss)} takes logarithms of probabilities, which are at most 0: end the module in "
            "nn.LogSoftmax(1), or give the cross entropy"
        )
    return ""


def wrong_target(loss: Callable[..., Any], target: Tensor, classes: int | None = None) -> int | None:
    """The first sample whose target a loss cannot mean.

    Args:
        loss: The loss.
        target: The targets, [N, ...].
        classes: Number of the module's scores. None means that it is not known.

    Returns:
        Its number; None means that there is none.
    """
    kind = kind_of_targets(loss)
    if kind in (None, "numbers") or not len(target) or target.is_complex():
        return None
    if kind == "classes" and target.is_floating_point():
        if target.ndim < 2:
            return 0
        wrong = (target < 0) | ((target.sum(1, keepdim=True) - 1).abs() > _SUM_ERROR)
    elif kind == "classes":
        target = target.long()
        wrong = (target < 0) if classes is None else (target < 0) | (target >= classes)
        wrong &= target != ignored_label(loss)
    elif kind == "shares":
        wrong = (target < 0) | (target > 1)
    elif kind == "signs":
        wrong = (target != 1) & (target != -1)
    else:
        wrong = target < 0
    if not bool(wrong.any()):
        return None
    return int(wrong.flatten(1).any(1).int().argmax() if wrong.ndim > 1 else wrong.int().argmax())


def check_targets(
    loss: Callable[..., Any] | None,
    target: Any,
    name: Callable[[int], str],
    classes: int | None = None,
) -> None:
    """Check that a loss can mean the targets of some samples.

    Args:
        loss: The loss. None, and a function of one's own, check nothing.
        target: The targets, [N, ...].
        name: name(n) is sample n in words, such as "client 2: sample 5 of the train set".
        classes: Number of the module's scores. None means that it is not known.

    Raises:
        TargetError: It cannot; names the first sample of these.
    """
    if loss is None or not isinstance(target, Tensor) or (n := wrong_target(loss, target, classes)) is None:
        return
    kind = kind_of_targets(loss)
    assert kind is not None
    first = target[n]
    shown = first.flatten()[:8].tolist()
    target_text = f"the target {shown[0] if first.numel() == 1 else shown}"
    allowed = _ALLOWED[kind] if classes is None else f"classes 0 to {classes - 1}"
    remedy = "renumber or leave it out"
    if kind == "classes" and target.is_floating_point():
        allowed = "labels int64, or float probabilities that add up to 1"
        remedy = "convert labels with .long(), of NumPy and pandas .astype('int64')"
    if kind == "shares":
        remedy += "; give a score for each class and the cross entropy where these are classes"
    raise TargetError(f"{name(n)} has {target_text}, and {_name(loss)} takes {allowed}: {remedy}")


def all_ignored(loss: Callable[..., Any] | None, target: Any, weights: Any = None) -> bool:
    """Whether a loss of classes counts none of a batch's labels, so that its mean is not a number.

    Args:
        loss: The loss. None means the cross entropy.
        target: The labels.
        weights: Weights of the classes. None means those of the loss, if it has any.
    """
    if loss is not None and kind_of_targets(loss) != "classes":
        return False
    if not isinstance(target, Tensor) or target.is_floating_point() or not target.numel():
        return False
    counted = target[target != ignored_label(loss)].long()
    weights = _weights(loss) if weights is None else torch.as_tensor(weights)
    return not len(counted) or (weights is not None and not bool(weights.to(counted.device)[counted].any()))


def _weights(loss: Callable[..., Any] | None) -> Tensor | None:
    """The weights of the classes in a loss; None where it has none."""
    while isinstance(loss, partial):
        if (given := loss.keywords.get("weight")) is not None:
            return given if isinstance(given, Tensor) else None
        loss = loss.func
    found = getattr(loss, "weight", None)
    return found if isinstance(found, Tensor) else None


def _is(loss: Any, function: Callable[..., Any], kind: type[nn.Module]) -> bool:
    while isinstance(loss, partial):
        loss = loss.func
    return loss is function or isinstance(loss, kind)


def _name(loss: Any) -> str:
    while isinstance(loss, partial):
        loss = loss.func
    return str(getattr(loss, "__name__", type(loss).__name__))


def scores_of(module: nn.Module, x: Any, call: Callable[[nn.Module, Any], Any]) -> int | None:
    """Number of a module's scores for a sample, by one evaluation; None where it does not tell."""
    was = module.training
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            output = call(module.eval(), x)
        except Exception:
            # The module may need another device. Training says what is wrong.
            return None
        finally:
            module.train(was)
    return output.shape[1] if isinstance(output, Tensor) and output.ndim >= 2 else None
