"""A small problem with real updates, on which whole runs take milliseconds."""

from dataclasses import dataclass
from typing import Any

import torch

import offbeat as ob
from offbeat.core.layout import Layout
from offbeat.core.learner import NO_INPUTS, LocalResult, LocalTask, TaskInputs
from offbeat.core.model import Model
from offbeat.core.objective import LocalRun, Objective

SPEEDS = [1.0, 1.7, 2.3, 4.1]


@dataclass(frozen=True)
class Pull:
    """Each step moves client c toward its target, adjusted by the objective; nothing is random."""

    sizes: tuple[int, ...] = (3, 1, 2, 6)

    @property
    def clients(self) -> int:
        return len(self.sizes)

    def samples(self, client: int) -> int:
        return self.sizes[client]

    def steps_per_epoch(self, client: int) -> int:
        return self.sizes[client]

    def label_counts(self, client: int) -> None:
        return None

    def initial(self, seed: int) -> Model:
        return Model(Layout.flat(3), torch.tensor([1.0, -1.0, 0.5]), torch.zeros(0, dtype=torch.int64))

    def train(
        self, base: Model, task: LocalTask, objective: Objective, inputs: TaskInputs = NO_INPUTS
    ) -> LocalResult:
        target = torch.tensor([task.client + 1.0, 2.0 - task.client, task.client**2.0])
        w = base.values.clone()
        for step in range(task.steps):
            w.grad = w - target * (1 + 0.1 * step)
            objective.adjust(LocalRun([w], [base.values]))
            w = w.detach() - 0.2 * w.grad
        return LocalResult(w - base.values, base.integers, lr=0.2)

    def evaluate(self, model: Model) -> dict[str, float]:
        return {}


def play(algorithm: ob.Algorithm, speeds: list[float] = SPEEDS, **options: Any) -> ob.Run:
    options = {"until": ob.Until(versions=25), "learner": Pull(), **options}
    return ob.simulate(algorithm, world=ob.World(seconds_per_step=speeds), **options)


def same_model(one: ob.Run, other: ob.Run) -> bool:
    return torch.equal(one.model.values, other.model.values)


def replay(run: ob.Run, algorithm: ob.Algorithm, step: Any) -> torch.Tensor:
    """Go through a journal with one arrival a version: w := step(w, base, Δ, staleness)."""
    learner = Pull()
    model = learner.initial(0)
    versions = [model]
    task_of = {e["task"]: e for e in run.entries("train")}
    for entry in run.entries("arrived"):
        train = task_of[entry["task"]]
        base = versions[train["base"]]
        task = LocalTask(entry["task"], entry["client"], train["base"], train["steps"], 0)
        delta = learner.train(base, task, algorithm.objective).delta
        staleness = len(versions) - 1 - train["base"]
        values = step(versions[-1].values, base.values, delta, staleness)
        versions.append(Model(model.layout, values, model.integers))
    return versions[-1].values
