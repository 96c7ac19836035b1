"""An evaluation's metrics, all at once: give them a batch, compute them. Errors name the metric."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Real

import numpy as np
from torch import Tensor, nn

from offbeat.core.errors import UsageError
from offbeat.metrics.metric import StreamingMetric


def update_metrics(metrics: Mapping[str, StreamingMetric], scores: Tensor, target: Tensor) -> None:
    """Give a batch to each metric.

    A metric that is a module, as those of torchmetrics are, is moved to the device of the scores.

    Args:
        metrics: Metrics by name.
        scores: Output of the module, [N, ...].
        target: Targets [N, ...].

    Raises:
        UsageError: A metric does not take the batch; names it.
    """
    for name, metric in metrics.items():
        with _naming(name):
            if isinstance(metric, nn.Module):
                metric.to(scores.device)
            metric.update(scores, target)


def compute_metrics(metrics: Mapping[str, StreamingMetric]) -> dict[str, float]:
    """Compute each metric.

    Args:
        metrics: Metrics by name.

    Returns:
        Numbers by name; NaN where a metric is undefined.

    Raises:
        UsageError: A metric fails or is no number; names it.
    """
    values = dict[str, float]()
    for name, metric in metrics.items():
        with _naming(name):
            value = metric.compute()
        values[name] = _number(name, value)
    return values


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Raise an error of a metric as a `UsageError` that names the metric."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f'metric "{name}": {error}') from error
    except Exception as error:
        lines = str(error).strip().splitlines() or ["no message"]
        raise UsageError(f'metric "{name}" fails: {type(error).__name__}: {lines[0]}') from error


def _number(name: str, value: object) -> float:
    """The value as a float. Raises `UsageError` for anything but one real number."""
    single = value
    if isinstance(value, Tensor) and value.numel() == 1:
        single = value.detach().item()
    elif isinstance(value, np.ndarray) and value.size == 1:
        single = value.item()
    if isinstance(single, Real):
        try:
            return float(single)
        except OverflowError:
            pass
    if isinstance(value, Tensor | np.ndarray):
        shown = f"{type(value).__name__} {list(value.shape)}"
    else:
        text = repr(value)
        shown = text if len(text) <= 60 else f"{text[:57]}..."
    raise UsageError(f'metric "{name}" is {shown}: it must be one number, or a tensor with one element')
