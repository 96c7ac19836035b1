"""Metrics of classification that follow from counts: accuracy, balanced accuracy, F1, Dice, exact match.

Predicted is the class of the largest score; for a binary or multi-label prediction, 1 where the logit is
above 0 (the probability above ½). TP, FP and FN of a class or label k count its true positives, false
positives and false negatives over all samples and positions; counts are integers, so the division into
batches changes no bit.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from offbeat.core.errors import UsageError
from offbeat.metrics.kinds import ClassDim, LabelledScores, PredictionKind, labelled

NAN = float("nan")
_ANY = frozenset({PredictionKind.BINARY, PredictionKind.MULTICLASS, PredictionKind.MULTILABEL})


class ClassificationMetric(ABC):
    """Base of the classification metrics: checks each batch, then counts it.

    Args:
        probabilities: Scores are probabilities in [0, 1]. False means logits.
        class_dim: Dimension of the classes in multi-class scores, 1 or −1. None means that the shapes tell;
            where a batch's do not, the dimension of earlier batches is taken.

    Raises:
        UsageError: `class_dim` is neither None, 1 nor −1.
    """

    higher_is_better: ClassVar[bool] = True
    kinds: ClassVar[frozenset[PredictionKind]] = _ANY
    # Kind of the predictions and number of classes in earlier batches.
    _what: tuple[PredictionKind, int] | None
    # Class dimension in earlier batches.
    _found_dim: ClassDim | None

    def __init__(self, *, probabilities: bool = False, class_dim: ClassDim | None = None) -> None:
        if class_dim not in (None, 1, -1):
            raise UsageError(f"class_dim = {class_dim!r} is not allowed: choose 1, -1 or None")
        self.probabilities, self.class_dim = probabilities, class_dim
        self.reset()

    def update(self, scores: Tensor, target: Tensor) -> None:
        """Count a batch.

        Args:
            scores: Scores of a module, in a shape of the table of `offbeat.metrics.kinds`.
            target: Targets; those of −100 are ignored.

        Raises:
            UsageError: The shapes, dtypes or values fit no kind of prediction of this metric, or are of
                another kind than those of earlier batches.
        """
        batch = labelled(scores.detach(), target.detach(), self.class_dim or self._found_dim)
        if batch.kind not in self.kinds:
            names = " or ".join(sorted(self.kinds))
            raise UsageError(f"{type(self).__name__} of {batch.kind} predictions: it takes {names} ones")
        what = batch.kind, batch.classes
        if self._what not in (None, what):
            before = "{} predictions of {}".format(*self._what or ())
            raise UsageError(
                f"a batch of {batch.kind} predictions of {batch.classes} classes follows {before} classes: "
                "give all batches the same kind and number of classes"
            )
        if self.probabilities and bool(((batch.scores < 0) | (batch.scores > 1)).any()):
            raise UsageError(
                "scores outside [0, 1] with probabilities = True: give probabilities, or leave it out"
            )
        self._what = what
        if batch.scores.ndim > 2:
            self._found_dim = batch.class_dim
        self._count(batch)

    def reset(self) -> None:
        """Forget all batches."""
        self._what = None
        self._found_dim = None

    @abstractmethod
    def _count(self, batch: LabelledScores) -> None:
        """Count the targets of a batch, which has been checked."""


class Accuracy(ClassificationMetric):
    """Accuracy: (targets predicted right) / (targets), of all samples, positions and labels.

    Multi-label: the share of labels that are right; `ExactMatch` is that of samples. Same as scikit-learn's
    `accuracy_score` of the flattened targets. NaN without a target.

    Args:
        probabilities: Scores are probabilities in [0, 1]. False means logits.
        class_dim: Dimension of the classes in multi-class scores. None means that the shapes tell.
    """

    def compute(self) -> float:
        """The accuracy, in [0, 1]."""
        return self._right / self._total if self._total else NAN

    def reset(self) -> None:
        """Forget all batches."""
        super().reset()
        self._right = self._total = 0

    def _count(self, batch: LabelledScores) -> None:
        self._right += int((batch.predicted(self.probabilities) == batch.target).sum())
        self._total += int(batch.counted.sum())


class ExactMatch(ClassificationMetric):
    """Exact match ratio of multi-label predictions: (samples with all labels right) / (samples).

    Ignored labels count as right; a sample whose labels are all ignored does not count. Same as
    scikit-learn's `accuracy_score` of label indicators. NaN without a sample.

    Args:
        probabilities: Scores are probabilities in [0, 1]. False means logits.
    """

    kinds = frozenset({PredictionKind.MULTILABEL})

    def __init__(self, *, probabilities: bool = False) -> None:
        super().__init__(probabilities=probabilities)

    def compute(self) -> float:
        """The ratio, in [0, 1]."""
        return self._right / self._total if self._total else NAN

    def reset(self) -> None:
        """Forget all batches."""
        super().reset()
        self._right = self._total = 0

    def _count(self, batch: LabelledScores) -> None:
        right = (batch.predicted(self.probabilities) == batch.target) | ~batch.counted
        samples = batch.counted.any(1)
        self._right += int((right.all(1) & samples).sum())
        self._total += int(samples.sum())


class CountingMetric(ClassificationMetric):
    """Base of the metrics that follow from the counts of each class (binary: both) or label."""

    def reset(self) -> None:
        """Forget all batches."""
        super().reset()
        self._counts = torch.zeros(4, 1, dtype=torch.int64)  # true positives, predicted, actual, all

    def _count(self, batch: LabelledScores) -> None:
        counted, predicted = batch.counted, batch.predicted(self.probabilities)
        if batch.kind is PredictionKind.MULTILABEL:
            p, t = (predicted == 1) & counted, batch.target == 1
            counts = torch.stack([v.sum(0) for v in (p & t, p, t, counted)])
        else:
            p, t = predicted[counted], batch.target[counted]
            hits = [v.bincount(minlength=batch.classes) for v in (p[p == t], p, t)]
            counts = torch.stack([*hits, torch.full_like(hits[0], len(t))])
        self._counts = self._counts + counts.cpu()

    @property
    def _kind(self) -> PredictionKind | None:
        return self._what[0] if self._what else None


class BalancedAccuracy(CountingMetric):
    """Balanced accuracy: the mean over classes of the recall TP_k / (TP_k + FN_k).

    Classes without a target do not count. Multi-label: the mean over labels of their binary balanced
    accuracy. NaN without a target. Brodersen et al. 2010; same as scikit-learn's `balanced_accuracy_score`.

    Args:
        probabilities: Scores are probabilities in [0, 1]. False means logits.
        class_dim: Dimension of the classes in multi-class scores. None means that the shapes tell.
    """

    def compute(self) -> float:
        """The balanced accuracy, in [0, 1]."""
        hits, predicted, actual, total = self._counts.double()
        if self._kind is not PredictionKind.MULTILABEL:
            return _mean(hits / actual)
        rejected = total - predicted - actual + hits
        both = torch.stack([hits / actual, rejected / (total - actual)])
        return _mean(both.nanmean(0))


class F1(CountingMetric):
    """F1, macro: the mean over classes or labels of 2 TP_k / (2 TP_k + FP_k + FN_k).

    Binary: over both classes, so that one logit and two scores give the same number; that of the positive
    class alone is `Dice`. A class or label that is neither target nor predicted does not count; NaN if none
    does. Same as scikit-learn's `f1_score(average="macro", zero_division=nan)`.

    Args:
        probabilities: Scores are probabilities in [0, 1]. False means logits.
        class_dim: Dimension of the classes in multi-class scores. None means that the shapes tell.
    """

    def compute(self) -> float:
        """The F1, in [0, 1]."""
        return _mean(_overlap(self._counts))


class Dice(CountingMetric):
    """Dice coefficient 2 TP / (2 TP + FP + FN), of all samples and positions together.

    Binary: of the positive class. Multi-class and multi-label: the mean over classes or labels; one that is
    neither target nor predicted does not count. NaN if none does. The mean of each image's coefficient is
    another number. Dice 1945; the positive class's F1.

    Args:
        probabilities: Scores are probabilities in [0, 1]. False means logits.
        class_dim: Dimension of the classes in multi-class scores. None means that the shapes tell.
        include_background: Class 0 counts in multi-class predictions.
    """

    def __init__(
        self,
        *,
        probabilities: bool = False,
        class_dim: ClassDim | None = None,
        include_background: bool = True,
    ) -> None:
        super().__init__(probabilities=probabilities, class_dim=class_dim)
        self.include_background = include_background

    def compute(self) -> float:
        """The coefficient, in [0, 1]."""
        skipped = self._kind is PredictionKind.BINARY or (
            self._kind is PredictionKind.MULTICLASS and not self.include_background
        )
        return _mean(_overlap(self._counts)[int(skipped) :])


def _overlap(counts: Tensor) -> Tensor:
    """2 TP / (2 TP + FP + FN) of each class or label, float64; NaN where it is undefined."""
    values = counts.double()
    return 2 * values[0] / (values[1] + values[2])


def _mean(values: Tensor) -> float:
    """Mean of the values that are defined; NaN if none is."""
    return float(values.nanmean())
