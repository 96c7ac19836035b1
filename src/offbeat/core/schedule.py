"""Schedules: which client trains when, how long, and which arrivals are aggregated together."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import replace as shallow
from typing import Any, Protocol

import msgspec
import numpy as np
from msgspec.structs import replace as changed

from offbeat.core.commands import Aggregate, Command
from offbeat.core.errors import UsageError
from offbeat.core.events import ClientId, Event, TaskId, Version
from offbeat.core.features import AlgorithmPart
from offbeat.core.fleet import Fleet
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

    @property
    def one_distribution(self) -> bool:
        """Whether it is for clients whose data are of one distribution; by default not.

        Such a schedule may never use an update of a slow client.
        """
        return False

    def check_clients(self, clients: int) -> None:
        """Check the number of clients with which a run begins: by default only against `concurrency`.

        Raises:
            UsageError: The schedule's options need more clients.
        """
        if self.concurrency is not None and self.concurrency > clients:
            raise UsageError(
                f"{self.concurrency} clients cannot train at the same time where there are {clients}: "
                f"choose at most {clients}, or have more clients"
            )

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
    def resolution(self) -> float:
        """Resolution of the schedule inside."""
        return self.inner.resolution

    @property
    def snapshots(self) -> bool:
        """Whether the schedule inside can be restored from plain data."""
        return self.inner.snapshots

    @property
    def one_distribution(self) -> bool:
        """Whether the schedule inside is for data of one distribution."""
        return self.inner.one_distribution

    def check_clients(self, clients: int) -> None:
        """Check the number of clients by the schedule inside."""
        self.inner.check_clients(clients)

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
