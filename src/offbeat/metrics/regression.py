"""Errors of regression: mean absolute error, root mean squared error."""

from abc import ABC, abstractmethod
from math import sqrt
from typing import ClassVar

from torch import Tensor

from offbeat.metrics.classification import NAN
from offbeat.metrics.kinds import paired


class RegressionMetric(ABC):
    """Base of the regression metrics: a sum over all numbers, in float64."""

    higher_is_better: ClassVar[bool] = False

    def __init__(self) -> None:
        self.reset()

    def update(self, scores: Tensor, target: Tensor) -> None:
        """Add a batch.

        Args:
            scores: Predicted numbers, floating point, [N, ...] or [N, 1, ...].
            target: Numbers [N, ...] or [N, 1, ...].

        Raises:
            UsageError: The shapes differ, or the scores are not floating-point numbers.
        """
        predicted, wanted = paired(scores, target)
        self._sum += float(self._error(predicted - wanted).sum())
        self._total += predicted.numel()

    def reset(self) -> None:
        """Forget all batches."""
        self._sum, self._total = 0.0, 0

    @abstractmethod
    def _error(self, difference: Tensor) -> Tensor:
        """The error of each number, of its difference from the target."""


class MeanAbsoluteError(RegressionMetric):
    """Mean absolute error (1/M) Σ |score − target| over all M numbers; lower is better.

    NaN without a number. Same as scikit-learn's `mean_absolute_error`.
    """

    def compute(self) -> float:
        """The error, at least 0."""
        return self._sum / self._total if self._total else NAN

    def _error(self, difference: Tensor) -> Tensor:
        return difference.abs()


class RootMeanSquaredError(RegressionMetric):
    """Root mean squared error √((1/M) Σ (score − target)²) over all M numbers; lower is better.

    NaN without a number. Targets [N, D] have one root, of all N · D numbers; scikit-learn's
    `root_mean_squared_error` is the mean of D roots.
    """

    def compute(self) -> float:
        """The error, at least 0."""
        return sqrt(self._sum / self._total) if self._total else NAN

    def _error(self, difference: Tensor) -> Tensor:
        return difference.square()
