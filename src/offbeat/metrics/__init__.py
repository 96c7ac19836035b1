"""Metrics of a model on the test set: built-in ones by name, functions, objects such as torchmetrics has.

    >>> import torch
    >>> from offbeat.metrics import compute_metrics, make_metrics, update_metrics
    >>> metrics = make_metrics(["accuracy", "auroc"])
    >>> update_metrics(metrics, torch.tensor([-1.0, 2.0, 0.5]), torch.tensor([0, 1, 0]))
    >>> update_metrics(metrics, torch.tensor([3.0]), torch.tensor([1]))
    >>> compute_metrics(metrics)
    {'accuracy': 0.75, 'auroc': 1.0}

`offbeat.metrics.kinds` has the shapes of scores and targets that are allowed.
"""

from offbeat.lazy import listing
from offbeat.metrics.auroc import AUROC
from offbeat.metrics.classification import F1, Accuracy, BalancedAccuracy, Dice, ExactMatch
from offbeat.metrics.clients import aggregate_clients
from offbeat.metrics.collection import compute_metrics, update_metrics
from offbeat.metrics.kinds import IGNORE_INDEX, PredictionKind, kind_of
from offbeat.metrics.metric import FunctionMetric, StreamingMetric
from offbeat.metrics.metrics_by_name import METRICS, default_metrics, higher_is_better, make_metrics
from offbeat.metrics.perplexity import Perplexity
from offbeat.metrics.regression import MeanAbsoluteError, RootMeanSquaredError

__all__ = [
    "AUROC",
    "F1",
    "IGNORE_INDEX",
    "METRICS",
    "Accuracy",
    "BalancedAccuracy",
    "Dice",
    "ExactMatch",
    "FunctionMetric",
    "MeanAbsoluteError",
    "Perplexity",
    "PredictionKind",
    "RootMeanSquaredError",
    "StreamingMetric",
    "aggregate_clients",
    "compute_metrics",
    "default_metrics",
    "higher_is_better",
    "kind_of",
    "make_metrics",
    "update_metrics",
]
__dir__ = listing(__name__)
