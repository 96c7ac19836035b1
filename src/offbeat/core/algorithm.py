"""Algorithms: compositions of independent parts.

| part        | decides                                                                        |
|-------------|--------------------------------------------------------------------------------|
| schedule    | which client trains when, how long, and which arrivals are aggregated together |
| aggregator  | how these updates change the global model (with its staleness weight)          |
| server step | how that change is transformed before it is applied                            |
| objective   | which function a client minimises                                              |
| programme   | how long a client trains in one task (a field of the schedules that use it)    |

A schedule sees numbers only, never tensors; an aggregator sees tensors only, never time. So a journal can be
replayed without a model, and a model be trained ahead of the clock.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as shallow
from typing import Any, Protocol, runtime_checkable

import msgspec
import numpy as np
from msgspec.structs import replace as changed
from torch import Tensor

from offbeat.core.buffers import UNSENT, Buffers, wrap_buffers
from offbeat.core.codec import Codec
from offbeat.core.commands import Aggregate, Command
from offbeat.core.errors import UsageError
from offbeat.core.events import ClientId, Event, Metrics, TaskId, Version
from offbeat.core.features import DRIVERS, AlgorithmPart, Feature
from offbeat.core.fleet import Fleet
from offbeat.core.layout import Layout
from offbeat.core.model import Model, Tensors
from offbeat.core.objective import Objective
from offbeat.core.root import RootTraining
from offbeat.core.saved_state import from_plain, to_plain
from offbeat.core.streams import Purpose
from offbeat.core.wrapper import Wrapper


class Task(msgspec.Struct, gc=False):
    """One assignment of local training to one client; the server's record of it.

    `staleness`, `samples`, `share`, `arrival` and `population` are set when the update arrives.

    Attributes:
        id: Number of the task, from 0 in order of dispatch.
        client: The client that trains.
        base: Version it starts from.
        steps: Local steps: those assigned, and from the arrival on those done.
        started: Time of dispatch, in seconds of the run's clock.
        staleness: Versions published since `base`.
        samples: n_i, the client's number of training samples.
        share: p_i = n_i / Σ n over the clients present.
        arrival: Number of updates that arrived before it.
        population: Number of clients present.
        ask_after: Local steps after which the client requests a fresh model; 0 means never.
        fresh: Version sent in mid-task. None means none.
        recalled: Whether it has been recalled.
        hold: Whether the client holds its update until the server asks for it.
        ready: Whether it is done and held by its client.
    """

    id: TaskId
    client: ClientId
    base: Version
    steps: int
    started: float
    staleness: int = -1
    samples: int = 0
    share: float = 0.0
    arrival: int = -1
    population: int = 0
    ask_after: int = 0
    fresh: Version | None = None
    recalled: bool = False
    hold: bool = False
    ready: bool = False

    @property
    def newest(self) -> Version:
        """The newest version that it was sent."""
        return self.base if self.fresh is None else max(self.base, self.fresh)


class View(Protocol):
    """The server's state as a schedule sees it."""

    @property
    def now(self) -> float:
        """Time of the current event, in seconds of the run's clock."""

    @property
    def version(self) -> Version:
        """Number of the current global model; the initial one is 0."""

    @property
    def fleet(self) -> Fleet:
        """The clients present."""

    @property
    def running(self) -> int:
        """Number of tasks in training."""

    @property
    def tasks(self) -> Mapping[ClientId, Task]:
        """The tasks in training by client, oldest first."""

    @property
    def begun(self) -> bool:
        """Whether `Begin` has been fed."""

    def task(self, task: TaskId) -> Task:
        """A held task, or the one of the current event. Raises `AlgorithmError` for any other."""

    def sample_idle(self, count: int) -> list[ClientId]:
        """Draw up to `count` idle clients, uniformly without replacement; in order of their numbers."""

    def rng(self, purpose: Purpose) -> np.random.Generator:
        """The run's random stream for this purpose."""


