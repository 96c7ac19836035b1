"""Registry of a coordinator's sites and tasks, beside what the server knows.

All of it follows from the journal and the table of sites, so nothing here is saved.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from offbeat.core.algorithm import Task
from offbeat.core.commands import Command, Discard, Send, Train, Upload
from offbeat.core.events import Arrived, ClientId, Event, Joined, Left, Lost, TaskId, WantsModel


class TaskStatus(IntEnum):
    """What has become of a task."""

    RUNNING = 0
    ARRIVED = 1
    LOST = 2
    DISCARDED = 3


@dataclass(slots=True)
class SiteRecord:
    """A site: `present` while it is in the fleet, `connected` while it has a link. Times in seconds."""

    name: str
    client: ClientId
    samples: int = 0
    steps_per_epoch: int = 0
    labels: tuple[int, ...] | None = None
    present: bool = False
    connected: bool = False
    last_seen: float = 0.0
    steps_done: int = 0
    speed: float = 0.0
    staleness: int = -1
    updates: int = 0


@dataclass(slots=True)
class TaskRecord:
    """A task in training: what was commanded, and what has been said about it since."""

    command: Train
    asked: bool = False
    answer: Send | None = None
    upload: Upload | None = None


@dataclass
class Registry:
    """Sites by name and number, tasks by number."""

    sites: dict[str, SiteRecord] = field(default_factory=dict)
    by_client: dict[ClientId, SiteRecord] = field(default_factory=dict)
    assigned: dict[TaskId, TaskRecord] = field(default_factory=dict)
    gone: dict[TaskId, tuple[int, ...]] = field(default_factory=dict)  # lost with their sites: versions kept
    owners: "array[int]" = field(default_factory=lambda: array("q"))
    fates: bytearray = field(default_factory=bytearray)

    def add(self, name: str, client: ClientId) -> SiteRecord:
        """A site that has not been seen before."""
        site = SiteRecord(name, client)
        self.sites[name] = self.by_client[client] = site
        return site

    def enter_event(self, now: float, event: Event, task: Task | None, remembered: int) -> Sequence[TaskId]:
        """Enter an event about this task.

        Returns the tasks that nobody can bring back from now on: of those lost with their sites only the ones
        from the newest `remembered` base versions can be.
        """
        match event:
            case Joined():
                site = self.by_client[event.client]
                site.present, site.samples, site.steps_per_epoch = True, event.samples, event.steps_per_epoch
                if event.holds is not None:
                    self.bring_back(event.holds)
                lost = [other for other in self.gone if self.owners[other] == event.client]
                for other in lost:
                    self.give_up(other)
                return lost
            case Arrived():
                assert task is not None
                self.end(event.task, TaskStatus.ARRIVED)
                site = self.by_client[event.client]
                site.updates += 1
                site.staleness, site.steps_done = task.staleness, 0
                site.speed = event.steps / (now - task.started) if now > task.started else 0.0
            case Lost():
                self.end(event.task, TaskStatus.LOST)
            case Left():
                self.by_client[event.client].present = False
                return self.leave_behind(task, remembered) if task is not None else ()
            case WantsModel():
                self.assigned[event.task].asked = True
            case _:
                pass
        return ()

    def enter_command(self, command: Command) -> None:
        """Enter a command."""
        match command:
            case Train():
                self.assign(command)
                self.by_client[command.client].steps_done = 0
            case Send():
                self.assigned[command.task].answer = command
            case Upload():
                self.assigned[command.task].upload = command
            case Discard():
                self.end(command.task, TaskStatus.DISCARDED)
            case _:
                pass

    def assign(self, command: Train) -> None:
        """A task starts."""
        self.assigned[command.task] = TaskRecord(command)
        self.owners.append(command.client)
        self.fates.append(TaskStatus.RUNNING)

    def end(self, task: TaskId, fate: TaskStatus) -> None:
        """A task does not run any more."""
        self.fates[task] = fate
        if fate is not TaskStatus.LOST or task not in self.gone:
            self.assigned.pop(task, None)

    def fate(self, client: ClientId, task: TaskId) -> TaskStatus | None:
        """What has become of a client's task; None if it never had it."""
        if not 0 <= task < len(self.owners) or self.owners[task] != client:
            return None
        return TaskStatus(self.fates[task])

    def leave_behind(self, task: Task, remembered: int) -> list[TaskId]:
        """A task is lost with its site; returns those that cannot be brought back from now on."""
        self.gone[task.id] = (task.base,) if task.fresh is None else (task.base, task.fresh)
        self.end(task.id, TaskStatus.LOST)
        forgotten = []
        while len({version for versions in self.gone.values() for version in versions}) > remembered:
            forgotten.append(next(iter(self.gone)))
            self.give_up(forgotten[-1])
        return forgotten

    def give_up(self, task: TaskId) -> None:
        """A task that was lost with its site cannot be brought back."""
        del self.gone[task]
        del self.assigned[task]

    def bring_back(self, task: TaskId) -> None:
        """A site has come back with its task."""
        del self.gone[task]
        self.fates[task] = TaskStatus.RUNNING
