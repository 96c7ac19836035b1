"""Kinds of predictions, decided from scores and targets: the one place that knows which shapes fit.

| kind | scores | target | values of the target |
|---|---|---|---|
| multi-class | [N, C, ...], C ≥ 2 | [N, ...] | integers in [0, C) |
| multi-class, classes last | [N, ..., C], C ≥ 2 | [N, ...] | integers in [0, C) |
| binary | [N] or [N, 1] | [N] or [N, 1] | 0 and 1 of any dtype |
| binary, masks | [N, 1, ...] | [N, ...] or [N, 1, ...] | 0 and 1 of any dtype |
| binary, masks | [N, H, W] | [N, H, W] or [N, 1, H, W] | 0 and 1 of any dtype |
| multi-label | [N, L], L ≥ 2 | [N, L] | 0 and 1 of any dtype |
| regression | [N, ...] | [N, ...], on either side also [N, 1, ...] | numbers |

Scores are floating-point numbers. No other broadcasting is done: [N] against [N, 1] is N pairs. In every kind
of classification a target of −100 is ignored, as by PyTorch's `cross_entropy`; in regression −100 is a
number.

Scores [N, K, K] with targets [N, K] fit both rows of multi-class. They are refused unless `class_dim` says
where the classes are.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NoReturn

from torch import Tensor

from offbeat.core.errors import UsageError

IGNORE_INDEX = -100
"""The target of an element that no classification metric counts, as in PyTorch's `cross_entropy`."""

ClassDim = Literal[1, -1]
"""Dimension of the classes in multi-class scores."""


class PredictionKind(StrEnum):
    """Kind of a prediction: the meaning of one score and one target."""

    BINARY = "binary"
    MULTICLASS = "multi-class"
    MULTILABEL = "multi-label"
    REGRESSION = "regression"


@dataclass(frozen=True, eq=False)
class LabelledScores:
    """Scores and targets of a batch, checked, for a classification metric.

    Attributes:
        kind: Binary, multi-class or multi-label.
        scores: Binary and multi-label: in the target's shape. Multi-class: [N, C, ...] or [N, ..., C].
        target: int64 [N, ...]; `IGNORE_INDEX` where ignored.
        class_dim: Dimension of the classes in `scores`; None where the kind is not multi-class.
    """

    kind: PredictionKind
    scores: Tensor
    target: Tensor
    class_dim: ClassDim | None = None

    @property
    def classes(self) -> int:
        """Number of classes, 2 if binary; of labels, if multi-label."""
        if self.kind is PredictionKind.BINARY:
            return 2
        return self.scores.shape[1 if self.class_dim is None else self.class_dim]

    @property
    def counted(self) -> Tensor:
        """Which targets are not ignored, bool in the target's shape."""
        return self.target != IGNORE_INDEX

    def predicted(self, probabilities: bool) -> Tensor:
        """Predicted labels, int64 in the target's shape.

        Multi-class: the class of the largest score, of equal ones the first. Otherwise 1 where the score is
        above the threshold: 0 for logits, 0.5 for probabilities.
        """
        if self.class_dim is not None:
            return self.scores.argmax(self.class_dim)
        return (self.scores > (0.5 if probabilities else 0.0)).long()

    def rows(self) -> tuple[Tensor, Tensor]:
        """Scores and targets without those ignored: [M] and [M], or multi-class [M, C] and [M].

        Multi-label predictions keep their shape, [N, L] and [N, L], and their ignored targets.
        """
        if self.kind is PredictionKind.MULTILABEL:
            return self.scores, self.target
        scores = self.scores if self.class_dim is None else self.scores.movedim(self.class_dim, -1)
        return scores[self.counted], self.target[self.counted]


def kind_of(scores: Tensor, target: Tensor, class_dim: ClassDim | None = None) -> PredictionKind:
    """Kind of predictions, by the table of this module.

    Scores and targets of one shape are binary or multi-label where the targets are 0, 1 or `IGNORE_INDEX`,
    and regression otherwise.

    Args:
        scores: Scores of a module, floating point, [N, ...].
        target: Targets [N, ...].
        class_dim: Dimension of the classes in multi-class scores. None means that the shapes tell.

    Raises:
        UsageError: The shapes and dtypes fit no kind, or two.
    """
    kind, _ = _layout(scores, target, class_dim)
    if kind is PredictionKind.MULTICLASS or (kind is not None and is_binary(target)):
        return kind
    return PredictionKind.REGRESSION if _elementwise(scores, target) else _refuse(scores, target)


def labelled(scores: Tensor, target: Tensor, class_dim: ClassDim | None = None) -> LabelledScores:
    """Check a batch for a classification metric.

    Args:
        scores: Scores of a module, floating point, [N, ...].
        target: Targets [N, ...].
        class_dim: Dimension of the classes in multi-class scores. None means that the shapes tell.

    Raises:
        UsageError: The shapes and dtypes fit no kind of classification, or two, or a target is out of range.
    """
    kind, dim = _layout(scores, target, class_dim)
    if kind is None:
        _refuse(scores, target)
    if kind is PredictionKind.MULTICLASS:
        batch = LabelledScores(kind, scores, target.long(), dim)
        _check_classes(batch)
        return batch
    if not is_binary(target):
        raise UsageError(
            f"{_shown(scores, target)} has the target {target[~_binary(target)][0].item()}: with one score "
            "for each target, targets are 0 or 1 (−100 is ignored); for classes give a score for each class, "
            "for numbers use mae or rmse"
        )
    shape = target.shape if kind is PredictionKind.MULTILABEL else _without_unit(target)
    return LabelledScores(kind, scores.reshape(shape), target.reshape(shape).long())


