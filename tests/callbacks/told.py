"""Runs and evaluations as callbacks are told of them, made by hand."""

from collections.abc import Iterable
from math import nan
from pathlib import Path
from typing import Any

from torch import nn

from offbeat.callbacks.callback import Callback, LiveRun
from offbeat.core.model import Model
from offbeat.runs.schema import Metric

MODEL = Model.of(nn.Linear(2, 1))

RECIPE = {
    "title": "A trial", "clients": 4, "training": {"lr": 0.1, "decay": None, "optimizer": "sgd"},
    "world": {"seconds_per_step": [1.0, 2.5], "network": {"latency": 0.25}}, "algorithms": {"fedbuff": {}},
    "until": {"versions": 4}, "seed": 3,
}  # fmt: skip


def evaluation(seq: int, **more: float) -> Metric:
    """The evaluation of version 2 · seq; AUROC is undefined in the first."""
    accuracy = (0.25, 0.875, 0.5, 0.75)[seq]
    data = {"auroc": nan if seq == 0 else 0.5 + accuracy / 4, "clients.accuracy": accuracy / 2}
    return Metric(
        seq, 1.5 * seq, 2 * seq, 3 * seq, 100 * seq, 200 * seq, 1.0 - accuracy, accuracy,
        data | {"clients.accuracy.p10": accuracy / 4} | more,
    )  # fmt: skip


EVALUATIONS = tuple(map(evaluation, range(4)))


def live_run(directory: Path | None, past: Iterable[Metric] = (), **changed: Any) -> LiveRun:
    """A run of `RECIPE` that starts, or that is resumed with the evaluations before its last checkpoint."""
    options = {
        "label": "fedbuff", "seed": 3, "algorithm": {"name": "fedbuff", "size": 2, "staleness": {"a": 0.5}},
        "clients": 4, "recipe": RECIPE, "directory": directory,
        "versions": {"offbeat": "0.1.0", "torch": "2.13.0", "python": "3.12.1"},
        "higher_is_better": {"auroc": True}, "past": tuple(past), "request_stop": print,
    }  # fmt: skip
    return LiveRun(**{**options, **changed})


def tell(callback: Callback, run: LiveRun, evaluations: Iterable[Metric] = EVALUATIONS) -> LiveRun:
    """Start a run and make evaluations; as it is when its process is killed."""
    callback.on_start(run)
    for metrics in evaluations:
        callback.on_evaluation(run, metrics, MODEL)
    return run


def tell_all(callback: Callback, run: LiveRun, evaluations: Iterable[Metric] = EVALUATIONS) -> LiveRun:
    """A whole run that ends as it should."""
    tell(callback, run, evaluations)
    callback.on_end(run, "versions", MODEL)
    return run
