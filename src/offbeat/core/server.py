"""The server as a sans-IO state machine.

Theory of operation
-------------------
`Server.feed(now, event)` returns the commands to carry out, and that is all: no clock, no thread,
no socket. The server has the state that every algorithm needs, so that no algorithm can get it
wrong: which clients are present and idle, which tasks run, which updates are held, the version number, the
staleness of each arrival. It lets the schedule react to the event, checks each command against its
state and stamps it.

A task's life is dispatched → (arrived → aggregated | dropped) | discarded | lost. The server refuses a
command that would end a task twice, train a busy client or aggregate what has not arrived. Staleness is the
number of versions published since the task's base, taken when the update arrives.

Every command takes effect on this state before the schedule's next line runs. So a schedule that
yields `Aggregate` and then `Train` trains from the new version.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from offbeat.core import commands, events
from offbeat.core.errors import AlgorithmError
from offbeat.core.events import ClientId, Event, TaskId, Version
from offbeat.core.fleet import Fleet, Labels, SavedFleet
from offbeat.core.schedule import Schedule, Task
from offbeat.core.streams import Purpose, SavedStream, restore_stream, save_stream, stream

UNSEEN = frozenset(
    {events.Skipped, events.RolledBack, events.CommitteeFormed, events.Releasing, events.Released}
)
"""Events that schedules do not see: they change what the versions contain, not who trains."""


class SavedServer(Struct, frozen=True):
    """The state of a server; `schedule` is that of its schedule, as plain data."""

    now: float
    version: Version
    fleet: SavedFleet
    begun: bool
    stopped: str | None
    timers: dict[str, float]
    tasks: list[Task]
    held: list[Task]
    lost: list[Task]
    dispatched: int
    counts: dict[str, int]
    sent: int
    measuring: bool
    streams: dict[Purpose, SavedStream]
    schedule: Any


class Server:
    """The state machine of one run: events in, commands out.

    Args:
        schedule: The algorithm's schedule.
        seed: The run's seed.

    Attributes:
        state: The schedule's state.
        now: Time of the last event, in seconds of the run's clock.
        version: Number of the current global model.
        fleet: The clients present.
        stopped: Reason of the end. None means that the run goes on.
        timers: Times of the timers set, by name.
        tasks: Tasks in training, by client, oldest first.
        held: Tasks whose updates have arrived and are neither aggregated nor dropped.
        dispatched: Number of tasks so far.
        counts: Number of updates "arrived", "aggregated", "dropped", and of tasks "discarded", "lost".
        sent: Number of models sent in mid-task.
    """

    def __init__(self, schedule: Schedule, seed: int = 0) -> None:
        self.schedule = schedule
        self.state = schedule.initial()
        self.now = 0.0
        self.version: Version = 0
        self.fleet = Fleet()
        self.begun = False
        self.stopped: str | None = None
        self.timers: dict[str, float] = {}
        # The tasks in training, by client.
        self.tasks: dict[ClientId, Task] = {}
        # The tasks that have arrived, and are neither aggregated nor dropped yet.
        self.held: dict[TaskId, Task] = {}
        # The task that a client lost as it left, and may still hold.
        self.lost: dict[ClientId, Task] = {}
        self.dispatched = 0
        self.counts = {"arrived": 0, "aggregated": 0, "dropped": 0, "discarded": 0, "lost": 0}
        # Number of models sent in mid-task.
        self.sent = 0
        # The task that the current event is about.
        self.current_task: Task | None = None
        self._seed = seed
        self._streams: dict[Purpose, np.random.Generator] = {}
        # The task whose request for a model is the current event.
        self._asking: TaskId | None = None
        # Whether the answer to a `Measure` is still to come.
        self._measuring = False

    # ---- the state as a schedule sees it (core.schedule.View) ----

    @property
    def running(self) -> int:
        """Number of tasks in training."""
        return len(self.tasks)

    def task(self, task: TaskId) -> Task:
        """A held task, or the one of the current event."""
        if self.current_task is not None and self.current_task.id == task:
            return self.current_task
        if task in self.held:
            return self.held[task]
        raise AlgorithmError(f"task {task} is not held")

    def sample_idle(self, count: int) -> list[ClientId]:
        """Draw up to `count` idle clients, uniformly without replacement; in order of their numbers."""
        return self.fleet.sample_idle(count, self.rng(Purpose.SCHEDULE))

    def rng(self, purpose: Purpose) -> np.random.Generator:
        """The run's random stream for this purpose."""
        rng = self._streams.get(purpose)
        if rng is None:
            rng = self._streams[purpose] = stream(self._seed, purpose)
        return rng

    # ---- the state as plain data ----

    def save(self) -> SavedServer:
        """The state between two events. Raises `TypeError` for a schedule whose state is not plain data."""
        tasks, held, lost = ([replace(t) for t in own.values()] for own in (self.tasks, self.held, self.lost))
        return SavedServer(
            now=self.now, version=self.version, fleet=self.fleet.save(), begun=self.begun,
            stopped=self.stopped, timers=dict(self.timers), tasks=tasks, held=held, lost=lost,
            dispatched=self.dispatched, counts=dict(self.counts), sent=self.sent, measuring=self._measuring,
            streams={purpose: save_stream(rng) for purpose, rng in self._streams.items()},
            schedule=self.schedule.save(self.state),
        )  # fmt: skip

    def restore(self, saved: SavedServer) -> None:
        """Go on from a state. Raises `ValueError` for one that does not fit."""
        self.now, self.version, self.begun, self.stopped = (
            saved.now,
            saved.version,
            saved.begun,
            saved.stopped,
        )
        self.fleet.restore(saved.fleet)
        self.timers = dict(saved.timers)
        self.tasks = {task.client: replace(task) for task in saved.tasks}
        self.held = {task.id: replace(task) for task in saved.held}
        self.lost = {task.client: replace(task) for task in saved.lost}
        self.dispatched, self.counts, self.sent = saved.dispatched, dict(saved.counts), saved.sent
        self._measuring, self.current_task, self._asking = saved.measuring, None, None
        self._streams = {purpose: restore_stream(own) for purpose, own in saved.streams.items()}
        self.state = self.schedule.load(saved.schedule)

    # ---- the driver's side ----

    def feed(self, now: float, event: Event) -> list[commands.Command]:
        """Feed one event.

        Args:
            now: Time of the event, in seconds of the run's clock; never before the last event's.
            event: The event.

        Returns:
            The commands to carry out, in order.

        Raises:
            AlgorithmError: The event or a command of the schedule breaks the rules.
        """
        if now < self.now:
            raise AlgorithmError(f"time ran backwards: {event} at {now} after {self.now}")
        if self.stopped is not None:
            raise AlgorithmError(f"the run has stopped ({self.stopped}): {event} cannot be fed")
        event = self._admit(event)
        self.now = now
        stamped: list[commands.Command] = []
        if self.begun and type(event) not in UNSEEN:
            for command in self.schedule.on(event, self.state, self):
                stamped.append(self._enact(command))
                if self.stopped is not None:
                    break
        return stamped

    def join_all(self, samples: Sequence[int], steps_per_epoch: Sequence[int], labels: Labels | None) -> None:
        """Let clients 0 … n − 1 join before `Begin`, as a `Joined` of each would."""
        if self.begun:
            raise AlgorithmError("the run has begun: clients can only join one by one")
        if min(samples) < 1 or min(steps_per_epoch) < 1:
            for client, own in enumerate(zip(samples, steps_per_epoch, strict=True)):
                _check_samples(client, *own)
        self.fleet.fill(samples, steps_per_epoch, labels)

    # ---- events ----

    def _admit(self, event: Event) -> Event:
        """Apply an event to the state, before the schedule sees it."""
        self.current_task = self._asking = None
        match event:
            case events.Arrived():
                if event.steps < 1:
                    raise AlgorithmError(f"task {event.task} arrived with {event.steps} local steps done")
                task = self._in_training(event.client, event.task)
                if task.ready:
                    raise AlgorithmError(f"task {event.task} arrived before its Upload")
                self._finish(task)
                task.steps = event.steps
                task.staleness = self.version - task.base
                task.samples = self.fleet.samples(task.client)
                task.share = self.fleet.share(task.client)
                task.population = self.fleet.size
                task.arrival = self.counts["arrived"]
                self.held[task.id] = task
                self.counts["arrived"] += 1
            case events.WantsModel():
                self.current_task = self._in_training(event.client, event.task)
                self._asking = event.task
            case events.Ready():
                self.current_task = task = self._in_training(event.client, event.task)
                if not task.hold or task.ready:
                    raise AlgorithmError(f"task {event.task} is ready, but is not one to be held")
                task.steps, task.ready = event.steps, True
            case events.Measured():
                if not self._measuring:
                    raise AlgorithmError("a channel was measured without a Measure")
                self._measuring = False
            case events.Lost():
                self._finish(self._in_training(event.client, event.task))
                self.counts["lost"] += 1
            case events.Timer():
                if self.timers.pop(event.timer, None) is None:
                    raise AlgorithmError(f"timer {event.timer!r} fired without being set")
            case events.Joined():
                self._join(event)
            case events.Left():
                return self._leave(event)
            case events.Begin():
                if self.begun:
                    raise AlgorithmError("begun twice")
                self.begun = True
            case events.Skipped() | events.Releasing() | events.Released():
                if not 0 < event.version <= self.version:
                    raise AlgorithmError(f"version {event.version} was not aggregated: {event} cannot be")
            case events.RolledBack():
                if not 0 <= event.to < self.version:
                    raise AlgorithmError(f"version {event.to} is not before {self.version}: no rollback")
                self.version += 1
        return event

    def _in_training(self, client: ClientId, task_id: TaskId) -> Task:
        task = self.tasks.get(client)
        if task is None or task.id != task_id:
            raise AlgorithmError(f"client {client} is not training task {task_id}")
        return task

    def _finish(self, task: Task) -> None:
        del self.tasks[task.client]
        self.fleet.set_idle(task.client)
        self.current_task = task

    def _leave(self, event: events.Left) -> events.Left:
        task = self.tasks.pop(event.client, None)
        self.fleet.remove(event.client)
        if task is None:
            return event
        self.current_task = self.lost[event.client] = task
        self.counts["lost"] += 1
        return events.Left(event.client, task.id, event.reason)

    def _join(self, event: events.Joined) -> None:
        client = event.client
        _check_samples(client, event.samples, event.steps_per_epoch)
        held = self.lost.get(client)
        if event.holds is not None and (held is None or held.id != event.holds):
            raise AlgorithmError(f"client {client} cannot hold task {event.holds}")
        self.fleet.add(client, event.samples, event.steps_per_epoch, event.labels)
        self.lost.pop(client, None)
        if held is not None and event.holds is not None:
            self.counts["lost"] -= 1
            self.tasks[client] = held
            # The oldest task comes first.
            self.tasks = dict(sorted(self.tasks.items(), key=lambda own: own[1].id))
            self.fleet.set_busy(client)

    # ---- commands ----

    def _enact(self, command: commands.Command) -> commands.Command:
        """Check a command, apply it to the state, and stamp it."""
        match command:  # the most frequent kinds first
            case commands.Train():
                return self._train(command)
            case commands.Aggregate():
                if not command.tasks:
                    raise AlgorithmError("an aggregation needs at least one update")
                clients = self._end(command.tasks, "aggregated")
                self.version += 1
                return replace(command, version=self.version, clients=clients)
            case commands.Drop():
                return replace(command, client=self._end((command.task,), "dropped")[0])
            case commands.Send():
                return self._send(command)
            case commands.Recall():
                task = self.tasks.get(command.client)
                if task is None:
                    raise AlgorithmError(f"client {command.client} is not training: it cannot be recalled")
                if task.recalled:
                    raise AlgorithmError(f"task {task.id} of client {command.client} is recalled twice")
                task.recalled = True
                return replace(command, task=task.id)
            case commands.Measure():
                if self._measuring:
                    raise AlgorithmError("the channel is being measured already")
                self._measuring = True
            case commands.Upload():
                task = self._held_by(command.client)
                if command.bits is not None and command.bits < 0:
                    raise AlgorithmError(f"client {command.client} was given {command.bits} bits to upload")
                task.ready = False
                return replace(command, task=task.id)
            case commands.Discard():
                task = self._stoppable(command.client)
                del self.tasks[command.client]
                self.fleet.set_idle(command.client)
                self.counts["discarded"] += 1
                return replace(command, task=task.id)
            case commands.SetTimer():
                if command.at < self.now:
                    raise AlgorithmError(
                        f"timer {command.timer!r} is set for {command.at}, before now ({self.now})"
                    )
                # A timer that is set again fires after the others of its time.
                self.timers.pop(command.timer, None)
                self.timers[command.timer] = command.at
            case commands.CancelTimer():
                if self.timers.pop(command.timer, None) is None:
                    raise AlgorithmError(f"timer {command.timer!r} is not set: it cannot be cancelled")
            case commands.Stop():
                self.stopped = command.reason
        return command

    def _train(self, command: commands.Train) -> commands.Train:
        client, steps, ask = command.client, command.steps, command.ask_after
        if not self.fleet.is_idle(client):
            raise AlgorithmError(f"client {client} is not idle: it cannot be given a task")
        if steps < 1:
            raise AlgorithmError(f"client {client} was given {steps} local steps: at least 1 is needed")
        if not 0 <= ask < steps:
            raise AlgorithmError(f"client {client} cannot ask for a model after {ask} of {steps} steps")
        task = Task(self.dispatched, client, self.version, steps, self.now, ask_after=ask, hold=command.hold)
        self.dispatched += 1
        self.tasks[client] = task
        self.fleet.set_busy(client)
        return replace(command, task=task.id, base=task.base)

    def _send(self, command: commands.Send) -> commands.Send:
        task = self.tasks.get(command.client)
        if task is None or task.id != self._asking:
            raise AlgorithmError(f"client {command.client} has not asked for a model now")
        self._asking = None
        task.fresh = self.version
        self.sent += 1
        clock = command.clock or self.version + 1
        return replace(command, clock=clock, task=task.id, version=self.version)

    def _held_by(self, client: ClientId) -> Task:
        task = self.tasks.get(client)
        if task is None or not task.ready:
            raise AlgorithmError(f"client {client} holds no update")
        return task

    def _stoppable(self, client: ClientId) -> Task:
        task = self.tasks.get(client)
        if task is None:
            raise AlgorithmError(f"client {client} is not training: there is nothing to discard")
        return self._held_by(client) if task.hold else task

    def _end(self, tasks: Sequence[TaskId], how: str) -> tuple[ClientId, ...]:
        """End held tasks; returns their clients."""
        held = self.held
        try:
            clients = tuple([held.pop(task).client for task in tasks])
        except KeyError as missing:
            raise AlgorithmError(f"task {missing.args[0]} is not held: it cannot be {how}") from None
        self.counts[how] += len(clients)
        return clients


def _check_samples(client: ClientId, samples: int, steps_per_epoch: int) -> None:
    if samples < 1 or steps_per_epoch < 1:
        raise AlgorithmError(f"client {client} has {samples} samples: it cannot train")
