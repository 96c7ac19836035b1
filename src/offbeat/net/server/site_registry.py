"""Registry of a coordinator's sites and tasks, beside what the server knows.

All of it follows from the journal and the table of sites, but for when a site was last seen.
"""

from collections.abc import Sequence
from enum import IntEnum

from msgspec import Struct, field
from msgspec.structs import replace

from offbeat.core.commands import Command, Discard, Send, Train, Upload
from offbeat.core.events import (
    Arrived,
    ClientId,
    Event,
    Joined,
    Left,
    Lost,
    RolledBack,
    TaskId,
    WantsModel,
)
from offbeat.core.schedule import Task

REMEMBERED = 16
"""Last tasks of a site whose end is known. It holds one, and may tell of it again after a lost answer."""


class TaskStatus(IntEnum):
    """What has become of a task."""

    RUNNING = 0
    ARRIVED = 1
    LOST = 2
    DISCARDED = 3


class SiteRecord(Struct):
    """A site: `present` while it is in the fleet, `connected` while it has a connection. Times in seconds.

    `held_out` is None while it is not known, after a restart of the server. `tasks` has the last `REMEMBERED`
    tasks, the oldest first, and what has become of them.
    """

    name: str
    client: ClientId
    samples: int = 0
    steps_per_epoch: int = 0
    labels: tuple[int, ...] | None = None
    held_out: int | None = None
    present: bool = False
    connected: bool = False
    last_seen: float = 0.0
    steps_done: int = 0
    speed: float = 0.0
    staleness: int = -1
    updates: int = 0
    tasks: dict[TaskId, TaskStatus] = field(default_factory=dict)

    @property
    def data(self) -> tuple[int, int, tuple[int, ...] | None]:
        """What the site has told of its data: samples, steps of an epoch, samples of each class."""
        return self.samples, self.steps_per_epoch, self.labels


class TaskRecord(Struct):
    """A task in training, or lost with its site: its command, and what has been said about it since."""

    command: Train
    asked: bool = False
    answer: Send | None = None
    upload: Upload | None = None
    brought_back: bool = False


class SavedSite(Struct, frozen=True):
    """What is saved of a `SiteRecord`."""

    client: ClientId
    samples: int = 0
    steps_per_epoch: int = 0
    present: bool = False
    last_seen: float = 0.0
    speed: float = 0.0
    staleness: int = -1
    updates: int = 0
    tasks: dict[TaskId, TaskStatus] = field(default_factory=dict)


class SavedRegistry(Struct, frozen=True):
    """The state of a registry."""

    sites: list[SavedSite]
    assigned: dict[TaskId, TaskRecord]
    gone: dict[TaskId, tuple[int, ...]]


