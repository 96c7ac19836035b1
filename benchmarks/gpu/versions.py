"""New versions of long models on a device: what the server computes, beside the same sums by hand."""

from collections.abc import Callable

import torch
from torch import Tensor

import offbeat as ob
from offbeat.core.algorithm import Algorithm
from offbeat.core.commands import Aggregate
from offbeat.core.global_model import GlobalModel
from offbeat.core.guard import Guard
from offbeat.core.layout import Layout
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model
from offbeat.core.schedule import Task

ALGORITHMS: dict[str, tuple[Algorithm, int]] = {
    "FedBuff of 10": (ob.fedbuff(10, steps=1), 10),
    "FedAsync": (ob.fedasync(steps=1), 1),
}


def ours(algorithm: Algorithm, updates: int, size: int, device: str) -> Callable[[], None]:
    """Updates arrive, pass the guard, and become a version."""
    layout = Layout.flat(size)
    first = Model(layout, torch.ones(size, device=device), torch.zeros(0, dtype=torch.int64, device=device))
    model = GlobalModel(algorithm, first)
    model.set_guard(Guard(), updates)
    delta = torch.full((size,), 1e-3, device=device)
    result = LocalResult(delta, first.integers, {"loss": 1.0}, lr=0.1)

    def run() -> None:
        version, tasks = model.version, tuple(range(updates))
        for task in tasks:
            model.dispatch(task)
        for task in tasks:
            assert model.admit(task, task, 1, result) is None
            model.arrive(Task(task, task, version, 1, 0.0, 0, 10, 1 / updates, task, updates), result)
        model.aggregate(Aggregate(tasks, version=version + 1, clients=tasks))
        assert not model.skipped, model.skipped
        model.good = None

    return run


def bare(updates: int, size: int, device: str) -> Callable[[], None]:
    """w + Σ c Δ_i, by hand."""
    state = [torch.ones(size, device=device)]
    delta = torch.full((size,), 1e-3, device=device)

    def run() -> None:
        step: Tensor = delta * (1 / updates)
        for _ in range(updates - 1):
            step.add_(delta, alpha=1 / updates)
        state[0] = step.add_(state[0])

    return run
