"""Evaluation of a module over batches: the mean loss, and metrics that are reduced over all of them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.core.errors import UsageError
from offbeat.core.events import Metrics
from offbeat.data.dataset import Batch, is_finite
from offbeat.local.criterion import Criterion, Scored
from offbeat.local.errors import unfit_batch, unlabelled
from offbeat.local.host_copies import to_host
from offbeat.local.logged_once import LoggedOnce
from offbeat.metrics import StreamingMetric, compute_metrics, default_metrics, make_metrics, update_metrics
from offbeat.metrics.metrics_by_name import Wanted, unclear_classes

HELD = 64 << 20
"""Bytes of scores and targets that wait on a device until they are copied together."""

Read = Callable[[], Batch]
"""Reads a batch, on the module's device; again after the evaluation, where a message is about it."""


def evaluate(
    module: nn.Module,
    criterion: Criterion,
    wanted: Wanted | None,
    batches: Iterable[tuple[int, Read]],
    whose: str,
    warnings: LoggedOnce,
) -> Metrics:
    """Evaluate a module, which is in evaluation mode.

    On a device nothing waits for a batch: what they gave is copied at the end, together. Only scores of more
    than 64 MiB are copied in between, or counted where they are.

    Args:
        module: The module.
        criterion: Loss and scores of a batch.
        wanted: The metrics. None means those of the kind of task.
        batches: Reads batches, each with its number of samples.
        whose: Whose batches they are, for messages.
        warnings: Takes what is to be known of the metrics.

    Returns:
        The mean "loss" over the samples, and the metrics by name.

    Raises:
        UsageError: The module cannot take a batch, there is nothing to compute a metric from, or one returns
            no number.
    """
    reduced = Reduced(wanted, criterion.probabilities, warnings)
    held, nbytes = list[_Held](), 0

    def settle() -> None:
        for evaluation in _read(held):
            _reduce(reduced, module, criterion, evaluation, whose)
        held.clear()

    for samples, read in batches:
        evaluation = _Held(samples, read, _score(module, criterion, read(), whose))
        if evaluation.here and not held:
            _reduce(reduced, module, criterion, evaluation, whose)
            continue
        held.append(evaluation)
        nbytes += evaluation.nbytes
        if nbytes >= HELD:
            settle()
            nbytes = 0
    settle()
    return reduced.compute()


@dataclass
class _Held:
    """The evaluation of a batch, before it is counted.

    Attributes:
        samples: Number of samples of the batch.
        read: Reads the batch again.
        scored: Its means, scores and targets.
    """

    samples: int
    read: Read
    scored: Scored

    @property
    def tensors(self) -> list[Tensor]:
        """Means, scores and targets, as far as they are tensors."""
        scored = self.scored
        return [t for t in (*scored.means.values(), scored.scores, scored.target) if isinstance(t, Tensor)]

    @property
    def nbytes(self) -> int:
        """Bytes of these."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def here(self) -> bool:
        """Whether all of it is on the CPU, where nothing waits."""
        return all(tensor.device.type == "cpu" for tensor in self.tensors)


def _read(held: list[_Held]) -> list[_Held]:
    """Evaluations of batches on the CPU; large scores and their targets stay on their device."""
    large = {id(evaluation) for evaluation in held if evaluation.nbytes >= HELD}
    copied = iter(
        to_host([t for evaluation in held for t in _copied(evaluation, large=id(evaluation) in large)])
    )

    def here(value: Any) -> Any:
        return next(copied) if isinstance(value, Tensor) else value

    on_cpu = []
    for evaluation in held:
        scored = evaluation.scored
        means = {name: here(value) for name, value in scored.means.items()}
        scores, target = scored.scores, scored.target
        if id(evaluation) not in large:
            scores, target = here(scores), here(target)
        on_cpu.append(_Held(evaluation.samples, evaluation.read, Scored(means, scores, target)))
    return on_cpu


def _copied(own: _Held, *, large: bool) -> list[Tensor]:
    means = [value for value in own.scored.means.values() if isinstance(value, Tensor)]
    return means if large else own.tensors


def _reduce(
    reduced: "Reduced", module: nn.Module, criterion: Criterion, evaluation: _Held, whose: str
) -> None:
    """Count the evaluation of a batch."""
    scored = evaluation.scored
    for name, value in scored.means.items():
        number = _number(name, value)
        if number != number:
            batch = evaluation.read()
            if not is_finite(batch):
                raise unfit_batch(whose, module, "evaluated", batch, f"{name} is NaN, as values in it are")
            if name == "loss" and criterion.ignores_all(batch):
                raise unfit_batch(whose, module, "evaluated", batch, unlabelled("the batch"))
        reduced.mean(name, number, evaluation.samples)
    if scored.scores is not None and scored.target is not None:
        reduced.update(scored.scores, scored.target)
    reduced.total += evaluation.samples


class Reduced:
    """An evaluation in progress: sums of means, and metrics.

    None `wanted` means those of the kind of task, where `probabilities` says that scores are in [0, 1].
    """

    def __init__(self, wanted: Wanted | None, probabilities: bool, warnings: LoggedOnce) -> None:
        self._warnings = warnings
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
            if not self._metrics and (why := unclear_classes(scores, target)) is not None:
                self._warnings.warn(f"evaluations have the loss alone: {why}")
        try:
            update_metrics(self._metrics, scores, target)
        except UsageError as error:
            if not self._default:
                raise
            # A later target can show that the task is no classification.
            self._metrics = {}
            self._warnings.warn(
                f"evaluations have the loss alone, and leave out {error}; renumber such targets, or choose "
                "metrics"
            )

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
    except torch.OutOfMemoryError:
        raise
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
