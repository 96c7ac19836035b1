"""A simulated run: virtual clock, event queue, and the engine between them.

The loop takes the next event from the queue. If it is an arrival, the loop waits for its training. Then it
applies the event (`core.engine`) and carries the commands out. Nothing waits for real time.

All that a simulation does follows from (algorithm, world, learner, seed). So an interrupted run is resumed by
repeating its events, without training, up to the last checkpoint: see `backend.ReplayBackend`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from offbeat.core.codec import update_bits
from offbeat.core.commands import Aggregate, Command, Discard, Measure, Recall, Send, SetTimer, Train, Upload
from offbeat.core.errors import UsageError
from offbeat.core.events import (
    Arrived,
    Begin,
    ClientId,
    Event,
    Joined,
    Left,
    Lost,
    Measured,
    Ready,
    RolledBack,
    TaskId,
    Timer,
    WantsModel,
)
from offbeat.core.features import Feature
from offbeat.core.journal import Row
from offbeat.core.learner import MergePoint
from offbeat.runs.schema import ClientMetric, Metric, client_metrics
from offbeat.sim.backend import Backend, LiveBackend
from offbeat.sim.evaluation_times import TimedEvaluations
from offbeat.sim.queue import EventQueue
from offbeat.sim.simulated_run import SimulatedRun
from offbeat.sim.task import SimulatedTask

_NEVER = float("inf")
_NOTHING = _NEVER, None
# The most frequent kind comes first.
_OF_A_TASK = (Arrived, WantsModel, Ready, Lost)
_TRAINED = (Ready, Arrived)


class Recorder(Protocol):
    """Writer of a simulation's rows and evaluations."""

    def row(self, row: Row) -> None:
        """Write a journal row."""

    def metric(self, metric: Metric, clients: Iterable[ClientMetric] = ()) -> None:
        """Write an evaluation, with the clients' metrics."""


