"""The contract between a driver and a learner: tasks, inputs, results."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar, runtime_checkable

import torch
from msgspec import Struct, field
from torch import Tensor

from offbeat.core.buffers import own_buffers
from offbeat.core.errors import UsageError
from offbeat.core.events import ClientId, Metrics, TaskId, Version
from offbeat.core.layout import Layout
from offbeat.core.model import Model, Tensors
from offbeat.core.objective import Objective

_L = TypeVar("_L")


class LocalTask(Struct, frozen=True, gc=False):
    """A task as a learner trains it, without models and state: small enough to send anywhere.

    Attributes:
        task: Number of the task.
        client: The client that trains.
        base: Version of the model to train from.
        steps: Local steps, at least 1.
        seed: The run's seed.
        lr_factor: Factor of the learning rate.
        fresh: The merge in mid-task. None means none.
    """

    task: TaskId
    client: ClientId
    base: Version
    steps: int
    seed: int
    lr_factor: float = 1.0
    fresh: "MergePoint | None" = None


class MergePoint(Struct, frozen=True, gc=False):
    """A merge of a fresh model in mid-task.

    Attributes:
        after: Local steps before the merge.
        version: Version of the model.
        clock: Age of the model in the run, for its weight (FedASMU's g).
    """

    after: int
    version: Version
    clock: int


class TaskInputs(Struct, frozen=True, gc=False):
    """Inputs of a task besides its base: the client's own state, and the fresh model if there is one."""

    state: Tensors = field(default_factory=dict)
    fresh: Model | None = None


class LocalResult(Struct, frozen=True, gc=False):
    """Result of a local training.

    Aggregators hold these tensors in buffers and windows, so a learner must not write to them afterwards.

    Attributes:
        delta: Δ = w_i − w_o over the flat values, float32 [values], on the device of the base.
        integers: Integer buffers, int64 [integers], on the device of the base.
        metrics: The client's metrics, such as "loss".
        lr: Learning rate of the training.
        shared: Change for the vector that travels with the model, float32 [shared]. None means no change.
        state: The client's new state, which stays with the client.
        norms: The norms of its parts, as `core.guard.norms_of` gives them, where these have been computed.
    """

    delta: Tensor
    integers: Tensor
    metrics: Metrics = field(default_factory=dict)
    lr: float = 0.0
    shared: Tensor | None = None
    state: Tensors = field(default_factory=dict)
    norms: Mapping[str, float] | None = None


NO_INPUTS = TaskInputs()

DAMAGED = LocalResult(torch.zeros(0), torch.zeros(0, dtype=torch.int64))
"""In place of a recorded update whose stored bytes are damaged: its task is aggregated without it."""


class TaskControl(Protocol):
    """Control of a task in training, for decisions after its start. The learner calls its methods.

    Either may raise to end the training without a result.
    """

    def stops(self, steps: int) -> bool:
        """Whether the task ends after `steps` local steps, of more; False at 0."""

    def fresh(self, steps: int) -> tuple[MergePoint, Model] | None:
        """The model to merge after `steps` local steps; None means none. May wait for it."""


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
        """Number of the client's samples of each class; None means that there are no classes."""

    def initial(self, seed: int) -> Model:
        """The initial global model; drawn from `seed`, unless the learner has a fixed one."""

    def train(
        self, base: Model, task: LocalTask, objective: Objective, inputs: TaskInputs = NO_INPUTS
    ) -> LocalResult:
        """Train one task; the result depends on the arguments alone, in any process.

        Args:
            base: Model w_o to train from.
            task: The task.
            objective: The local objective.
            inputs: The client's state, and the fresh model of `task.fresh`.
        """

    def evaluate(self, model: Model) -> Metrics:
        """Evaluate a global model on the test set: metrics by name, such as "loss" and "accuracy" in [0, 1].

        NaN means that a metric is undefined. A learner may have an attribute `higher_is_better`, a mapping
        that says whether more is better of the metrics whose names do not tell.
        """


def metric_directions(learner: Learner) -> Mapping[str, bool]:
    """Whether more is better of a learner's metrics, by name, as far as the learner declares it."""
    return dict(getattr(learner, "higher_is_better", {}))


PERSONAL = "personal."
"""Start of the names, in a client's state, of the model's tensors that stay at the client."""


def check_learner(learner: object) -> None:
    """Raises `UsageError` for what is neither None nor has what a run needs of a learner."""
    needed = ("clients", "samples", "steps_per_epoch", "initial", "train", "evaluate")
    missing = [name for name in needed if not hasattr(learner, name)]
    if learner is not None and missing:
        raise UsageError(
            f"learner = {learner!r:.60} is not allowed, as it has no {missing[0]}: give TorchLearner(…), "
            "LoopLearner(…), another Learner, or None to train nothing"
        )


@runtime_checkable
class ClientEvaluator(Protocol):
    """A learner whose clients hold out samples, on which a model can be evaluated."""

    def held_out(self, client: ClientId) -> int:
        """Number of samples that a client holds out."""

    def evaluate_client(
        self, model: Model, client: ClientId, inputs: TaskInputs = NO_INPUTS
    ) -> tuple[int, Metrics]:
        """Evaluate a model on a client's held-out samples; changes nothing.

        Args:
            model: A global model.
            client: The client.
            inputs: The client's own tensors of the model, as `evaluation_inputs` takes them from its state.

        Returns:
            Number of samples, and the metrics by name; 0 and none where the client holds out nothing.
        """


@runtime_checkable
class TableLearner(Protocol):
    """A learner whose data can be tables, with names of columns by which those of several parties match."""

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the columns of its tables, "x", "y" or an input, in their order."""

    def with_columns(self, columns: Mapping[str, tuple[str, ...]]) -> Self:
        """This learner, with the columns of its data in another order, which are found by their names.

        Raises `UsageError` where its data have other columns.
        """


def columns_of(learner: object) -> Mapping[str, tuple[str, ...]]:
    """Names of the columns of a learner's tables; empty where they have none."""
    return learner.columns if isinstance(learner, TableLearner) else {}


def in_order(learner: _L, columns: Mapping[str, tuple[str, ...]]) -> _L:
    """A learner with its columns in another order, as `TableLearner.with_columns`; any other one as it is."""
    return learner.with_columns(columns) if columns and isinstance(learner, TableLearner) else learner


def evaluation_inputs(state: Tensors) -> TaskInputs:
    """The part of a client's state with which a model is evaluated: personal tensors, buffers that stay."""
    return TaskInputs({n: tensor for n, tensor in state.items() if n.startswith((PERSONAL, "buffers."))})


def own_tensors(state: Tensors, layout: Layout) -> Tensors:
    """A client's own tensors of a model by name: those that are personal, and buffers that are not sent.

    A tensor with several names in the module is there under each.
    """
    personal = {n.removeprefix(PERSONAL): t for n, t in state.items() if n.startswith(PERSONAL)}
    return layout.with_aliases(personal | own_buffers(state, layout))


@dataclass(frozen=True)
class NoTraining:
    """A learner without training, to study schedules or to measure the overhead of a driver.

    Every update is the zero vector.

    Attributes:
        clients: Number of clients.
        parameters: Number of parameters of the model.
        samples_per_client: Number of training samples n_i of each client.
        batches: Local steps of one epoch.
    """

    clients: int
    parameters: int = 0
    samples_per_client: int = 1
    batches: int = 1

    def samples(self, client: ClientId) -> int:
        """Number of training samples n_i, the same for every client."""
        return self.samples_per_client

    def steps_per_epoch(self, client: ClientId) -> int:
        """Local steps of one epoch, the same for every client."""
        return self.batches

    def label_counts(self, client: ClientId) -> list[int] | None:
        """Return None, as there are no classes."""
        return None

    def initial(self, seed: int) -> Model:
        """A model of zeros."""
        return Model.empty(Layout.flat(self.parameters))

    def train(
        self,
        base: Model,
        task: LocalTask,
        objective: Objective,
        inputs: TaskInputs = NO_INPUTS,
        watch: TaskControl | None = None,
    ) -> LocalResult:
        """Return a zero update."""
        for step in range(task.steps) if watch is not None else ():
            if watch is None or watch.stops(step):
                break
            watch.fresh(step)
        # Without parameters the values are a tensor without elements.
        delta = torch.zeros_like(base.values) if self.parameters else base.values
        return LocalResult(delta, base.integers)

    def evaluate(self, model: Model) -> Metrics:
        """Return no metrics."""
        return {}

    @property
    def root_samples(self) -> int:
        """A sample of root data, for a learner that does not look at its data."""
        return 1

    def train_root(self, model: Model, version: Version, seed: int, steps: int) -> Tensor:
        """Return a zero update."""
        return torch.zeros_like(model.values)
