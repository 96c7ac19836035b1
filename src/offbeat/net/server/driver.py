"""An event from start to end: the algorithm, the journal, the books, and what is commanded.

A `Driver` keeps four things in step: the algorithm's own state machine (`core.server.Server`), its tensors,
the books of sites and tasks, and the outcome that collects what is to be made durable and said. It knows
nothing of messages that come in; `hearing` makes events of those, `coordinator` of the time that passes.

A recorded event happens like a new one, but for this: nothing new is written or said, and the rows that come
of it must be those that are recorded.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest

from offbeat.core.algorithm import Algorithm, Task
from offbeat.core.commands import Aggregate, Command, Discard, Drop, Recall, Send, Train, Upload
from offbeat.core.errors import RunError
from offbeat.core.events import Arrived, Begin, Event, Joined, Left, Lost, TaskId, WantsModel
from offbeat.core.global_model import GlobalModel
from offbeat.core.journal import Row, command_row, event_of, event_row
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model
from offbeat.core.server import Server
from offbeat.net.messages import (
    FromServer,
    ModelResponse,
    RunFinished,
    TaskAssignment,
    TaskCancel,
    TaskRecall,
    UploadGrant,
)
from offbeat.net.server.effects import Effects, Evaluation
from offbeat.net.server.options import ServerOptions
from offbeat.net.server.registry import Registry, SiteRecord, TaskStatus


class Driver:
    """Lets events happen. `began`: when the run did; `stopped`: why it ended; `rows` are in the journal."""

    def __init__(self, algorithm: Algorithm, initial: Model, terms: ServerOptions, seed: int) -> None:
        self.server = Server(algorithm.schedule, seed)
        self.tensors = GlobalModel(algorithm, initial)
        self.books = Registry()
        self.outcome = Effects()
        self.stopped: str | None = None
        self.began: float | None = None
        self.rows = 0
        self.staleness_sum = 0
        self.bits_up = 0
        self._terms, self._seed = terms, seed
        self._model_bytes = self.tensors.model.layout.nbytes
        self._past: Sequence[Row] | None = None  # the rows that must come, while a recorded event is relived
        self._with_tensors = True

    # ---- events ----

    def happen(self, now: float, event: Event, result: LocalResult | None = None) -> None:
        """Feed one event, write it down, and carry out what the algorithm commands."""
        version = self.server.version
        commands = self.server.feed(now, event)
        self._write(self._rows_of(now, event, version, commands))
        self._enter(now, event, self.server.subject, result)
        for command in commands:
            if self._with_tensors:
                _move(self.tensors, command)
            self._carry_out(now, command)
        if isinstance(event, WantsModel) and event.task in self.books.assigned:
            assignment = self.books.assigned[event.task]
            assignment.asked = True
            self.answer(self.books.by_client[event.client], assignment.answer, event.task)
        self._check_limits()

    def relive(self, rows: Sequence[Row], load: Callable[[TaskId], LocalResult] | None) -> None:
        """Let a recorded event happen again: its row, then those of its commands, which must come again.

        `load` gives the update of a task that arrived; without it no tensor is touched. Raises `RunError`
        where what happens now is not what is recorded.
        """
        event = event_of(rows[0])
        result = load(event.task) if load is not None and isinstance(event, Arrived) else None
        self._past, self._with_tensors = rows, load is not None
        try:
            self.happen(rows[0].t, event, result)
        finally:
            self._past, self._with_tensors = None, True

    def stop(self, reason: str) -> None:
        """End the run, if it has not ended."""
        if self.stopped is None:
            self.stopped = reason
            for site in self.books.sites.values():
                if site.connected:
                    self.say(site.name, RunFinished(reason))

    def _check_limits(self) -> None:
        terms, server = self._terms, self.server
        if server.stopped is not None:
            self.stop(server.stopped)
        elif terms.versions is not None and server.version >= terms.versions:
            self.stop(f"reached {terms.versions} versions")
        elif terms.tasks is not None and server.counts["arrived"] >= terms.tasks:
            self.stop(f"reached {terms.tasks} client tasks")

    # ---- the journal ----

    def _rows_of(self, now: float, event: Event, version: int, commands: Sequence[Command]) -> list[Row]:
        """The rows of an event that came at this version, and of its commands."""
        rows = [event_row(self.rows, now, event, version, self.server.subject)]
        for command in commands:
            version = command.version if isinstance(command, Aggregate) else version
            rows.append(command_row(self.rows + len(rows), now, command, version))
        return rows

    def _write(self, rows: Sequence[Row]) -> None:
        """Write rows down, or hold them against those that are recorded."""
        self.rows += len(rows)
        if self._past is None:
            self.outcome.rows += rows
            return
        for row, recorded in zip_longest(rows, self._past):
            if row != recorded:
                raise RunError(
                    f"the run cannot be brought back: it now gives {row}, the journal has {recorded}. "
                    "Use the version of Offbeat and the configuration it was started with"
                )

    # ---- the books ----

    def _enter(self, now: float, event: Event, task: Task | None, result: LocalResult | None) -> None:
        """Enter an event into the books, and its tensors."""
        books = self.books
        match event:
            case Joined():
                site = books.by_client[event.client]
                site.present, site.samples, site.steps_per_epoch = True, event.samples, event.steps_per_epoch
                if event.holds is not None:
                    books.bring_back(event.holds)
                for lost in [t for t in books.gone if books.owners[t] == event.client]:
                    books.give_up(lost)
                    self.tensors.lose(lost)
            case Arrived():
                assert task is not None
                self._arrived(now, event, task, result)
            case Lost():
                books.end(event.task, TaskStatus.LOST)
                self.tensors.lose(event.task)
            case Left():
                books.by_client[event.client].present = False
                for lost in books.leave_behind(task, self._terms.remembered) if task is not None else ():
                    self.tensors.lose(lost)
            case Begin():
                self.began = now
            case _:
                pass

    def _arrived(self, now: float, event: Arrived, task: Task, result: LocalResult | None) -> None:
        site = self.books.by_client[event.client]
        self.books.end(event.task, TaskStatus.ARRIVED)
        site.updates += 1
        site.staleness, site.steps_done = task.staleness, 0
        site.speed = event.steps / (now - task.started) if now > task.started else 0.0
        self.staleness_sum += task.staleness
        self.bits_up += int(event.metrics.get("bits", 8 * self._model_bytes))
        if result is not None:
            self.tensors.arrive(task, result)

    # ---- commands ----

    def _carry_out(self, now: float, command: Command) -> None:
        """Enter a command into the books, and tell the site that it is about."""
        books = self.books
        match command:
            case Train():
                books.assign(command)
                books.by_client[command.client].steps_done = 0
                self.assign(command)
            case Send():
                books.assigned[command.task].answer = command
            case Recall():
                self.say(books.by_client[command.client].name, TaskRecall(command.task))
            case Upload():
                books.assigned[command.task].upload = command
                self.say(books.by_client[command.client].name, UploadGrant(command.task, command.bits))
            case Discard():
                books.end(command.task, TaskStatus.DISCARDED)
                self.say(books.by_client[command.client].name, TaskCancel(command.task, command.reason))
            case Aggregate():
                every = self._terms.evaluate_versions
                if every is not None and command.version % every == 0 and self._past is None:
                    self.outcome.evaluations.append(self.evaluation(now))
            case _:
                pass

    # ---- what is said ----

    def assign(self, command: Train) -> None:
        """Give a task to its site, or give it again."""
        if self._past is not None:
            return
        c, (base, model) = command, self.tensors.bases[command.task]
        self.say(
            self.books.by_client[c.client].name,
            TaskAssignment(c.task, base, c.steps, self._seed, model, c.ask_after, c.lr_factor, c.hold),
        )

    def answer(self, site: SiteRecord, sent: Send | None, task: TaskId) -> None:
        """Answer a request for a model: with one, or that there is none."""
        if self._past is not None:
            return
        if sent is None:
            self.say(site.name, ModelResponse(task))
        else:
            version, model = self.tensors.fresh[task]
            self.say(site.name, ModelResponse(task, version, sent.clock, model))

    def say(self, name: str, message: FromServer) -> None:
        """Tell a site something, once what led to it is durable."""
        if self._past is None:
            self.outcome.messages.append((name, message))

    def hang_up(self, name: str, reason: str) -> None:
        """End a site's link, once it has been told everything."""
        self.outcome.closed.append((name, reason))

    # ---- numbers ----

    def evaluation(self, now: float) -> Evaluation:
        """The current version, to be measured."""
        arrived = self.server.counts["arrived"]
        return Evaluation(
            now, self.server.version, arrived, self.bytes_up, self.bytes_down, self.tensors.model
        )

    @property
    def bytes_down(self) -> int:
        """Bytes sent to sites: one model a task, and those they asked for; without what was sent again."""
        return (self.server.dispatched + self.server.sent) * self._model_bytes

    @property
    def bytes_up(self) -> int:
        """Bytes of the updates that arrived, as their codec made them."""
        return self.bits_up // 8


def _move(tensors: GlobalModel, command: Command) -> None:
    """Do with the tensors what a command says."""
    match command:
        case Train():
            tensors.dispatch(command.task)
        case Send():
            tensors.send(command.task)
        case Discard():
            tensors.lose(command.task)
        case Aggregate():
            tensors.aggregate(command)
        case Drop():
            tensors.drop(command.task)
        case _:
            pass
