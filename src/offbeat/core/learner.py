"""What a driver needs from whoever trains: the contract between core and the PyTorch learner."""

from dataclasses import dataclass
from typing import Protocol

import torch
from msgspec import Struct, field
from torch import Tensor

from offbeat.core.events import ClientId, Metrics, TaskId, Version
from offbeat.core.model import Layout, Model, Tensors
from offbeat.core.objective import Objective


class LocalTask(Struct, frozen=True, gc=False):
    """What determines a local training, besides models and state: small enough to send anywhere.

    `lr_factor` multiplies the learning rate. `fresh` says which model is merged in mid-task, and when.
    """

    task: TaskId
    client: ClientId
    base: Version
    steps: int
    seed: int
    lr_factor: float = 1.0
    fresh: "MergePoint | None" = None


class MergePoint(Struct, frozen=True, gc=False):
    """After so many local steps, merge this version; `clock` is a number for its weight."""

    after: int
    version: Version
    clock: int


class TaskInputs(Struct, frozen=True, gc=False):
    """What a task needs besides its base: the client's own state, and the fresh model if there is one."""

    state: Tensors = field(default_factory=dict)
    fresh: Model | None = None


class LocalResult(Struct, frozen=True, gc=False):
    """What a training gives: Δ = w_i − w_o over the flat values, integer buffers, and metrics.

    `lr` is the learning rate it was done with, `shared` the change for the vector that travels with the
    model. `state` is the client's new state, which stays with the client. Updates wait in buffers and stay in
    windows as they are, so a learner must not write to these tensors afterwards.
    """

    delta: Tensor
    integers: Tensor
    metrics: Metrics = field(default_factory=dict)
    lr: float = 0.0
    shared: Tensor | None = None
    state: Tensors = field(default_factory=dict)


NO_INPUTS = TaskInputs()


class TaskControl(Protocol):
    """What a training is told while it goes on, where that is not known before. Called by the one who trains.

    Either may raise to end the training without a result.
    """

    def stops(self, steps: int) -> bool:
        """With `steps` local steps done, and more to come: is the task to end here? False at 0."""

    def fresh(self, steps: int) -> tuple[MergePoint, Model] | None:
        """The model to merge after `steps` local steps, if there is one now; may wait for it."""


class Learner(Protocol):
    """A population of clients with data, a model and a way to train it."""

    @property
    def clients(self) -> int:
        """Number of clients; they are numbered 0 … clients − 1."""

    def samples(self, client: ClientId) -> int:
        """Number of training samples n_i of a client."""

    def steps_per_epoch(self, client: ClientId) -> int:
        """⌈n_i / batch size⌉."""

    def label_counts(self, client: ClientId) -> list[int] | None:
        """Number of the client's samples of each class, where there are classes."""

    def initial(self, seed: int) -> Model:
        """The first global model."""

    def train(
        self, base: Model, task: LocalTask, objective: Objective, inputs: TaskInputs = NO_INPUTS
    ) -> LocalResult:
        """Train from `base`: a function of its arguments alone, whatever process runs it."""

    def evaluate(self, model: Model) -> Metrics:
        """Measure a global model on the test set: "accuracy" in [0, 1], "loss"."""


@dataclass(frozen=True)
class NoTraining:
    """A learner that trains nothing: to study schedules, or to measure what the machinery costs.

    Every update is the zero vector of `parameters` elements.
    """

    clients: int
    parameters: int = 0
    samples_per_client: int = 1
    batches: int = 1

    def samples(self, client: ClientId) -> int:
        """The same number for every client."""
        return self.samples_per_client

    def steps_per_epoch(self, client: ClientId) -> int:
        """The same number for every client."""
        return self.batches

    def label_counts(self, client: ClientId) -> list[int] | None:
        """There are no classes."""
        return None

    def initial(self, seed: int) -> Model:
        """Zeros."""
        return Model.empty(Layout.flat(self.parameters))

    def train(
        self,
        base: Model,
        task: LocalTask,
        objective: Objective,
        inputs: TaskInputs = NO_INPUTS,
        watch: TaskControl | None = None,
    ) -> LocalResult:
        """A zero update."""
        for step in range(task.steps) if watch is not None else ():
            if watch is None or watch.stops(step):
                break
            watch.fresh(step)
        delta = torch.zeros_like(base.values) if self.parameters else base.values  # one without elements
        return LocalResult(delta, base.integers)

    def evaluate(self, model: Model) -> Metrics:
        """Nothing to measure."""
        return {}
