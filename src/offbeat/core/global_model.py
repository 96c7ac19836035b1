"""The global model and the tensors around it: base versions in flight, held updates, memories.

The server decides the fate of each task; this class applies it to the tensors. Versions are immutable and
shared by all tasks that start from them, and a version is freed with the last task that needs it: memory
grows with the versions in flight, not with the clients.
"""

from collections.abc import Iterable

import torch
from msgspec.structs import replace
from torch import Tensor

from offbeat.core.algorithm import Algorithm, Task, Update, check_layout
from offbeat.core.buffers import UNSENT
from offbeat.core.commands import Aggregate
from offbeat.core.errors import AlgorithmError
from offbeat.core.events import TaskId, Version
from offbeat.core.guard import UpdateGuard
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model, Tensors
from offbeat.core.root import ROOT_UPDATE, TrainRoot


class GlobalModel:
    """The tensors of one run; `model` is the current version.

    Args:
        algorithm: The algorithm, whose aggregator and server steps make the versions.
        model: The initial model.
        version: Its version.
        train_root: Makes the server's own update. None where the aggregator needs none.

    Attributes:
        guard: Checks the updates before they arrive; None means nothing does.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        model: Model,
        version: Version = 0,
        train_root: TrainRoot | None = None,
    ) -> None:
        check_layout(algorithm, model.layout)
        self._algorithm, self._train_root = algorithm, train_root
        self.model = model.sharing(algorithm.objective.shared_vectors)
        self.version = version
        self.bases: dict[TaskId, tuple[Version, Model]] = {}  # of the tasks in training
        self.fresh: dict[TaskId, tuple[Version, Model]] = {}  # sent to them in mid-task
        self.updates: dict[TaskId, Update] = {}  # held
        self.memory: Tensors = {}  # of the aggregator
        self.step_memories: tuple[Tensors, ...] = tuple({} for _ in algorithm.server_steps)
        self.guard: UpdateGuard | None = None

    def dispatch(self, task: TaskId) -> Model:
        """Start a task from the current version, which is held until the task ends."""
        self.bases[task] = (self.version, self.model)
        return self.model

    def send(self, task: TaskId) -> Model:
        """Send a task the current version to merge, which is held until its update is used."""
        self.fresh[task] = (self.version, self.model)
        return self.model

    def arrive(self, task: Task, result: LocalResult) -> None:
        """Hold a task's update."""
        _, base = self.bases.pop(task.id)
        _, fresh = self.fresh.pop(task.id, (0, None))
        self.updates[task.id] = Update(
            task, base, result.delta, result.integers, result.metrics, result.lr, result.shared, fresh
        )

    def versions(self) -> dict[Version, Model]:
        """Versions that tasks in training or held updates started from or were sent."""
        held = {u.task.base: u.base for u in self.updates.values()}
        merged = {
            u.task.fresh: u.fresh for u in self.updates.values() if u.task.fresh is not None and u.fresh
        }
        return {**dict(self.bases.values()), **dict(self.fresh.values()), **held, **merged}

    @property
    def nbytes(self) -> int:
        """Bytes of the memories of the aggregator and the server steps, and of the shared vector."""
        memories = (self.memory, *self.step_memories, {"shared": self.model.shared})
        return sum(tensor.nbytes for memory in memories for tensor in memory.values())

    def lose(self, task: TaskId) -> None:
        """Free the tensors of a task that is lost for good."""
        self.bases.pop(task, None)
        self.fresh.pop(task, None)

    def drop(self, task: TaskId) -> None:
        """Drop a held update."""
        del self.updates[task]

    def aggregate(self, command: Aggregate) -> None:
        """Make the next version: w := w + step. Raises `AlgorithmError` for a step that is none."""
        updates = [self.updates.pop(task) for task in command.tasks]
        if command.note:
            updates = [replace(u, note=command.note) for u in updates]
        self._renew_root_update()
        step = self._algorithm.aggregator.step(updates, self.model, self.memory)
        if self.step_memories and command.server_step:
            for part, memory in zip(self._algorithm.server_steps, self.step_memories, strict=True):
                step = part.transform(step, memory)
        layout, values, policy = self.model.layout, self.model.values, self._algorithm.buffers
        _check_step(step, values, self._algorithm)
        if policy != "follow" and layout.parameters < layout.values:
            # after the server steps: exactly the mean, or exactly no change
            step[layout.parameters :] = _mean_buffers(updates, self.model) if policy == "mean" else 0.0
        integers, shared = self.model.integers, self.model.shared
        if layout.integers and policy not in UNSENT:
            integers = max(reversed(updates), key=lambda u: u.task.arrival).integers
        if layout.shared:
            shared = _mean_over_all_clients(updates, shared)
        self.model = Model(layout, step.add_(values), integers, shared)
        self.version = command.version

    def _renew_root_update(self) -> None:
        """Train on the server's own data, at every version that is a multiple of what the aggregator says."""
        wanted = self._algorithm.aggregator.root_training
        if wanted is not None and (self.version % wanted.every == 0 or ROOT_UPDATE not in self.memory):
            if self._train_root is None:
                raise AlgorithmError(f"{self._algorithm.name} needs the server's training on root data")
            self.memory[ROOT_UPDATE] = self._train_root(self.model, self.version)


def _check_step(step: object, values: Tensor, algorithm: Algorithm) -> None:
    """Raises `AlgorithmError` unless a step is a tensor like the model's values, and not these values."""
    if step is values:
        found = "the model itself, whose values must stay: give a fresh tensor"
    elif not isinstance(step, Tensor) or step.dtype is not values.dtype or not step.is_same_size(values):
        found = f"{_described(step)}: give {_described(values)}, the change of the model's flat values"
    else:
        return
    raise AlgorithmError(f"the step of {type(algorithm.aggregator).__name__} and the server steps is {found}")


def _described(step: object) -> str:
    if not isinstance(step, Tensor):
        return f"a {type(step).__name__}"
    return f"a tensor of {step.dtype} of shape {tuple(step.shape)}"


def _mean_over_all_clients(updates: Iterable[Update], shared: torch.Tensor) -> torch.Tensor:
    """Shared vector as the mean over all N clients of their reports: + Σ Δ / N."""
    mean = shared.clone()
    for update in updates:
        if update.shared is not None:
            mean.add_(update.shared, alpha=1 / update.task.population)
    return mean


def _mean_buffers(updates: Iterable[Update], model: Model) -> torch.Tensor:
    """Step that takes the floating buffers to their unweighted mean over the clients."""
    start = model.layout.parameters
    ends = [u.base.values[start:] + u.delta[start:] for u in updates]
    return torch.stack(ends).mean(0) - model.values[start:]