class Simulation:
    """A run in virtual time: call `start`, then `step` until `stop_reason` is set.

    `tasks` are those in training; `now` is in virtual seconds.
    """

    def __init__(self, run: SimulatedRun, backend: LiveBackend, recorder: Recorder) -> None:
        schedule, requires, experiment = run.algorithm.schedule, run.algorithm.requires, run.experiment
        seed, layout = experiment.seed, backend.tensors.model.layout
        self.engine = run.prepared.engine(recorder.row, backend.tensors)
        self.server = self.engine.server
        self._labels = Feature.LABELS in requires
        self._norms = Feature.NORMS in requires
        self._trains_all = self._norms or Feature.CLIENT_STATE in requires
        self.evaluations = TimedEvaluations(
            experiment.evaluate, experiment.until, run.prepared.higher_is_better
        )
        self.now = 0.0
        self.stop_reason: str | None = None
        self.tasks: dict[TaskId, SimulatedTask] = {}
        # A run that is stopped from outside is evaluated once more.
        self._last_due = False
        self._measurements = 0
        self._population, self._learner = run.population, run.learner
        self._run = run
        self._seed, wire = seed, experiment.wire
        # Of a model and of an update.
        self._bits = 8 * wire.model_bytes(layout), update_bits(run.algorithm.codec, layout)
        self._queue = EventQueue(schedule.resolution)
        self._presence: dict[ClientId, Iterator[tuple[float, float]]] = {}
        self._backend: Backend = backend
        self._recorder = recorder

    def connect(self, backend: Backend, recorder: Recorder) -> None:
        """Train with this backend and write to this recorder from here on."""
        self._backend, self._recorder = backend, recorder
        self.engine.record, self.engine.tensors = recorder.row, backend.tensors

    def start(self) -> None:
        """Let the clients join that are there at the start, and begin."""
        if self._population.always_there:
            self._join_all()
        else:
            for client in range(self._learner.clients):
                self._presence[client] = self._population.presence(client)
                self._queue_presence(client)
            while self._queue and self._queue.time == 0.0 and (joined := self._queue.pop(self._is_true)):
                self._apply(*joined)
        if self.evaluations.first:
            self._evaluate(0.0)
        self._apply(0.0, Begin())

    def step(self) -> None:
        """Apply the next event, or stop."""
        time, event = self._queue.pop(self._is_true) or _NOTHING
        until = self.engine.until
        limit = until.seconds
        if event is not None and self.evaluations.by_time:
            for moment in self.evaluations.due(self.now, time if limit is None else min(time, limit)):
                self._evaluate(moment)
                if self.stop_reason is not None:
                    return
        if event is None:
            self._end("nothing is left to happen: no client trains, no timer is set")
        elif limit is not None and time > limit:
            self.now = limit
            self._end(until.out_of_time)
        else:
            self._apply(time, event)
            reason = self.engine.stop_reason() or self._backend.diverged
            if self.stop_reason is None and reason is not None:
                self._end(reason)

    def stop(self, reason: str) -> None:
        """End the run with the model that it has: before its next event, also while it evaluates."""
        if self.stop_reason is None:
            self.stop_reason, self._last_due = reason, True

    def finish(self) -> None:
        """Evaluate the model with which the run ends, where `stop` came between two evaluations."""
        if self._last_due and self.evaluations.last(self.now, self.server.version):
            self._evaluate(self.now)

    def submit_all(self) -> None:
        """Submit the tasks in training whose end is known, as they were when the run was saved."""
        for task in self.tasks.values():
            if self._needed(task):
                self._backend.submit(task.local(self._seed), task.due[0] if task.due else self.now)

    # ---- events ----

    def _is_true(self, time: float, event: Event) -> bool:
        """Whether a scheduled event is still to happen: tasks change, timers are cancelled."""
        if isinstance(event, _OF_A_TASK):
            task = self.tasks.get(event.task)
            return task is not None and (due := task.due) is not None and due[1] is event
        if isinstance(event, Joined | Left):
            return not self._spent(event.client)
        return not isinstance(event, Timer) or self.server.timers.get(event.timer) == time

    def _apply(self, time: float, event: Event) -> None:
        """Apply one event, and carry the commands out.

        Kinds are compared by `is`: a struct's class takes three times as long to say that something is none.
        """
        self.now = time
        engine, backend, result = self.engine, self._backend, None
        if type(event) is Arrived:
            upload = self.tasks[event.task].upload
            event, result = backend.finish(event, upload[1] if upload else None)
        if type(event) is Arrived:
            commands = engine.apply(time, event, result)
            del self.tasks[event.task]
        else:
            if type(event) is Ready:
                event = self._ready(event)
            commands = engine.apply(time, event)
            if type(event) is Lost:
                self._lost(event.task)
            elif type(event) is Left:
                if (task := self.server.current_task) is not None:
                    self._lost(task.id)
                if event.client in self._presence:
                    self._queue_presence(event.client)
        for skipped in backend.skipped():
            engine.apply(time, skipped)
        for command in commands:
            if (execute := _EXECUTE.get(type(command))) is not None:
                execute(self, command)
        if type(event) is WantsModel:
            self._answer(event, commands)
        if (rollback := backend.poisoned()) is not None:
            self._roll_back(time, rollback)
        if (client := engine.exhausted) is not None and engine.ledger is not None:
            self._apply(time, Left(client, reason=engine.ledger.left_reason))

    def _roll_back(self, time: float, event: RolledBack) -> None:
        """Make a new version with the content of an earlier one; tasks from the versions between are lost."""
        self.engine.apply(time, event)
        for task in [task for task in self.server.tasks.values() if task.newest > event.to]:
            if self.stop_reason is None:
                reason = (
                    f"it trains from a version that is withdrawn: the run went back to version {event.to}"
                )
                self._apply(time, Lost(task.client, task.id, reason))

    def _spent(self, client: ClientId) -> bool:
        """Whether a client's privacy budget is spent: it has left for good."""
        return self.engine.ledger is not None and client in self.engine.ledger.exhausted

    def _ready(self, event: Ready) -> Ready:
        """Tell the update's length to schedules that choose by it."""
        self.tasks[event.task].due = None
        metrics = self._backend.prepare(event.task) if self._norms else {}
        return Ready(event.client, event.task, event.steps, metrics)

    def _lost(self, task: TaskId) -> None:
        """Free a task that ends without an update: in a simulation no client brings one back."""
        del self.tasks[task]
        self.engine.lose(task)
        self._backend.cancel(task)

    def _answer(self, event: WantsModel, commands: list[Command]) -> None:
        """A request has been answered, with a model or with none: the task goes on."""
        sent = next((c for c in commands if isinstance(c, Send)), None)
        task = self.tasks[event.task]
        task.answer(MergePoint(event.steps, sent.version, sent.clock) if sent else None)
        self._go_on(task)

    def _go_on(self, task: SimulatedTask) -> None:
        """Queue a task's next event; once its end is known, it can be trained."""
        time, event = task.next()
        # This refuses NaN too, which is not below anything.
        if not time < _NEVER:
            raise UsageError(
                f"a task of {task.steps} steps of client {task.command.client} would take "
                f"{task.outcome.seconds(task.steps)} seconds: give the world smaller times per step, "
                "delays or sizes of a model per bandwidth"
            )
        time = max(time, self.now)
        task.due = time, event
        self._queue.push(time, event)
        if self._needed(task) and (task.upload is None or not self._trains_all):
            self._backend.submit(task.local(self._seed), time)

    def _needed(self, task: SimulatedTask) -> bool:
        """Whether all is known that determines a training, and its result will be needed.

        An update that is held is trained once it may be sent: many are discarded. But its length or the
        client's new state may be needed before, or all the same.
        """
        # A task whose update is held has no due event.
        event = task.due[1] if task.due else None
        if task.command.hold and self._trains_all:
            return event is None or isinstance(event, _TRAINED)
        return isinstance(event, Arrived)

    # ---- commands ----

    def _train(self, command: Train) -> None:
        outcome = self._population.task(command.client, *self._bits)
        self.tasks[command.task] = task = SimulatedTask(command, self.now, outcome, command.steps)
        self._go_on(task)

    def _recall(self, command: Recall) -> None:
        task = self.tasks[command.task]
        if task.recall(self.now, self.server.fleet.steps_per_epoch(command.client)):
            self._go_on(task)

    def _measure(self, command: Measure) -> None:
        """Measure the channel: each measurement has a draw of its own."""
        measured = self._population.measure(command.clients, self._measurements, command.seconds)
        self._measurements += 1
        self._queue.push(self.now, Measured(*measured))

    def _upload(self, command: Upload) -> None:
        task = self.tasks[command.task]
        task.upload = self.now, command
        self._go_on(task)

    def _discard(self, command: Discard) -> None:
        task = self.tasks.pop(command.task)
        if task.command.hold:
            self._backend.discard(command)
        else:
            self._backend.cancel(command.task)

    def _aggregate(self, command: Aggregate) -> None:
        if self.evaluations.every.after(command.version):
            self._evaluate(self.now)

    def _set_timer(self, command: SetTimer) -> None:
        self._queue.push(command.at, Timer(command.timer))

    # ---- clients ----

    def _join_all(self) -> None:
        """Have all clients join: one call and one journal row, whatever their number."""
        run, clients = self._run, range(self._learner.clients)
        samples = [run.samples(client) for client in clients]
        epochs = [run.steps_per_epoch(client) for client in clients]
        self.engine.join_all(
            samples, epochs, [self._labels_of(client) for client in clients] if self._labels else None
        )

    def _joined(self, client: ClientId) -> Joined:
        samples, epoch = self._run.samples(client), self._run.steps_per_epoch(client)
        return Joined(client, samples, epoch, labels=self._labels_of(client))

    def _labels_of(self, client: ClientId) -> tuple[int, ...] | None:
        counts = self._learner.label_counts(client) if self._labels else None
        return tuple(counts) if counts is not None else None

    def _queue_presence(self, client: ClientId) -> None:
        """Queue the next time a client comes, and when it goes again."""
        interval = next(self._presence[client], None)
        if interval is not None:
            self._queue.push(interval[0], self._joined(client))
            if interval[1] < _NEVER:
                self._queue.push(interval[1], Left(client))

    # ---- evaluation ----

    def _evaluate(self, time: float) -> None:
        """Evaluate the model; at equal times events come first."""
        engine, version = self.engine, self.server.version
        tasks, (found, clients) = self.server.counts["arrived"], self._backend.evaluate(version)
        row = self.evaluations.add(time, version, tasks, engine.bytes_up, engine.bytes_down, found)
        self._recorder.metric(row, client_metrics(row.seq, clients))
        if (reason := self.evaluations.reached) is not None:
            self.stop_reason = reason
        if self.stop_reason is not None:
            self.now = max(self.now, time)

    def _end(self, reason: str) -> None:
        if self.evaluations.last(self.now, self.server.version):
            self._evaluate(self.now)
        self.stop_reason = reason


_EXECUTE: dict[type, Callable[..., None]] = {
    Train: Simulation._train,
    Recall: Simulation._recall,
    Measure: Simulation._measure,
    Upload: Simulation._upload,
    Discard: Simulation._discard,
    Aggregate: Simulation._aggregate,
    SetTimer: Simulation._set_timer,
}
"""How a command is carried out, by its kind; for the others the engine does all."""