class Registry(Struct):
    """Sites by name and number, tasks by number.

    Attributes:
        sites: The sites by name.
        by_client: The sites by their number in the run.
        assigned: The tasks in training, and those that were lost with their sites and may be brought back.
        gone: The versions that each task needs which was lost with its site and may be brought back.
    """

    sites: dict[str, SiteRecord] = field(default_factory=dict)
    by_client: dict[ClientId, SiteRecord] = field(default_factory=dict)
    assigned: dict[TaskId, TaskRecord] = field(default_factory=dict)
    gone: dict[TaskId, tuple[int, ...]] = field(default_factory=dict)

    def add(self, name: str, client: ClientId) -> SiteRecord:
        """Add a site that has not been seen before."""
        site = self.sites[name] = self.by_client[client] = SiteRecord(name, client)
        return site

    def status(self, client: ClientId, task: TaskId) -> TaskStatus | None:
        """What has become of a client's task; None if it is none of its last ones."""
        return self.by_client[client].tasks.get(task)

    def enter_event(self, now: float, event: Event, task: Task | None, remembered: int) -> Sequence[TaskId]:
        """Enter an event.

        Args:
            now: Time of the event, in seconds of the run's clock.
            event: The event.
            task: The task it is about, if any.
            remembered: Number of the newest base versions whose tasks, lost with their sites, can be brought
                back.

        Returns:
            The tasks that nobody can bring back from now on.
        """
        match event:
            case Joined():
                site = self.by_client[event.client]
                site.present, site.samples, site.steps_per_epoch = True, event.samples, event.steps_per_epoch
                site.last_seen = now
                if event.holds is not None:
                    del self.gone[event.holds]
                    site.tasks[event.holds] = TaskStatus.RUNNING
                    self.assigned[event.holds].brought_back = True
                own = [task for task in self.gone if self.assigned[task].command.client == event.client]
                return [self._forget(other) for other in own]
            case Arrived():
                assert task is not None
                self._end(event.client, event.task, TaskStatus.ARRIVED)
                site = self.by_client[event.client]
                site.updates, site.last_seen = site.updates + 1, now
                site.staleness, site.steps_done = task.staleness, 0
                site.speed = event.steps / (now - task.started) if now > task.started else 0.0
            case Lost():
                self._end(event.client, event.task, TaskStatus.LOST)
            case Left():
                site = self.by_client[event.client]
                site.present = False
                if task is not None:
                    site.tasks[task.id] = TaskStatus.LOST
                    self.gone[task.id] = (task.base,) if task.fresh is None else (task.base, task.fresh)
                    return self._forget_oldest(remembered)
            case WantsModel():
                self.assigned[event.task].asked = True
            case RolledBack():
                return [
                    self._forget(lost) for lost, needs in list(self.gone.items()) if max(needs) > event.to
                ]
        return ()

    def enter_command(self, command: Command) -> None:
        """Enter a command."""
        match command:
            case Train():
                self.assigned[command.task] = TaskRecord(command)
                site = self.by_client[command.client]
                site.steps_done, site.tasks[command.task] = 0, TaskStatus.RUNNING
                if len(site.tasks) > REMEMBERED:
                    del site.tasks[next(iter(site.tasks))]
            case Send():
                self.assigned[command.task].answer = command
            case Upload():
                self.assigned[command.task].upload = command
            case Discard():
                self._end(command.client, command.task, TaskStatus.DISCARDED)

    def save(self) -> SavedRegistry:
        """The state, but for what follows from connections and the table of sites."""
        sites = [
            SavedSite(
                site.client, site.samples, site.steps_per_epoch, site.present, site.last_seen, site.speed,
                site.staleness, site.updates, dict(site.tasks),
            )
            for site in self.sites.values()
            if site.samples  # else it has never joined
        ]  # fmt: skip
        assigned = {task: replace(record) for task, record in self.assigned.items()}
        return SavedRegistry(sites, assigned, dict(self.gone))

    def restore(self, saved: SavedRegistry) -> None:
        """Go on from a state. Raises `KeyError` for one with a site that this has not."""
        told = {own.client: own for own in saved.sites}
        if unknown := told.keys() - self.by_client.keys():
            raise KeyError(min(unknown))
        for client, site in self.by_client.items():
            own = told.get(client) or SavedSite(client)
            site.samples, site.steps_per_epoch, site.present = own.samples, own.steps_per_epoch, own.present
            site.last_seen, site.speed, site.steps_done = own.last_seen, own.speed, 0
            site.staleness, site.updates, site.tasks = own.staleness, own.updates, dict(own.tasks)
        self.assigned = {task: replace(record) for task, record in saved.assigned.items()}
        self.gone = dict(saved.gone)

    def _end(self, client: ClientId, task: TaskId, status: TaskStatus) -> None:
        """End a task in training."""
        self.by_client[client].tasks[task] = status
        del self.assigned[task]

    def _forget(self, task: TaskId) -> TaskId:
        """Forget a task that was lost with its site: it cannot be brought back any more."""
        del self.gone[task]
        del self.assigned[task]
        return task

    def _forget_oldest(self, remembered: int) -> list[TaskId]:
        """Forget tasks until those that can be brought back need at most `remembered` versions."""
        forgotten = []
        while len({version for versions in self.gone.values() for version in versions}) > remembered:
            forgotten.append(self._forget(next(iter(self.gone))))
        return forgotten
