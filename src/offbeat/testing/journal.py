"""An auditor of journals: it recounts a run from its rows alone and checks every rule that a run keeps.

It shares nothing with the engine that wrote the rows: neither its counters nor its code. The rules:

- **time**: rows are numbered 0, 1, 2, …; time never goes back; commands carry the time of their event.
- **version**: each row names the current version; an aggregation makes the next one.
- **dispatch**: a task is given to a client that is there and idle; tasks are numbered in order, start from
  the current version and have at least one step.
- **one end**: a task ends once, at its own client: it arrives, is lost, or is discarded. A task that arrived
  is aggregated or dropped at most once.
- **staleness**: that of an arrival is the number of versions published since the task's base.
- **steps**: an arrival did the steps that were asked for; fewer only after a recall.
- **requests**: a model is sent only in answer to a request for one, and to the client that asked.
- **hold**: a held update is uploaded or discarded once, and a channel is measured for held updates only; a
  task whose update is to be held is not discarded before.
- **timers**: a timer fires once, at the time it was set for.
- **conservation**: dispatched = aggregated + dropped + lost + arrived and waiting + running.
- **liveness**: while a client is there, a task runs or a timer is set.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from offbeat.core.journal import Row


class JournalError(AssertionError):
    """A journal breaks a rule; one line that names the task, the time and the rule."""


@dataclass
class AuditedTask:
    """A task as the auditor knows it.

    Args:
        id: Its number.
        client: Who trains it.
        base: The version it started from.
        steps: Local steps asked for.
        started: When it was dispatched, in seconds.
        note: What its schedule noted with it, such as a group.
        recalled: It was told to report early.
        ready: It is done, and its client holds the update.
        end: How it ended, `None` while it runs.
    """

    id: int
    client: int
    base: int
    steps: int
    started: float
    note: Mapping[str, Any] = field(default_factory=dict)
    recalled: bool = False
    ready: bool = False
    end: str | None = None


Invariant = Callable[["JournalAudit"], None]
"""A user's rule, checked after each event with its commands; it calls `JournalAudit.fail`."""


def check_journal(rows: Sequence[Row], invariant: Invariant | None = None) -> "JournalAudit":
    """Audit a run's journal.

    Args:
        rows: All rows, in order, as `Run.rows` gives them.
        invariant: A rule to check in addition, after each event with its commands.

    Returns:
        The auditor, as the journal's end left it.

    Raises:
        JournalError: A row breaks a rule.
    """
    audit = JournalAudit()
    for event, commands in moments(rows):
        audit.moment(event, commands)
        if invariant is not None:
            invariant(audit)
    return audit


def moments(rows: Sequence[Row]) -> Iterator[tuple[Row, list[Row]]]:
    """Each event with the commands it led to."""
    event: Row | None = None
    commands: list[Row] = []
    for row in rows:
        if row.kind == "event":
            if event is not None:
                yield event, commands
            event, commands = row, []
        elif event is None:
            raise JournalError(f"row {row.seq}: time: the command {row.name} comes before any event")
        else:
            commands.append(row)
    if event is not None:
        yield event, commands