class Schedule(AlgorithmPart, Protocol):
    """Decides which client trains when, and which updates are aggregated together.

    The schedule itself is a frozen dataclass of hyper-parameters; its state in a run is the plain data that
    `initial` returns and `on` changes.
    """

    @property
    def concurrency(self) -> int | None:
        """Most clients that train at the same time. None means all, which is the default."""
        return None

    @property
    def largest_aggregation(self) -> int | None:
        """Most updates that are aggregated together. None means unknown, which is the default."""
        return None

    @property
    def rule(self) -> int:
        """Number of the rule that it follows, from 1, the default; see `core.schedule_rule`."""
        return 1

    @property
    def resolution(self) -> float:
        """Relative difference up to which two times of a simulation are one instant.

        The default 0 means that only equal numbers are. Of an instant, arrivals are fed before timers.
        """
        return 0.0

    @property
    def snapshots(self) -> bool:
        """Whether a server may restore its state from plain data, without its events; by default not.

        Say so where `load(save(state))` goes on as `state` would: no two parts of the state are the same
        object, and nothing depends on the order in which a set is iterated over.
        """
        return False

    def initial(self) -> Any:
        """The state before the first event."""

    def save(self, state: Any) -> Any:
        """The state as plain data: numbers, texts, bytes, lists and mappings.

        The default takes dataclasses, structs and collections of these.

        Raises:
            TypeError: The state has something else in it.
        """
        return to_plain(state)

    def load(self, saved: Any) -> Any:
        """The state that was saved. The default makes the type that `initial` is annotated to return.

        Raises:
            ValueError: It does not fit the schedule.
        """
        return from_plain(saved, type(self))

    def on(self, event: Event, state: Any, view: View) -> Iterator[Command]:
        """React to one event.

        Args:
            event: The event.
            state: The schedule's state in this run, to be changed in place.
            view: The server's state.

        Yields:
            The commands in order; each takes effect before the next line of the schedule runs.
        """


class ScheduleWrapper(Wrapper, Schedule):
    """Base of schedules around another one; subclasses declare the field `inner`."""

    inner: Schedule

    @property
    def concurrency(self) -> int | None:
        """Concurrency of the schedule inside."""
        return self.inner.concurrency

    @property
    def largest_aggregation(self) -> int | None:
        """Largest aggregation of the schedule inside."""
        return self.inner.largest_aggregation

    @property
    def rule(self) -> int:
        """Rule of the schedule inside."""
        return self.inner.rule

    @property
    def resolution(self) -> float:
        """Resolution of the schedule inside."""
        return self.inner.resolution

    @property
    def snapshots(self) -> bool:
        """Whether the schedule inside can be restored from plain data."""
        return self.inner.snapshots

    def save(self, state: Any) -> Any:
        """Its own state as plain data, whose `inner` is that of the schedule inside."""
        return to_plain(shallow(state, inner=self.inner.save(state.inner)))

    def load(self, saved: Any) -> Any:
        """The state that was saved, of both schedules."""
        state = from_plain(saved, type(self))
        return shallow(state, inner=self.inner.load(state.inner))


@dataclass(frozen=True)
class NoteFallbacks(ScheduleWrapper):
    """A schedule whose aggregations of too few updates for the aggregator are marked in the journal.

    Attributes:
        inner: The schedule.
        least: Fewest updates of the aggregator's rule; fewer are aggregated by its fallback.
    """

    inner: Schedule
    least: int

    def initial(self) -> Any:
        """The state of the schedule inside."""
        return self.inner.initial()

    def save(self, state: Any) -> Any:
        """The state of the schedule inside."""
        return self.inner.save(state)

    def load(self, saved: Any) -> Any:
        """The state of the schedule inside."""
        return self.inner.load(saved)

    def on(self, event: Event, state: Any, view: View) -> Iterator[Command]:
        """The schedule's commands; `note` of an `Aggregate` of fewer than `least` has "fallback": least."""
        for command in self.inner.on(event, state, view):
            if type(command) is Aggregate and len(command.tasks) < self.least:
                command = changed(command, note={**command.note, "fallback": self.least})
            yield command


def unwrap_schedule(schedule: Schedule) -> Schedule:
    """Remove the marking of fallbacks from a schedule."""
    return schedule.inner if isinstance(schedule, NoteFallbacks) else schedule


