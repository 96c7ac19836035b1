"""What clients do with their time: they train, receive, send, wait, and lose tasks. From a journal's rows.

A client's time is that in which it is in the run, from the run's begin to its last task's end, or to now
while it has none. The row of an update has the parts of its task (`core.events.Line`). Without them the whole
task was training, up to where the client said that it holds its update. The time of a task that came to
nothing is lost. For the rest a client waits: between its tasks, and while it holds an update.
"""

from dataclasses import dataclass

from msgspec import Struct, field

from offbeat.core.events import ClientId, Line
from offbeat.core.journal import Row, line_of


@dataclass(frozen=True, slots=True)
class TimeShares:
    """Shares of a client's time, from 0 to 1, which add up to 1.

    Attributes:
        trained: In local steps.
        received: Until it had its models.
        sent: From the end of a training until the update was there.
        waited: Without a task, or with an update that it held.
        lost: In tasks that came to nothing.
    """

    trained: float
    received: float
    sent: float
    waited: float
    lost: float

    @property
    def text(self) -> str:
        """The five in percent, in the order of `TIME_WORDS`."""
        shares = self.trained, self.received, self.sent, self.waited, self.lost
        return "/".join(f"{100 * share:.0f}" for share in shares)


TIME_WORDS = "trained/received/sent/waited/lost"
"""What the numbers of `TimeShares.text` are."""


class ClientTime(Struct):
    """One client's time so far, in seconds.

    Attributes:
        present: Time in the run, before `since`.
        since: When it joined, if it is in the run.
        task: When its task began, if it has one.
        ready: Time after which it held the update of its task; 0 where it does not.
        trained: Seconds in local steps.
        received: Seconds until it had its models.
        sent: Seconds from the end of a training until the update was there.
        lost: Seconds in tasks that came to nothing.
    """

    present: float = 0.0
    since: float | None = None
    task: float | None = None
    ready: float = 0.0
    trained: float = 0.0
    received: float = 0.0
    sent: float = 0.0
    lost: float = 0.0

    def begin(self, now: float) -> None:
        """The run begins: what was before does not count."""
        self.present, self.since = 0.0, None if self.since is None else now

    def leave(self, now: float) -> None:
        """The client leaves the run, and its task is lost."""
        self.end(now, lost=True)
        if self.since is not None:
            self.present, self.since = self.present + now - self.since, None

    def end(self, now: float, line: Line | None = None, *, lost: bool = False) -> None:
        """The task ends, if there is one."""
        if self.task is None:
            return
        seconds = now - self.task
        parts = Line(0.0, self.ready or seconds, 0.0, 0.0) if line is None else line
        if lost:
            parts = Line(0.0, 0.0, 0.0, 0.0)
        taken = parts.received + parts.trained + parts.sent
        # A task that was lost with its client may come back: the time until then was counted.
        free = max(0.0, self._time(now) - self._counted)
        part = min(1.0, free / taken) if taken > 0 else 0.0
        self.trained += part * parts.trained
        self.received += part * parts.received
        self.sent += part * parts.sent
        self.lost += min(seconds, free) if lost else 0.0
        self.task, self.ready = None, 0.0

    def shares(self, now: float) -> TimeShares | None:
        """The shares until now; None where no task has ended."""
        total = self._time(now if self.task is None else self.task)
        if self._counted <= 0:
            return None
        total = max(total, self._counted)
        waited = 1.0 - self._counted / total
        return TimeShares(
            self.trained / total, self.received / total, self.sent / total, waited, self.lost / total
        )

    @property
    def _counted(self) -> float:
        return self.trained + self.received + self.sent + self.lost

    def _time(self, now: float) -> float:
        return self.present + (0.0 if self.since is None else max(0.0, now - self.since))


class ClientTimes(Struct):
    """The time of all clients: `feed` it the rows of a journal, in order and expanded."""

    clients: dict[ClientId, ClientTime] = field(default_factory=dict)

    def feed(self, row: Row) -> None:
        """Take the next row."""
        if row.client is None:
            if row.name == "begin":
                for each in self.clients.values():
                    each.begin(row.t)
            return
        client = self.clients.setdefault(row.client, ClientTime())
        match row.name:
            case "joined":
                client.since, client.task = row.t, None if row.task is None else row.t
            case "train":
                client.task, client.ready = row.t, 0.0
            case "ready":
                client.ready = row.t - (row.t if client.task is None else client.task)
            case "arrived":
                client.end(row.t, line_of(row))
            case "discard":
                client.end(row.t, lost=not client.ready)
            case "lost":
                client.end(row.t, lost=True)
            case "left":
                client.leave(row.t)

    def shares(self, client: ClientId, now: float) -> TimeShares | None:
        """A client's shares until now; None where none of its tasks has ended."""
        own = self.clients.get(client)
        return None if own is None else own.shares(now)