class JournalAudit:
    """Knowledge of the auditor at one moment of a run; an invariant may read every attribute.

    Attributes:
        time: Time of the last event, in seconds.
        version: Aggregations and rollbacks so far.
        begun: Whether the event `begin` has happened.
        present: The present clients.
        running: The task of each busy client.
        idle: The event that left each idle client without a task.
        held: Tasks that have arrived and are neither aggregated nor dropped.
        tasks: All tasks, by number.
        ended: Numbers of tasks that were `aggregated`, `dropped` or `lost`.
        timers: The time for which each timer is set.
        staleness: Staleness of all arrivals, in order.
        measuring: Clients whose channels are being measured; None means that there is no measurement.
        epoch: Number of committees so far.
        released: The last version whose masked sum is known, or has failed.
        summed: Tasks whose masked updates were summed.
    """

    def __init__(self) -> None:
        self.time = 0.0
        self.version = 0
        self.begun = False
        self.present: set[int] = set()
        self.running: dict[int, AuditedTask] = {}
        self.idle: dict[int, Row] = {}
        self.held: set[int] = set()
        self.tasks: list[AuditedTask] = []
        self.ended: Counter[str] = Counter()
        self.timers: dict[str, float] = {}
        self.staleness: list[int] = []
        self.measuring: list[int] | None = None
        self.epoch = self.released = 0
        self.summed: set[int] = set()
        # The present row.
        self._row: Row | None = None
        self._rows = 0
        # The task whose request for a model is the present event.
        self._asked: int | None = None

    def moment(self, event: Row, commands: Sequence[Row]) -> None:
        """Audit an event and the commands it led to."""
        self._event(event)
        for command in commands:
            self._command(command)
        self._balance()

    def check(self, holds: bool, rule: str, what: str, task: int | None = None) -> None:
        """Fail if a rule does not hold."""
        if not holds:
            self.fail(rule, what, task)

    def fail(self, rule: str, what: str, task: int | None = None) -> NoReturn:
        """Raise the error of the present row, or of `task`.

        Args:
            rule: The rule's name.
            what: What is wrong, without a full stop.
            task: The task it is about; that of the row at hand if `None`.
        """
        row = self._row
        if task is None and row is not None:
            task = row.task
        client = None if row is None else row.client
        who = "the run" if task is None and client is None else f"client {client}"
        raise JournalError(f"{who if task is None else f'task {task}'} at {self.time:g} s: {rule}: {what}")

    # ---- rows ----

    def _enter(self, row: Row) -> None:
        self._row = row
        self.check(row.seq == self._rows, "time", f"row {row.seq} follows row {self._rows - 1}")
        self._rows += 1

    def _event(self, row: Row) -> None:
        before, self.time = self.time, row.t
        self._enter(row)
        self.check(row.t >= before, "time", f"{row.name} comes after an event at {before:g} s")
        if row.name not in _VERSIONED:
            found = f"{row.name} at {row.version}, not {self.version}"
            self.check(row.version == self.version, "version", found)
        self._asked = None
        event = _EVENTS.get(row.name)
        if event is None:
            self.fail("time", f"the event {row.name} is unknown")
        event(self, row)

    def _command(self, row: Row) -> None:
        self._enter(row)
        self.check(row.kind == "command", "time", f"{row.name} is no command")
        self.check(row.t == self.time, "time", f"{row.name} carries {row.t:g} s")
        command = _COMMANDS.get(row.name)
        if command is None:
            self.fail("time", f"the command {row.name} is unknown")
        command(self, row)

    def _balance(self) -> None:
        """The state between two events."""
        counts = {**self.ended, "waiting": len(self.held), "running": len(self.running)}
        self.check(
            len(self.tasks) == sum(counts.values()),
            "conservation",
            f"{len(self.tasks)} tasks dispatched, but {counts}",
        )
        self.check(self.begun or not self.tasks, "dispatch", "before the run began")
        if self.begun and self.present:
            self.check(
                bool(self.running or self.timers),
                "liveness",
                f"{len(self.present)} clients are there, no task runs and no timer is set",
            )

    def _running(self, row: Row) -> AuditedTask:
        """The task that a row is about, which must run at the row's client."""
        task = self.running.get(_client(row))
        if task is None or task.id != row.task:
            runs = "none" if task is None else f"task {task.id}"
            ended = row.task is not None and row.task < len(self.tasks) and self.tasks[row.task].end
            how = f"; it ended before: {ended}" if ended else ""
            self.fail("one end", f"{row.name} at client {row.client}, which runs {runs}{how}")
        return task

    def _end(self, row: Row, how: str) -> AuditedTask:
        """The task that a row is about, which ends with it."""
        task = self._running(row)
        del self.running[task.client]
        task.end = how
        if task.client in self.present:
            self.idle[task.client] = row
        return task

    # ---- events ----

    def _joined(self, row: Row) -> None:
        client = _client(row)
        self.check(client not in self.present, "dispatch", "joined, but it is there")
        self.present.add(client)
        self.idle[client] = row

    def _begin(self, row: Row) -> None:
        self.check(not self.begun, "time", "the run began twice")
        self.begun = True

    def _arrived(self, row: Row) -> None:
        task = self._end(row, "arrived")
        self.check(not task.ready, "hold", "its update came without a grant to upload it")
        self.check(row.base == task.base, "staleness", f"arrived with base {row.base}, not {task.base}")
        since = self.version - task.base
        self.check(row.staleness == since, "staleness", f"{row.staleness}, but {since} versions since base")
        self._check_steps(row, task)
        self.staleness.append(since)
        self.held.add(task.id)

    def _check_steps(self, row: Row, task: AuditedTask) -> None:
        steps = row.steps or 0
        fits = 1 <= steps <= task.steps if task.recalled else steps == task.steps
        self.check(fits, "steps", f"did {row.steps} of {task.steps}, recalled: {task.recalled}")

    def _wants_model(self, row: Row) -> None:
        task = self._running(row)
        self.check(row.base == task.base, "requests", f"asks with base {row.base}, not {task.base}")
        self.check(0 < (row.steps or 0) < task.steps, "requests", f"asks after {row.steps} of {task.steps}")
        self._asked = task.id

    def _ready(self, row: Row) -> None:
        task = self._running(row)
        self.check(not task.ready, "hold", "ready twice")
        self.check(row.steps == task.steps, "steps", f"did {row.steps} of {task.steps}")
        task.ready = True

    def _measured(self, row: Row) -> None:
        clients = [client for client, _ in _data(row)["capacities"]]
        self.check(clients == self.measuring, "hold", f"measured {clients}, asked for {self.measuring}")
        self.measuring = None

    def _lost(self, row: Row) -> None:
        task = self._end(row, "lost")
        self.check(not task.ready, "hold", "lost after it was done")
        self.ended["lost"] += 1

    def _left(self, row: Row) -> None:
        client = _client(row)
        self.check(client in self.present, "dispatch", "left, but it is not there")
        self.present.remove(client)
        self.idle.pop(client, None)
        if row.task is not None:
            self._end(row, "left")
            self.ended["lost"] += 1
        self.check(client not in self.running, "one end", "its client left, and the row does not say so")

    def _timer(self, row: Row) -> None:
        timer = _data(row)["timer"]
        at = self.timers.pop(timer, None)
        self.check(at == row.t, "timers", f"{timer!r} fires, set for {at}")

    def _skipped(self, row: Row) -> None:
        made = row.version is not None and 0 < row.version <= self.version
        self.check(made and bool(_data(row)["reason"]), "version", f"version {row.version} is skipped")

    def _committee(self, row: Row) -> None:
        self.epoch += 1
        self.check(
            _data(row)["epoch"] == self.epoch, "releases", f"committee {self.epoch} is told as another"
        )

    def _releasing(self, row: Row) -> None:
        made = row.version is not None and self.released < row.version <= self.version
        self.check(made, "releases", f"version {row.version} is released out of order")
        for task in _data(row)["tasks"]:
            self.check(self.tasks[task].end == "aggregated", "releases", f"task {task} is not to be summed")
            self.check(task not in self.summed, "releases", f"task {task} is in two sums")
            self.summed.add(task)

    def _released(self, row: Row) -> None:
        made = row.version is not None and self.released < row.version <= self.version
        self.check(made, "releases", f"version {row.version} is released out of order")
        self.released = row.version or 0

    def _rolled_back(self, row: Row) -> None:
        to = _data(row)["to"]
        self.check(0 <= to < self.version, "version", f"a rollback from {self.version} to {to}")
        self.version += 1
        self.check(row.version == self.version, "version", f"a rollback makes {row.version}")

    # ---- commands ----

    def _train(self, row: Row) -> None:
        client, number = _client(row), len(self.tasks)
        self.check(client in self.present, "dispatch", f"to client {client}, which is not there")
        self.check(client not in self.running, "dispatch", f"to client {client}, which is busy")
        self.check(row.task == number, "dispatch", f"its number should be {number}")
        self.check(row.base == self.version, "dispatch", f"from version {row.base}, not {self.version}")
        self.check((row.steps or 0) >= 1, "dispatch", f"with {row.steps} steps")
        task = AuditedTask(number, client, self.version, row.steps or 0, row.t, row.data or {})
        self.tasks.append(task)
        self.running[client] = task
        del self.idle[client]

    def _send(self, row: Row) -> None:
        task = self._running(row)
        self.check(task.id == self._asked, "requests", "a model is sent that it has not asked for")
        self.check(row.version == self.version, "requests", f"version {row.version} is sent")
        self._asked = None

    def _recall(self, row: Row) -> None:
        task = self._running(row)
        self.check(not task.recalled, "steps", "recalled twice")
        task.recalled = True

    def _aggregate(self, row: Row) -> None:
        tasks = _data(row)["tasks"]
        self.check(bool(tasks), "one end", "an aggregation of no update")
        for task in tasks:
            self._use(task, "aggregated")
        self.version += 1
        self.check(row.version == self.version, "version", f"an aggregation makes {row.version}")

    def _drop(self, row: Row) -> None:
        self.check(bool(_data(row)["reason"]), "one end", "dropped without a reason")
        self._use(row.task, "dropped")

    def _use(self, task: int | None, how: str) -> None:
        if task is None or task not in self.held:
            known = task is not None and task < len(self.tasks)
            before = (self.tasks[task or 0].end or "running") if known else "unknown"
            self.fail("one end", f"{how}, but it is {before}", task)
        self.held.remove(task)
        self.tasks[task].end = how
        self.ended[how] += 1

    def _measure(self, row: Row) -> None:
        self.check(self.measuring is None, "hold", "a channel is being measured already")
        clients: list[int] = _data(row)["clients"]
        for client in clients:
            ready = client in self.running and self.running[client].ready
            self.check(ready, "hold", f"client {client} is measured, but holds no update")
        self.measuring = clients

    def _upload(self, row: Row) -> None:
        task = self._running(row)
        self.check(task.ready, "hold", "it may upload, but holds no update")
        task.ready = False

    def _discard(self, row: Row) -> None:
        self.check(bool(_data(row)["reason"]), "hold", "discarded without a reason")
        task = self._end(row, "dropped")
        self.check(task.ready or not task.note.get("hold"), "hold", "discarded, but it holds no update")
        self.ended["dropped"] += 1

    def _timer_set(self, row: Row) -> None:
        data = _data(row)
        self.check(data["at"] >= row.t, "timers", f"{data['timer']!r} is set for {data['at']:g} s")
        self.timers[data["timer"]] = data["at"]

    def _timer_cancelled(self, row: Row) -> None:
        timer = _data(row)["timer"]
        self.check(timer in self.timers, "timers", f"{timer!r} is cancelled, but not set")
        del self.timers[timer]

    def _stop(self, row: Row) -> None:
        """The run's end, which is nothing to audit."""