class Update(msgspec.Struct, frozen=True, gc=False):
    """One arrived update, as an aggregator sees it. Never write to its tensors.

    Attributes:
        task: The task, with staleness and share.
        base: Model w_o it was trained from.
        delta: Δ_i = w_i − w_o over the flat values, float32 [values].
        integers: The client's integer buffers, int64 [integers].
        metrics: The client's metrics.
        lr: Learning rate of the training.
        shared: Change for the shared vector, float32 [shared]. None means no change.
        fresh: Model merged in mid-task. None means none.
        note: Note of the schedule on this aggregation.
        norms: The norms of its parts, as of `LocalResult`. None means that they have not been computed.
    """

    task: Task
    base: Model
    delta: Tensor
    integers: Tensor
    metrics: Metrics = msgspec.field(default_factory=dict)
    lr: float = 0.0
    shared: Tensor | None = None
    fresh: Model | None = None
    note: Mapping[str, Any] = msgspec.field(default_factory=dict)
    norms: Mapping[str, float] | None = None


class Aggregator(AlgorithmPart, Protocol):
    """Turns updates into a step of the global model, w := w + step."""

    @property
    def title(self) -> str:
        """Name in messages; by default that of the class."""
        return type(self).__name__

    @property
    def least(self) -> int:
        """Fewest updates for which the rule does more than its fallback, which fewer get; by default 1."""
        return 1

    @property
    def root_training(self) -> RootTraining | None:
        """Training of the server whose Δ_s is `ROOT_UPDATE` in the memory. None, the default, means none."""
        return None

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """Compute the step.

        Args:
            updates: The updates to aggregate, in the schedule's order.
            model: The current global model.
            memory: The aggregator's state in this run, empty at first: to be changed in place, best by
                tensors that replace those in it. One that is written to cannot be restored where the guard
                skips the aggregation; then the memory is emptied.

        Returns:
            The step over the flat values, float32 [values], in a fresh tensor that the caller may change.
        """

    def step_in_place(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """Compute the same step where no update is read any more: it may be written over the first one's Δ.

        By default it is `step`, whose tensor is one model of memory more.

        Args:
            updates: As of `step`.
            model: As of `step`.
            memory: As of `step`.

        Returns:
            The step, as of `step`; may be the first update's `delta`.
        """
        return self.step(updates, model, memory)


class FullWeight(msgspec.Struct, frozen=True):
    """Data of a client whose update has full weight; one that has more weighs no more.

    Attributes:
        samples: n̂, number of samples.
        share: p̂, share of the samples of all clients present.
    """

    samples: int
    share: float


class UpdateSum(msgspec.Struct, frozen=True):
    """A weighted sum of updates, with the weight, the task and the base of each.

    Attributes:
        total: Σ c_i f_i Δ_i over the flat values, float32 [values]; may be changed.
        weights: c_i.
        tasks: The tasks in the sum.
        bases: The model that each was trained from.
        note: Note of the schedule on this aggregation.
    """

    total: Tensor
    weights: Sequence[float]
    tasks: Sequence[Task]
    bases: Sequence[Model]
    note: Mapping[str, Any] = msgspec.field(default_factory=dict)


@runtime_checkable
class SumOnly(Aggregator, Protocol):
    """An aggregator that needs a weighted sum of the updates, and no update by itself.

    Of the updates of one aggregation it is given Σ c_i f_i Δ_i, where c_i is `sum_scale` times the
    importance, rounded to a few bits. With exact importances `from_sum` is `step`.
    """

    @property
    def apart(self) -> tuple[str, ...]:
        """Names in a note: updates with different values of them are not summed together. By default none."""
        return ()

    @property
    def equal_weights(self) -> bool:
        """Whether all importances are 1."""

    def factor(self, task: Task) -> float:
        """f_i, with which a client multiplies its update before it clips it; by default 1."""
        return 1.0

    def importances(self, tasks: Sequence[Task], full: FullWeight, note: Mapping[str, Any]) -> list[float]:
        """The importance of each update, in (0, 1], from numbers only.

        Args:
            tasks: The tasks of one aggregation, with staleness, samples and share.
            full: Data of a client of full weight.
            note: Note of the schedule on this aggregation.
        """

    def sum_scale(self, tasks: Sequence[Task], importances: Sequence[float], full: FullWeight) -> float:
        """The public factor of the sum.

        Args:
            tasks: The tasks that are summed.
            importances: Their importances, rounded.
            full: Data of a client of full weight.
        """

    def from_sum(self, summed: UpdateSum, model: Model, memory: Tensors) -> Tensor:
        """Compute the step from a sum.

        Args:
            summed: The sum, and what is known of its updates.
            model: The current global model.
            memory: As of `step`.

        Returns:
            The step, as of `step`; may be `summed.total`.
        """


class ServerStep(Protocol):
    """Transforms the aggregator's step before it is applied (momentum, FedOpt, clipping…)."""

    def transform(self, step: Tensor, memory: Tensors) -> Tensor:
        """Transform a step.

        Args:
            step: The step over the flat values, float32 [values]; may be changed.
            memory: This part's state in this run, empty at first, to be changed as an aggregator's.

        Returns:
            The step to apply; may be `step` itself.
        """


@dataclass(frozen=True)
class Algorithm:
    """A complete algorithm, as every driver takes it.

    Attributes:
        schedule: Which client trains when, and which updates are aggregated together.
        aggregator: The step of the global model.
        objective: The local objective. Under the buffers "local" and "recompute" it is wrapped in
            `OwnBuffers`.
        server_steps: Transformations of the step, applied in order.
        buffers: Policy of the floating-point buffers, such as BatchNorm's running statistics. "follow" treats
            them like parameters; "mean" sets them to the unweighted mean over the aggregated clients (as
            FedCompass's authors do); integer buffers take the newest update's. "local" leaves each client its
            buffers of either kind (FedBN, as far as running statistics go), "recompute" uses no client's;
            then the model that is evaluated has estimated statistics.
        codec: Compression of the updates. None means no compression.
        name: Name, set by the registry.
        hyperparameters: Options by name, set by the registry.

    Raises:
        UsageError: A part requires a feature that no other part provides, or the buffers do not fit.
    """

    schedule: Schedule
    aggregator: Aggregator
    objective: Objective
    server_steps: tuple[ServerStep, ...] = ()
    buffers: Buffers = "follow"
    codec: Codec | None = None
    name: str = "custom"
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that the parts fit, and wrap objective and schedule as buffers and aggregator need."""
        object.__setattr__(self, "objective", wrap_buffers(self.objective, self.buffers))
        object.__setattr__(self, "schedule", self._marked_schedule())
        parts = (self.schedule, self.aggregator, self.objective)
        provided = frozenset[Feature]().union(*(part.provides for part in parts))
        for part in parts:
            for feature in sorted(part.requires - provided - DRIVERS):
                title = part.title if part is self.aggregator else type(part).__name__
                raise UsageError(f"{title} needs {feature.description}")

    def _marked_schedule(self) -> Schedule:
        """The schedule, which marks fallbacks where there may be some."""
        schedule, least = unwrap_schedule(self.schedule), self.aggregator.least
        if least <= 1:
            return schedule
        largest = schedule.largest_aggregation
        if largest is not None and largest < least:
            found = "each by itself" if largest == 1 else f"at most {largest}"
            raise UsageError(
                f"{self.aggregator.title} needs {least} updates at a time, {self.name} aggregates {found}: "
                "let it aggregate more, or choose an aggregator that needs fewer, such as centered_clip"
            )
        return NoteFallbacks(schedule, least)

    @property
    def requires(self) -> frozenset[Feature]:
        """Features required of the driver."""
        parts = (self.schedule, self.aggregator, self.objective)
        return frozenset[Feature]().union(*(part.requires for part in parts)) & DRIVERS


def check_layout(algorithm: Algorithm, layout: Layout) -> None:
    """Check that an aggregator that bounds a client's influence sees all that clients send.

    Raises:
        UsageError: The clients' floating buffers go past it.
    """
    robust = Feature.BOUNDED in algorithm.aggregator.provides
    if robust and layout.parameters < layout.values and algorithm.buffers not in UNSENT:
        raise UsageError(
            f"buffers = {algorithm.buffers!r} is not allowed with {algorithm.aggregator.title}, which bounds "
            "parameters only, and a model with floating buffers: choose local or recompute"
        )
