"""Evaluation of a module over batches: the mean loss, and metrics that are reduced over all of them."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from offbeat.core.errors import UsageError
from offbeat.core.events import Metrics
from offbeat.data.dataset import Batch, is_finite
from offbeat.local.criterion import Criterion, Scored
from offbeat.local.errors import unfit_batch, unlabelled
from offbeat.metrics import StreamingMetric, compute_metrics, default_metrics, make_metrics, update_metrics
from offbeat.metrics.registry import Wanted


def evaluate(
    module: nn.Module,
    criterion: Criterion,
    wanted: Wanted | None,
    batches: Iterable[tuple[int, Batch]],
    whose: str,
) -> Metrics:
    """Evaluate a module, which is in evaluation mode.

    Args:
        module: The module.
        criterion: Loss and scores of a batch.
        wanted: The metrics. None means those of the kind of task.
        batches: Batches on the module's device, each with its number of samples.
        whose: Whose batches they are, for messages.

    Returns:
        The mean "loss" over the samples, and the metrics by name.

    Raises:
        UsageError: The module cannot take a batch, there is nothing to compute a metric from, or one returns
            no number.
    """
    reduced = Reduced(wanted, criterion.probabilities)
    for samples, batch in batches:
        scored = _score(module, criterion, batch, whose)
        for name, value in scored.means.items():
            number = _number(name, value)
            if number != number and not is_finite(batch):
                raise unfit_batch(whose, module, "evaluated", batch, f"{name} is NaN, as values in it are")
            if number != number and name == "loss" and criterion.ignores_all(batch):
                raise unfit_batch(whose, module, "evaluated", batch, unlabelled("the batch"))
            reduced.mean(name, number, samples)
        if scored.scores is not None and scored.target is not None:
            reduced.update(scored.scores, scored.target)
        reduced.total += samples
    return reduced.compute()


class Reduced:
    """An evaluation in progress: sums of means, and metrics.

    None `wanted` means those of the kind of task, where `probabilities` says that scores are in [0, 1].
    """

    def __init__(self, wanted: Wanted | None, probabilities: bool = False) -> None:
        self._default, self._scored, self._probabilities = wanted is None, False, probabilities
        self._metrics: dict[str, StreamingMetric] | None = None if wanted is None else make_metrics(wanted)
        self._sums: dict[str, float] = {}
        self.total = 0

    def mean(self, name: str, value: float, samples: int) -> None:
        """Add a mean over `samples` samples."""
        self._sums[name] = self._sums.get(name, 0.0) + value * samples

    def update(self, scores: Tensor, target: Tensor) -> None:
        """Take scores and targets of a batch."""
        self._scored = True
        if self._metrics is None:
            self._metrics = default_metrics(scores, target, probabilities=self._probabilities)
        try:
            update_metrics(self._metrics, scores, target)
        except UsageError:
            if not self._default:
                raise
            # A later target can show that the task is no classification.
            self._metrics = {}

    def compute(self) -> Metrics:
        """The numbers by name."""
        metrics = self._metrics or {}
        if metrics and not self._scored:
            raise UsageError(
                f"metrics {', '.join(metrics)}: there are no scores and targets to compute them from; give "
                "evaluate(module, batch), which returns the pair (scores, target)"
            )
        return {name: value / self.total for name, value in self._sums.items()} | compute_metrics(metrics)


def _score(module: nn.Module, criterion: Criterion, batch: Batch, whose: str) -> Scored:
    try:
        return criterion.score(module, batch)
    except Exception as error:
        raise unfit_batch(whose, module, "evaluated", batch, error) from error


def _number(name: str, value: Any) -> float:
    """A mean as a number. Raises `UsageError` for anything else."""
    if (isinstance(value, Tensor) and value.numel() == 1) or isinstance(value, int | float):
        return float(value)
    told = (
        f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    )
    raise UsageError(f"{name} of a batch is {told}: it must be one number, the mean over the batch")
