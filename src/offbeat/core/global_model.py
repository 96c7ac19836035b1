"""The global model and the tensors around it: base versions in flight, held updates, memories.

The server decides the fate of each task; this class applies it to the tensors. Versions are immutable and
shared by all tasks that start from them, and a version is freed with the last task that needs it: memory
grows with the versions in flight, not with the clients.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch
from msgspec.structs import replace
from torch import Tensor

from offbeat.core.aggregator import Update
from offbeat.core.algorithm import Algorithm, AwareStep, StepContext, check_layout
from offbeat.core.buffer_domains import domains_of
from offbeat.core.buffers import UNSENT
from offbeat.core.commands import Aggregate
from offbeat.core.errors import AlgorithmError, RunError
from offbeat.core.events import UPDATES_GONE, ClientId, Released, RolledBack, Skipped, TaskId, Version
from offbeat.core.good_version import GoodVersion
from offbeat.core.guard import Guard, UpdateGuard, all_finite, norms_of
from offbeat.core.learner import DAMAGED, LocalResult
from offbeat.core.model import Model, Tensors
from offbeat.core.number_types import NumberType
from offbeat.core.release import EachUpdate, Release
from offbeat.core.root import ROOT_UPDATE, TrainRoot
from offbeat.core.schedule import Task


class GlobalModel:
    """The tensors of one run; `model` is the current version.

    Args:
        algorithm: The algorithm, whose aggregator and server steps make the versions.
        model: The initial model.
        version: Its version.
        train_root: Makes the server's own update. None where the aggregator needs none.
        release: How versions follow from their updates. None means from each update by itself.
        down: Type of number in which versions are sent to clients.

    Attributes:
        release: As given.
        down: As given.
        guard: Checks the updates before they arrive, and the versions; None means nothing does.
        domains: The domains of the model's buffers.
        condemned: The held updates that have turned out to be absurd, which are left out of their versions.
        skipped: The aggregations skipped, which are to be applied as events right after their own.
        good: The version to which a rollback goes: the initial model, until a version has been evaluated
            well or the guard's warm-up is over. None means that there is none. A driver with a directory
            may leave its content there.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        model: Model,
        version: Version = 0,
        train_root: TrainRoot | None = None,
        release: Release | None = None,
        down: NumberType = "float32",
    ) -> None:
        check_layout(algorithm, model.layout)
        self._algorithm, self._train_root = algorithm, train_root
        self._root_training = algorithm.aggregator.root_training
        self.release: Release = release or EachUpdate()
        self.model = model.sharing(algorithm.objective.shared_vectors)
        self.version, self.down = version, down
        # What clients are sent of the current version, once it was rounded.
        self._rounded: Model | None = None
        # The version from which each task trains that is in training, or may be brought back.
        self.bases: dict[TaskId, tuple[Version, Model]] = {}
        # The version that a task in training was sent in mid-task.
        self.fresh: dict[TaskId, tuple[Version, Model]] = {}
        # The held updates: arrived, neither aggregated nor dropped yet.
        self.updates: dict[TaskId, Update] = {}
        # The aggregator's memory.
        self.memory: Tensors = {}
        self.step_memories: tuple[Tensors, ...] = tuple({} for _ in algorithm.server_steps)
        self.guard: UpdateGuard | None = None
        self.domains = domains_of(model.layout, algorithm.codec is not None, model.values.device)
        self.condemned: list[TaskId] = []
        self.skipped: list[Skipped] = []
        self.good: GoodVersion | None = None

    def set_guard(self, options: Guard, clients: int) -> None:
        """Have a guard check updates and versions, from the initial model on.

        Args:
            options: Its options.
            clients: Number of clients of the run.
        """
        self.guard = UpdateGuard(options, clients, self.model)
        self.good = GoodVersion.in_memory(self.version, self.model)

    def admit(self, client: ClientId, task: TaskId, steps: int, result: LocalResult) -> str | None:
        """Check an update that has arrived; held ones that turn out to be absurd with it are dropped.

        Args:
            client: The client.
            task: Its task, in training.
            steps: Local steps that it has done.
            result: The update.

        Returns:
            Why the update is refused; None means that it is not.
        """
        return self.release.judge(self._check, client, task, steps, result)

    def _check(self, client: ClientId, task: TaskId, steps: int, result: LocalResult) -> str | None:
        guard = self.guard
        if (reason := self.domains.check(self.bases[task][1], steps, result)) is not None:
            if guard is not None:
                guard.count_refused(client)
            return reason
        if guard is None:
            return None
        reason = guard.check(client, steps, result, self.model, self.version, task, self.updates.keys())
        for absurd in guard.take_condemned():
            if self.updates.pop(absurd, None) is not None:
                self.condemned.append(absurd)
        return reason

    def measured(self, result: LocalResult) -> LocalResult:
        """An update with its norms, if the guard may ask for them when a step has been written over it."""
        if self.update_guard is None or result.norms is not None:
            return result
        return replace(result, norms=norms_of(result, self.model.layout))

    @property
    def update_guard(self) -> UpdateGuard | None:
        """The guard where it checks single updates; None where nothing does."""
        return self.release.guard(self.guard)

    @property
    def poisoned(self) -> RolledBack | None:
        """The rollback that the guard demands, if it does: versions are made of absurd updates."""
        reason = None if self.guard is None else self.guard.poisoned
        if reason is None or self.good is None or self.version <= self.good.version:
            return None
        return RolledBack(self.good.version, f"version {self.version} is poisoned: {reason}")

    @property
    def sent(self) -> Model:
        """The current version as clients are sent it."""
        if self.down == "float32":
            return self.model
        if self._rounded is None:
            self._rounded = self.as_sent(self.model)
        return self._rounded

    def as_sent(self, model: Model) -> Model:
        """A version as clients are sent it."""
        return model.rounded(self.down)

    def dispatch(self, task: TaskId) -> Model:
        """Start a task from the current version, which is held until the task ends."""
        sent = self.sent
        self.bases[task] = (self.version, sent)
        return sent

    def send(self, task: TaskId) -> Model:
        """Send a task the current version to merge, which is held until its update is used."""
        sent = self.sent
        self.fresh[task] = (self.version, sent)
        return sent

    def arrive(self, task: Task, result: LocalResult) -> None:
        """Hold a task's update, unless it is `DAMAGED`: then its task is aggregated without it."""
        _, base = self.bases.pop(task.id)
        _, fresh = self.fresh.pop(task.id, (0, None))
        if result is DAMAGED:
            return
        self.updates[task.id] = Update(
            task, base, result.delta, result.integers, result.metrics, result.lr, result.shared, fresh,
            norms=result.norms,
        )  # fmt: skip

    def versions(self) -> dict[Version, Model]:
        """Versions that tasks in training or held updates started from or were sent."""
        held = {u.task.base: u.base for u in self.updates.values()}
        merged = {
            u.task.fresh: u.fresh for u in self.updates.values() if u.task.fresh is not None and u.fresh
        }
        return {**dict(self.bases.values()), **dict(self.fresh.values()), **held, **merged}

    @property
    def nbytes(self) -> int:
        """Bytes of the aggregator's and the server steps' memories, the cache and the shared vector."""
        memories = (self.memory, *self.step_memories, {"shared": self.model.shared})
        in_memories = sum(tensor.nbytes for memory in memories for tensor in memory.values())
        return in_memories + self.release.cache.nbytes

    def lose(self, task: TaskId) -> None:
        """Free the tensors of a task that is lost for good."""
        self.bases.pop(task, None)
        self.fresh.pop(task, None)

    def drop(self, task: TaskId) -> None:
        """Drop a held update, unless a rollback has done so, or it was damaged."""
        self.updates.pop(task, None)

    def aggregate(self, command: Aggregate) -> None:
        """Make the next version: w := w + step, where the guard lets it pass and it can be sent.

        Else the last version stays, and `skipped` has the reason.

        Raises `AlgorithmError` for a step that is none.
        """
        updates = [self.updates.pop(task) for task in command.tasks if task in self.updates]
        before, self.version = self.version, command.version
        if len(updates) < self.release.fewest:
            self._skip(command, UPDATES_GONE)
            return
        if command.note:
            updates = [replace(u, note=command.note) for u in updates]
        self._renew_root_update(before)
        memories = (self.memory, *self.step_memories)
        saved = [_Saved(memory) for memory in memories] if self.guard is not None else []
        model, reason = self._next(updates, command)
        if saved and reason is None and not all_finite(tensor for old in saved for tensor in old.changed()):
            reason = "the memory of its aggregator or server steps is not finite"
        try:
            if reason is None:
                # A version that cannot be sent is none: the last one that could stays.
                self._rounded = None if self.down == "float32" else self.as_sent(model)
                self.model = model
                self.release.cache.commit()
                return
        except RunError as error:
            reason = str(error)
        self.release.cache.revert()
        for old in saved:
            old.restore()
        self.skipped.append(Skipped(command.version, reason))

    def finish_release(self, event: Released) -> Aggregate:
        """Make the version whose sum is known now, unless its release has failed; returns its command."""
        command = self.release.resume(event)
        for task in command.tasks if event.reason else event.left_out:
            self.updates.pop(task, None)
        if event.reason:
            self.version = command.version
            self._skip(command, event.reason)
        else:
            self.aggregate(command)
        return command

    def _skip(self, command: Aggregate, reason: str) -> None:
        self.release.skip(command)
        self.skipped.append(Skipped(command.version, reason))

    def _next(self, updates: Sequence[Update], command: Aggregate) -> tuple[Model, str | None]:
        """The next version, and why it must not be published, if so."""
        layout, values, policy = self.model.layout, self.model.values, self._algorithm.buffers
        set_apart = policy != "follow" and layout.parameters < layout.values
        # The step may be written over an update, so this comes first.
        buffers = _mean_buffers(updates, self.model) if set_apart and policy == "mean" else 0.0
        step = self._step(updates, command)
        reason, name = None, "step"
        if self.step_memories and command.server_step:
            # An absurd step may spoil the memories of server steps, which then give a usual one.
            if self.guard is not None:
                _check_step(step, self.model.values, self._algorithm)
                reason = self.guard.check_step(step, self.model, command.version, updates)
                name = "transformed step"
            about = StepContext([u.task for u in updates], command.version, command.note)
            for part, memory in zip(self._algorithm.server_steps, self.step_memories, strict=True):
                if isinstance(part, AwareStep):
                    step = part.transform_aware(step, memory, about)
                else:
                    step = part.transform(step, memory)
        _check_step(step, values, self._algorithm)
        if set_apart:
            # Server steps must not change buffers, so these are set afterwards: to the mean, or not at all.
            step[layout.parameters :] = buffers
        integers, shared = self.model.integers, self.model.shared
        if layout.integers and policy not in UNSENT:
            integers = max(reversed(updates), key=lambda u: u.task.arrival).integers
        if layout.shared:
            shared = _mean_over_all_clients(updates, shared)
        if self.guard is not None:
            reason = reason or self.guard.check_step(step, self.model, command.version, updates, name)
        self.domains.repair(step.add_(values), values)
        model = Model(layout, step, integers, shared)
        if self.guard is not None:
            reason = reason or self.guard.check_version(model)
        return model, reason

    def _step(self, updates: Sequence[Update], command: Aggregate) -> Tensor:
        """The aggregator's step."""
        return self.release.step(updates, self._algorithm.aggregator, self.model, self.memory, command)

    def roll_back(self, event: RolledBack, version: Version) -> None:
        """Make a new version with the content of the `good` one; the parts' memories begin anew."""
        assert self.good is not None
        assert self.good.version == event.to
        # A version that tasks train from is one object: arithmetic skips what starts at the model itself.
        sent = self.versions() if self.down == "float32" else {}
        alive = {**sent, self.version: self.model}.get(event.to)
        self.model, self.version, self._rounded = alive or self.good.load(), version, None
        for memory in (self.memory, *self.step_memories):
            memory.clear()
        self.release.cache.clear()
        self.updates = {task: u for task, u in self.updates.items() if u.task.newest <= event.to}
        if self.guard is not None:
            self.guard.roll_back(event.to)

    def _renew_root_update(self, version: Version) -> None:
        """Train on the server's own data, at every version that is a multiple of the aggregator's `every`."""
        wanted = self._root_training
        if wanted is not None and (version % wanted.every == 0 or ROOT_UPDATE not in self.memory):
            if self._train_root is None:
                raise AlgorithmError(f"{self._algorithm.name} needs the server's training on root data")
            self.memory[ROOT_UPDATE] = self._train_root(self.model, version)


class _Saved:
    """A part's memory as it was: its tensors by name, each with the number of writes to it."""

    def __init__(self, memory: Tensors) -> None:
        self._memory = memory
        self._tensors = {name: (tensor, tensor._version) for name, tensor in memory.items()}

    def changed(self) -> Iterator[Tensor]:
        """The floating tensors that are new or were written to."""
        for name, tensor in self._memory.items():
            saved, writes = self._tensors.get(name, (None, 0))
            if (saved is not tensor or writes != tensor._version) and tensor.is_floating_point():
                yield tensor

    def restore(self) -> None:
        """Restore the memory; empty it where a tensor in it was written to, so that it begins anew."""
        self._memory.clear()
        if all(tensor._version == writes for tensor, writes in self._tensors.values()):
            self._memory.update({name: tensor for name, (tensor, _) in self._tensors.items()})


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
