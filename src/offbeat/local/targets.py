"""Targets that a loss cannot mean: checked for PyTorch's losses, which train on many of them without a word.

| losses | targets |
|---|---|
| cross entropy, negative log likelihood, multi-margin | int64 classes; for the first also probabilities |
| binary cross entropy, multi-label soft margin | numbers in [0, 1] |
| soft margin, hinge embedding | −1 and 1 |
| Poisson negative log likelihood | numbers from 0 |

A function of one's own means what it likes: nothing is checked.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from offbeat.core.errors import UsageError
from offbeat.data.dataset import describe_batch
from offbeat.metrics.kinds import IGNORE_INDEX

TargetKind = Literal["classes", "shares", "signs", "counts"]


class TargetError(UsageError):
    """A target that the loss cannot take. A site sends its server `told`, which has nothing of the data."""

    told = "a target of this site is none for the run's loss, which its own log says more of"


_LOSSES: tuple[tuple[TargetKind, tuple[Any, ...], tuple[type[nn.Module], ...]], ...] = (
    (
        "classes",
        (functional.cross_entropy, functional.nll_loss, functional.multi_margin_loss),
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


def check_form(loss: Callable[..., Any], scores: Tensor, target: Tensor) -> None:
    """Check that dtypes and shapes of a batch's scores and targets fit a loss of classes.

    Args:
        loss: The loss.
        scores: The module's output.
        target: The targets.

    Raises:
        UsageError: There is one score for several classes, or the labels are no classes.
    """
    if kind_of_targets(loss) != "classes":
        return
    pair = f"scores {describe_batch(scores)} with target {describe_batch(target)}"
    if scores.ndim < 2 or scores.shape[1] == 1:
        raise UsageError(
            f"{pair}: the loss of one score for all classes is always the same: give the module a score for "
            "each class, or for two classes nn.BCEWithLogitsLoss() and targets of 0.0 and 1.0"
        )
    probabilities = target.is_floating_point() and target.shape == scores.shape
    if not probabilities and (target.is_floating_point() or target.is_complex()):
        raise UsageError(f"{pair}: labels of classes are int64: convert them with .long()")
    if _is_nll(loss) and scores.numel() and float(scores.detach().amax()) > _SUM_ERROR:
        raise UsageError(
            f"{pair}: {_name(loss)} takes logarithms of probabilities, which are at most 0: end the module "
            "in nn.LogSoftmax(1), or give the cross entropy"
        )


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
    if kind is None or not len(target) or target.is_complex():
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
    if kind == "classes" and target.is_floating_point():
        allowed = "labels int64 (.long()), or probabilities that add up to 1"
    hint = "; give a score for each class and the cross entropy where these are classes" * (kind == "shares")
    raise TargetError(
        f"{name(n)} has {target_text}, and {_name(loss)} takes {allowed}: renumber or leave it out{hint}"
    )


def all_ignored(loss: Callable[..., Any] | None, target: Any) -> bool:
    """Whether a loss of classes counts none of a batch's labels, so that its mean is not a number."""
    if loss is not None and kind_of_targets(loss) != "classes":
        return False
    if not isinstance(target, Tensor) or target.is_floating_point() or not target.numel():
        return False
    return bool((target == ignored_label(loss)).all())


def _is_nll(loss: Any) -> bool:
    while isinstance(loss, partial):
        loss = loss.func
    return loss is functional.nll_loss or isinstance(loss, nn.NLLLoss)


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
