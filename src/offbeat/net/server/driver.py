"""The driver of a run on a network: it applies events, and makes messages of the commands.

A `Driver` keeps three things in step: the engine (`core.engine`: state machine, journal, tensors), the
registry of sites and tasks, and the effects that are to be made durable and sent. It knows nothing of
messages that come in: `handlers` makes events of those, `coordinator` of the time that passes.
"""

from collections.abc import Callable, Sequence

from offbeat.core.algorithm import Algorithm
from offbeat.core.commands import Aggregate, Command, Discard, Recall, Send, Train, Upload
from offbeat.core.engine import Engine
from offbeat.core.events import Arrived, Begin, Event, TaskId, WantsModel
from offbeat.core.global_model import GlobalModel
from offbeat.core.journal import Row, event_of
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model
from offbeat.core.recorded import RecordedJournal
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
from offbeat.net.server.registry import Registry, SiteRecord


class Driver:
    """Applies events. `began` is when the run did, in seconds; `stopped` is why it ended."""

    def __init__(self, algorithm: Algorithm, initial: Model, options: ServerOptions, seed: int) -> None:
        self.tensors = GlobalModel(algorithm, initial)
        self.engine = Engine(
            algorithm.schedule,
            seed,
            self._record,
            self.tensors,
            self.tensors.model.layout.nbytes,
            options.until,
        )
        self.server = self.engine.server
        self.registry = Registry()
        self.effects = Effects()
        self.stopped: str | None = None
        self.began: float | None = None
        self._options, self._seed = options, seed

    def _record(self, row: Row) -> None:
        self.effects.rows.append(row)

    # ---- events ----

    def apply(self, now: float, event: Event, result: LocalResult | None = None) -> None:
        """Apply one event, and tell the sites what the algorithm commands."""
        for command in self._advance(now, event, result):
            self._tell(now, command)
        if isinstance(event, WantsModel):
            self.answer(
                self.registry.by_client[event.client], self.registry.assigned[event.task].answer, event.task
            )
        self._check_limits()

    def replay(self, rows: Sequence[Row], load: Callable[[TaskId], LocalResult] | None) -> None:
        """Apply a recorded event: its row, then those of its commands, which must come again.

        `load` gives the update of a task that arrived; None means that no tensor is touched. Nothing is
        recorded or sent. Raises `ReplayError` where what comes now is not what is recorded.
        """
        event, recorded = event_of(rows[0]), RecordedJournal(rows)
        result = load(event.task) if load is not None and isinstance(event, Arrived) else None
        self.engine.record, self.engine.tensors = recorded.check, self.tensors if load is not None else None
        try:
            self._advance(rows[0].t, event, result)
            recorded.finish()
        finally:
            self.engine.record, self.engine.tensors = self._record, self.tensors
        self._check_limits()

    def _advance(self, now: float, event: Event, result: LocalResult | None) -> list[Command]:
        """Apply an event to the engine and the registry; returns the commands."""
        commands = self.engine.apply(now, event, result)
        task, remembered = self.server.current_task, self._options.remembered
        for lost in self.registry.enter_event(now, event, task, remembered):
            self.tensors.lose(lost)
        for command in commands:
            self.registry.enter_command(command)
        if isinstance(event, Begin):
            self.began = now
        return commands

    def stop(self, reason: str) -> None:
        """End the run, if it has not ended."""
        if self.stopped is None:
            self.stopped = reason
            for site in self.registry.sites.values():
                if site.connected:
                    self.send(site.name, RunFinished(reason))

    def _check_limits(self) -> None:
        if (reason := self.engine.stop_reason()) is not None:
            self.stop(reason)

    # ---- messages ----

    def _tell(self, now: float, command: Command) -> None:
        """Tell the site that a command is about."""
        match command:
            case Train():
                self.assign(command)
            case Recall():
                self.send(self._name(command), TaskRecall(command.task))
            case Upload():
                self.send(self._name(command), UploadGrant(command.task, command.bits))
            case Discard():
                self.send(self._name(command), TaskCancel(command.task, command.reason))
            case Aggregate():
                if self._options.evaluate.after(command.version):
                    self.effects.evaluations.append(self.evaluation(now))
            case _:
                pass

    def _name(self, command: Train | Recall | Upload | Discard) -> str:
        return self.registry.by_client[command.client].name

    def assign(self, command: Train) -> None:
        """Give a task to its site, or give it again."""
        c, (base, model) = command, self.tensors.bases[command.task]
        self.send(
            self._name(c),
            TaskAssignment(c.task, base, c.steps, self._seed, model, c.ask_after, c.lr_factor, c.hold),
        )

    def answer(self, site: SiteRecord, sent: Send | None, task: TaskId) -> None:
        """Answer a request for a model: with one, or that there is none."""
        if sent is None:
            self.send(site.name, ModelResponse(task))
        else:
            version, model = self.tensors.fresh[task]
            self.send(site.name, ModelResponse(task, version, sent.clock, model))

    def send(self, name: str, message: FromServer) -> None:
        """Send a message to a site, once what led to it is durable."""
        self.effects.messages.append((name, message))

    def close(self, name: str, reason: str) -> None:
        """Close a site's connection, once it has been told everything."""
        self.effects.closed.append((name, reason))

    def evaluation(self, now: float) -> Evaluation:
        """The current version, to be evaluated."""
        engine, server = self.engine, self.server
        arrived = server.counts["arrived"]
        return Evaluation(
            now, server.version, arrived, engine.bytes_up, engine.bytes_down, self.tensors.model
        )
