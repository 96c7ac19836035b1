"""An algorithm is a composition of parts that do not know each other.

| part        | answers                                                                   |
|-------------|---------------------------------------------------------------------------|
| schedule    | who trains when, how much, and which arrivals are aggregated together     |
| aggregator  | how do these updates change the global model (with its staleness weight)  |
| server step | what is done to that change before it is applied                          |
| objective   | what a client minimises                                                   |
| programme   | what a client does with its time (a field of the schedules that use it)   |

A schedule sees numbers only, never tensors; an aggregator sees tensors only, never time. That is
what lets a journal be replayed without a model, and a model be trained ahead of the clock.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np
from torch import Tensor

from offbeat.core.buffers import Buffers, wrap_buffers
from offbeat.core.codec import Codec
from offbeat.core.commands import Command
from offbeat.core.errors import UsageError
from offbeat.core.events import ClientId, Event, Metrics, TaskId, Version
from offbeat.core.features import DRIVERS, NONE, Feature
from offbeat.core.fleet import Fleet
from offbeat.core.model import Model, Tensors
from offbeat.core.objective import Objective
from offbeat.core.streams import Purpose
from offbeat.core.wrapper import Wrapper


class Task(msgspec.Struct, gc=False):
    """What the server knows of one assignment of local training to one client.

    `share` (p_i), `staleness` (versions published since `base`), `arrival` (how many updates came
    before it) and `population` (how many clients there are) are taken when the update arrives; `started`
    is the time of dispatch, in seconds. After `ask_after` local steps (0: never) it asks for a fresh
    model; `fresh` is the version it was sent, if one was. `ready`: it is done, and its client holds it.
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


class View(Protocol):
    """What a schedule may ask the server."""

    @property
    def now(self) -> float:
        """Time of the event at hand, in seconds of the driver's clock."""

    @property
    def version(self) -> Version:
        """Number of the current global model; the initial one is 0."""

    @property
    def fleet(self) -> Fleet:
        """The clients that are here."""

    @property
    def running(self) -> int:
        """Number of tasks in training."""

    @property
    def tasks(self) -> Mapping[ClientId, Task]:
        """The tasks in training by client, oldest first."""

    @property
    def begun(self) -> bool:
        """Has `Begin` been fed?"""

    def task(self, task: TaskId) -> Task:
        """A task that has not ended, or the one the event at hand is about."""

    def sample_idle(self, count: int) -> list[ClientId]:
        """Up to `count` idle clients, drawn uniformly without replacement."""

    def generator(self, purpose: Purpose) -> np.random.Generator:
        """The run's random stream for this purpose."""


class Schedule(Protocol):
    """Decides who trains when, and what is aggregated together.

    The schedule itself is a frozen dataclass of hyper-parameters; what it remembers of a run is the
    plain data that `initial` returns and `on` changes.
    """

    @property
    def requires(self) -> frozenset[Feature]:
        """What it needs of the other parts or the driver."""
        return NONE

    @property
    def provides(self) -> frozenset[Feature]:
        """What it gives that other parts may need."""
        return NONE

    @property
    def concurrency(self) -> int | None:
        """How many clients train at the same time at most; None for all there are."""

    def initial(self) -> Any:
        """The state before the first event."""

    def on(self, event: Event, state: Any, view: View) -> Iterator[Command]:
        """React to one event. Each command takes effect before the next one is asked for."""


class ScheduleWrapper(Wrapper, Schedule):
    """A schedule around another one; subclasses declare the field `inner`."""

    inner: Schedule

    @property
    def concurrency(self) -> int | None:
        """That of the schedule inside."""
        return self.inner.concurrency


class Update(msgspec.Struct, frozen=True, gc=False):
    """One arrived update, as an aggregator sees it: the model trained from, and the change.

    `delta` is Δ_i = w_i − w_o over the flat values. Read it, never write to it. `lr` is the learning
    rate it was trained with. `fresh` is the model merged in mid-task, if one was, and `note` what the
    schedule says about this aggregation.
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


class Aggregator(Protocol):
    """Turns updates into a step of the global model, w := w + step."""

    @property
    def requires(self) -> frozenset[Feature]:
        """What it needs of the other parts or the driver."""
        return NONE

    @property
    def provides(self) -> frozenset[Feature]:
        """What it gives that other parts may need."""
        return NONE

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """The step over the flat values, in a fresh tensor the caller may change."""


class ServerStep(Protocol):
    """Transforms the aggregator's step before it is applied (momentum, FedOpt, clipping…)."""

    def transform(self, step: Tensor, memory: Tensors) -> Tensor:
        """The step to apply; may be `step` itself, changed."""


@dataclass(frozen=True)
class Algorithm:
    """A complete algorithm: what every driver takes.

    `server_steps` are applied in order. `buffers` says what happens to floating-point buffers such
    as BatchNorm's running statistics: "follow" treats them like parameters, "mean" sets them to the
    unweighted mean over the aggregated clients (as FedCompass's authors do). Integer buffers take
    the newest update's. With "local" each client keeps its buffers of either kind (FedBN, as far as running
    statistics go), with "recompute" nobody does; then the model that is judged has estimated ones, and
    `objective` is wrapped in `OwnBuffers`, as clients train it. `codec` is what updates go through on their
    way; None means as they are. `name` and `hyperparameters` are filled in by the registry.

    Raises `UsageError` where a part needs what no other part gives, and for `buffers` that do not fit.
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
        """Refuse parts that do not go together; make of the objective what clients train."""
        object.__setattr__(self, "objective", wrap_buffers(self.objective, self.buffers))
        parts = (self.schedule, self.aggregator, self.objective)
        given = frozenset[Feature]().union(*(part.provides for part in parts))
        for part in parts:
            for feature in sorted(part.requires - given - DRIVERS):
                raise UsageError(f"{type(part).__name__} needs {feature.description}")

    @property
    def requires(self) -> frozenset[Feature]:
        """What it asks of whoever drives it."""
        parts = (self.schedule, self.aggregator, self.objective)
        return frozenset[Feature]().union(*(part.requires for part in parts)) & DRIVERS