def paired(scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and targets of a regression as float64 on the CPU, in one shape.

    Args:
        scores: Predicted numbers, floating point, [N, ...] or [N, 1, ...].
        target: Numbers [N, ...] or [N, 1, ...].

    Raises:
        UsageError: The shapes differ, or the scores are not floating-point numbers.
    """
    if not _elementwise(scores, target):
        raise UsageError(
            f"{_shown(scores, target)} is not allowed in a regression: give floating-point scores and "
            "targets of one shape [N, ...]; [N, 1] fits [N]"
        )
    shape = _without_unit(scores)
    predicted, wanted = (values.detach().reshape(shape).cpu().double() for values in (scores, target))
    return predicted, wanted


def is_binary(target: Tensor) -> bool:
    """Whether all targets are 0, 1 or `IGNORE_INDEX`."""
    return bool(_binary(target).all())


def _binary(target: Tensor) -> Tensor:
    """Which targets are 0, 1 or `IGNORE_INDEX`."""
    # A uint8 cannot be compared with −100.
    values = target if target.is_floating_point() else target.long()
    return (values == 0) | (values == 1) | (values == IGNORE_INDEX)


def _layout(
    scores: Tensor, target: Tensor, class_dim: ClassDim | None
) -> tuple[PredictionKind | None, ClassDim | None]:
    """The kind of classification that the shapes and dtypes fit, and where the classes are; None means none.

    Binary and multi-label need targets of 0 and 1 besides.
    """
    s, t = tuple(scores.shape), tuple(target.shape)
    if _elementwise(scores, target):
        if _without_unit(scores) == s[:1] or (len(s) > 2 and s[1] == 1) or len(s) == 3:
            return PredictionKind.BINARY, None
        return (PredictionKind.MULTILABEL, None) if s == t and len(s) == 2 else (None, None)
    if not scores.is_floating_point() or not _is_integer(target) or len(s) != len(t) + 1 or not t:
        return None, None
    fits: dict[ClassDim, bool] = {1: s[:1] + s[2:] == t and s[1] >= 2, -1: s[:-1] == t and s[-1] >= 2}
    if len(s) == 2:
        return (PredictionKind.MULTICLASS, 1) if fits[1] else (None, None)
    dims = [dim for dim, fit in fits.items() if fit and class_dim in (None, dim)]
    if len(dims) == 2:
        raise UsageError(
            f"{_shown(scores, target)} does not tell which dimension is that of the classes: give the metric "
            "as an object with class_dim=1 or class_dim=-1"
        )
    return (PredictionKind.MULTICLASS, dims[0]) if dims else (None, None)


def _elementwise(scores: Tensor, target: Tensor) -> bool:
    """Whether there is one score for each target, but for a dimension 1 of size 1."""
    if not scores.is_floating_point() or target.is_complex() or 0 in (scores.ndim, target.ndim):
        return False
    s, t = tuple(scores.shape), tuple(target.shape)
    return s == t or _without_unit(scores) == t or s == _without_unit(target)


def _without_unit(values: Tensor) -> tuple[int, ...]:
    """The shape without its dimension 1, where that is of size 1."""
    shape = tuple(values.shape)
    return shape[:1] + shape[2:] if len(shape) > 1 and shape[1] == 1 else shape


def _is_integer(values: Tensor) -> bool:
    return not values.is_floating_point() and not values.is_complex()


def _check_classes(batch: LabelledScores) -> None:
    """Raises `UsageError` for a target that is no class."""
    target, classes = batch.target, batch.classes
    wrong = target[((target < 0) | (target >= classes)) & batch.counted]
    if len(wrong):
        raise UsageError(
            f"{_shown(batch.scores, target)} has the target {int(wrong[0])}: with {classes} classes targets "
            f"are 0 to {classes - 1} (−100 is ignored)"
        )


def _refuse(scores: Tensor, target: Tensor) -> NoReturn:
    raise UsageError(
        f"{_shown(scores, target)} fits no kind of prediction: allowed are floating-point scores [N, C, ...] "
        "or [N, ..., C] with integer targets [N, ...], one score [N], [N, 1], [N, 1, ...] or [N, H, W] for "
        "each target of 0 or 1, scores [N, L] with targets [N, L] of 0 and 1, and for a regression numbers "
        "of one shape"
    )


def _shown(scores: Tensor, target: Tensor) -> str:
    """Shapes and dtypes, for an error."""
    shown = [f"{str(v.dtype).removeprefix('torch.')} {list(v.shape)}" for v in (scores, target)]
    return f"scores {shown[0]} with target {shown[1]}"
