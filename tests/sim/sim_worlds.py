"""A small federation on scikit-learn's digits, shared by the simulator's tests and their subprocesses."""

import hashlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import offbeat as ob
from offbeat.core.learner import NO_INPUTS, LocalResult, LocalTask, TaskInputs
from offbeat.core.model import Model
from offbeat.core.objective import Objective
from offbeat.sim.executors.base import Executor
from offbeat.testing import CALM, HARD
from tests.options import example

CLIENTS = 5
WORLDS = {"calm": CALM, "hard": HARD}
make = example


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))


def normed() -> nn.Module:
    """BatchNorm has floating and integer buffers; dropout draws inside the module."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.Dropout(0.3), nn.ReLU(), nn.Linear(12, 10)
    )


def digits(module: Callable[[], nn.Module] = mlp, samples: int = 300) -> ob.TorchLearner:
    """Unequal shares of a few digits; every batch has 20 samples."""
    source = ob.load("digits", samples=samples, test_samples=100, seed=0)
    shares = np.array_split(np.arange(samples), samples // 20)
    parts = [np.concatenate(shares[i::CLIENTS]) for i in range(CLIENTS - 1)]
    rest = np.setdiff1d(np.arange(samples), np.concatenate(parts))
    data = ob.federate(source, None, [*parts, rest])
    return ob.TorchLearner(module, data, ob.Training(lr=0.2, batch_size=20))


class Wrapped:
    """A learner that does something of its own before each task is trained; subclasses say what."""

    def __init__(self, learner: ob.TorchLearner) -> None:
        self.learner = learner

    @property
    def clients(self) -> int:
        return self.learner.clients

    def samples(self, client: int) -> int:
        return self.learner.samples(client)

    def steps_per_epoch(self, client: int) -> int:
        return self.learner.steps_per_epoch(client)

    def label_counts(self, client: int) -> list[int] | None:
        return self.learner.label_counts(client)

    def initial(self, seed: int) -> Model:
        return self.learner.initial(seed)

    def before(self, task: LocalTask) -> None:
        raise NotImplementedError

    def train(
        self, base: Model, task: LocalTask, objective: Objective, inputs: TaskInputs = NO_INPUTS
    ) -> LocalResult:
        self.before(task)
        return self.learner.train(base, task, objective, inputs)

    def evaluate(self, model: Model) -> Any:
        return self.learner.evaluate(model)


def outcome(run: ob.Run) -> dict[str, Any]:
    """Everything that must not depend on how a run was computed."""
    return {
        "model": hashlib.sha256(run.model.values.numpy().tobytes()).hexdigest(),
        "integers": run.model.integers.tolist(),
        "journal": run.journal,
        "metrics": run.metrics,
        "summary": run.summary,
        "stop": run.stop_reason,
    }


def on_disk(directory: Path) -> dict[str, Any]:
    """What a finished run's directory says, read without Offbeat."""
    database = sqlite3.connect(directory / "run.db")
    try:
        tables = {
            name: database.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall()
            for name in ("meta", "clients", "journal", "metrics", "checkpoints")
        }
    finally:
        database.close()
    tables["meta"] = [
        row for row in tables["meta"] if row[0] not in ("learner", "training", "data")
    ]  # a test's own learner has no name
    # The files of clients' states are numbered as they are written, which interruptions change.
    tables["checkpoints"] = [
        (*row, {**json.loads(data), "clients": sorted(json.loads(data)["clients"])})
        for *row, data in tables["checkpoints"]
    ]
    model = (directory / "model.safetensors").read_bytes()
    return {**tables, "model": hashlib.sha256(model).hexdigest()}


class Lent:
    """Workers that outlive a run: what a run leaves behind is cancelled, not waited for."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._given: set[int] = set()
        self.result, self.cancel, self.evaluate = pool.result, pool.cancel, pool.evaluate

    def submit(self, task: LocalTask, base: Any, due: float, inputs: Any) -> None:
        self._given.add(task.task)
        self._pool.submit(task, base, due, inputs)

    def close(self) -> None:
        for task in self._given:
            self._pool.cancel(task)