_EVENTS = {
    "joined": JournalAudit._joined, "begin": JournalAudit._begin, "wants_model": JournalAudit._wants_model,
    "ready": JournalAudit._ready, "measured": JournalAudit._measured, "arrived": JournalAudit._arrived,
    "lost": JournalAudit._lost, "left": JournalAudit._left, "timer": JournalAudit._timer,
    "skipped": JournalAudit._skipped, "rolled_back": JournalAudit._rolled_back,
    "committee": JournalAudit._committee, "releasing": JournalAudit._releasing,
    "released": JournalAudit._released,
}  # fmt: skip
# Rows of these events have the version that they are about.
_VERSIONED = ("skipped", "rolled_back", "releasing", "released")
_COMMANDS = {
    "train": JournalAudit._train, "send": JournalAudit._send, "recall": JournalAudit._recall,
    "aggregate": JournalAudit._aggregate, "measure": JournalAudit._measure, "upload": JournalAudit._upload,
    "discard": JournalAudit._discard, "drop": JournalAudit._drop, "timer_set": JournalAudit._timer_set,
    "timer_cancelled": JournalAudit._timer_cancelled, "stop": JournalAudit._stop,
}  # fmt: skip


def _client(row: Row) -> int:
    if row.client is None:
        raise JournalError(f"row {row.seq} at {row.t:g} s: {row.name} names no client")
    return row.client


def _data(row: Row) -> dict[str, Any]:
    return row.data or {}
