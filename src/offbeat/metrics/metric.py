"""The contract of a metric, and a metric made of a user's function."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from offbeat.core.errors import UsageError

MetricFunction = Callable[[Tensor, Tensor], Any]
"""f(scores, target) → a number."""


@runtime_checkable
class StreamingMetric(Protocol):
    """A metric that takes the test set batch by batch.

    The objects of torchmetrics have this form. Where a metric has the attribute `higher_is_better` (True or
    False), `offbeat.metrics.higher_is_better` reads it.
    """

    def update(self, scores: Tensor, target: Tensor, /) -> None:
        """Take a batch.

        Args:
            scores: Output of the module, [N, ...].
            target: Targets [N, ...].

        Raises:
            UsageError: The metric is not defined for such scores and targets.
        """

    def compute(self) -> float | Tensor:
        """The metric of all batches since the last reset: a number, or a tensor with one element.

        NaN means undefined, such as the AUROC of targets that are all of one class.
        """

    def reset(self) -> None:
        """Forget all batches."""


class FunctionMetric:
    """Metric f(scores, target) of all samples.

    The function is called once, with the batches concatenated, so that the metric is exact for any function.
    All scores are kept until then, on the CPU.

    Args:
        function: f(scores, target) → a number. Scores [N, ...] and targets [N, ...] are on the CPU, in the
            order and with the dtypes of the batches. Its attribute `higher_is_better`, if there is one, is
            the metric's.
    """

    def __init__(self, function: MetricFunction) -> None:
        self.function = function
        self.higher_is_better: bool | None = getattr(function, "higher_is_better", None)
        self.reset()

    def update(self, scores: Tensor, target: Tensor) -> None:
        """Keep a copy of a batch, scores [N, ...] and target [N, ...], on the CPU."""
        self._scores.append(scores.detach().to("cpu", copy=True))
        self._target.append(target.detach().to("cpu", copy=True))

    def compute(self) -> Any:
        """The function's value for all batches; NaN without a batch.

        Raises:
            UsageError: The batches differ in more than the number of samples.
        """
        if not self._scores:
            return float("nan")
        return self.function(_concatenated(self._scores, "scores"), _concatenated(self._target, "targets"))

    def reset(self) -> None:
        """Forget all batches."""
        self._scores: list[Tensor] = []
        self._target: list[Tensor] = []


def _concatenated(batches: list[Tensor], what: str) -> Tensor:
    shapes = {tuple(batch.shape[1:]) for batch in batches}
    if len(shapes) > 1 or not batches[0].ndim:
        shown = " and ".join(str(list(shape)) for shape in sorted(shapes))
        raise UsageError(
            f"{what} with samples of shape {shown} cannot be concatenated for a function: give an object "
            "with update, compute and reset, or make all samples of one shape"
        )
    return torch.cat(batches)
