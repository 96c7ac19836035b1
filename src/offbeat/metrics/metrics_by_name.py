"""The built-in metrics by name, and metrics made from a user's names, functions and objects."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from types import MappingProxyType
from typing import Any

from torch import Tensor

from offbeat.core import metric_names
from offbeat.core.errors import UsageError
from offbeat.core.validation import did_you_mean
from offbeat.metrics.auroc import AUROC
from offbeat.metrics.classification import F1, Accuracy, BalancedAccuracy, Dice, ExactMatch
from offbeat.metrics.kinds import PredictionKind, is_binary, kind_of
from offbeat.metrics.metric import FunctionMetric, MetricFunction, StreamingMetric
from offbeat.metrics.perplexity import Perplexity
from offbeat.metrics.regression import MeanAbsoluteError, RootMeanSquaredError

METRICS: Mapping[str, Callable[[], StreamingMetric]] = MappingProxyType(
    {
        "accuracy": Accuracy,
        "balanced_accuracy": BalancedAccuracy,
        "f1": F1,
        "auroc": AUROC,
        "dice": Dice,
        "exact_match": ExactMatch,
        "perplexity": Perplexity,
        "mae": MeanAbsoluteError,
        "rmse": RootMeanSquaredError,
    }
)
"""The built-in metrics by name; each makes one with the default options."""

Wanted = Sequence[str] | Mapping[str, str | MetricFunction | StreamingMetric]
"""Names of built-in metrics; or such names, functions and metric objects by a name of the user's."""

# Every evaluation has this metric.
LOSS = "loss"


def make_metrics(wanted: Wanted) -> dict[str, StreamingMetric]:
    """Make fresh metrics for one evaluation.

    Args:
        wanted: Names of `METRICS`; or a mapping from a name to such a name, to a function f(scores, target) →
            number of all samples, or to a metric object, such as one of torchmetrics. Objects are copied and
            reset, so that no two evaluations share one.

    Returns:
        The metrics by name, in the order of `wanted`.

    Raises:
        UsageError: A name is unknown, given twice or "loss"; a value is none of these, or cannot be copied.
    """
    if isinstance(wanted, str):
        raise UsageError(f"metrics = {wanted!r} is not allowed: give a list, such as [{wanted!r}]")
    if not isinstance(wanted, Iterable):
        raise UsageError(
            f"metrics = {_shown(wanted)} is not allowed: give functions and objects by name, such as "
            '{"my_metric": ...}'
        )
    if not isinstance(wanted, Mapping):
        names = list(wanted)
        for name in names:
            if not isinstance(name, str):
                raise UsageError(
                    f"metrics has {_shown(name)}, which has no name: give functions and objects by name, "
                    'such as {"my_metric": ...}'
                )
            if names.count(name) > 1:
                raise UsageError(f'metrics has "{name}" twice: give each name once')
        wanted = {name: name for name in names}
    return {_checked_name(name): _make(name, value) for name, value in wanted.items()}


def default_metrics(
    scores: Tensor, target: Tensor, *, probabilities: bool = False
) -> dict[str, StreamingMetric]:
    """Metrics that are reported beside the loss if the user chooses none.

    Args:
        scores: Scores of a module for some samples, at least one, [N, ...].
        target: Targets of these samples, or of the whole test set. A target that is neither 0 nor 1
            distinguishes a regression from binary and multi-label predictions.
        probabilities: Scores are probabilities in [0, 1]. False means logits; scores do not tell.

    Returns:
        The accuracy for every kind of classification. Nothing for a regression, or for scores and targets
        that fit no kind of prediction or several.
    """
    if not isinstance(scores, Tensor) or not isinstance(target, Tensor) or 0 in (scores.ndim, target.ndim):
        return {}
    try:
        kind = kind_of(scores[:1], target[:1])
    except UsageError:
        return {}
    if kind is PredictionKind.REGRESSION or (kind is not PredictionKind.MULTICLASS and not is_binary(target)):
        return {}
    return {"accuracy": Accuracy(probabilities=probabilities)}


def unclear_classes(scores: Any, target: Any) -> str | None:
    """Why scores of labels have no default metric; None where they have one, or are no classification."""
    if not isinstance(scores, Tensor) or not isinstance(target, Tensor) or target.is_floating_point():
        return None
    try:
        kind_of(scores[:1], target[:1])
    except UsageError as error:
        return str(error)
    return None


def higher_is_better(name: str, metric: object = None) -> bool:
    """Whether a larger value of a metric is better.

    Args:
        name: Name of the metric. If the name ends in "loss", "error", "perplexity", "mae", "mse" or "rmse",
            lower is better.
        metric: The metric, whose attribute `higher_is_better` decides if it is True or False. None means that
            the name decides.

    Returns:
        True if a larger value is better, or if nothing is known of the metric.
    """
    known = getattr(metric, "higher_is_better", None)
    return metric_names.higher_is_better(name) if known is None else bool(known)


def _make(name: str, value: Any) -> StreamingMetric:
    if isinstance(value, str):
        if value not in METRICS:
            raise UsageError(f'metric "{value}" is unknown{did_you_mean(value, METRICS)}')
        return METRICS[value]()
    if isinstance(value, type):
        raise UsageError(
            f'metric "{name}" is the class {value.__name__}: give an object, such as {value.__name__}()'
        )
    if isinstance(value, StreamingMetric):
        try:
            metric = deepcopy(value)
        except Exception as error:
            raise UsageError(
                f'metric "{name}" cannot be copied ({error}): make it copyable by deepcopy'
            ) from error
        metric.reset()
        return metric
    if callable(value):
        return FunctionMetric(value)
    raise UsageError(
        f'metric "{name}" is {_shown(value)}: give the name of a metric, a function f(scores, target), or an '
        "object with update, compute and reset"
    )


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise UsageError(
            f"metrics has the name {_shown(name)}: names are strings with at least one character"
        )
    metric_names.check_metric_names([name])
    if name == LOSS or name in metric_names.COLUMNS:
        what = "the loss" if name == LOSS else "a column of this name"
        raise UsageError(
            f'metric "{name}": every evaluation has {what}; leave it out, or choose another name'
        )
    return name


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
