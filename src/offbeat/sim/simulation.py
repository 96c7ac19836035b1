"""One simulated run: the virtual clock, the queue, and the state machine between them.

The loop takes the next event, lets the executor finish the training it needs (if it is an arrival),
feeds the server, writes the journal, and carries the commands out. Nothing waits for real time.

All that a simulation does follows from (algorithm, world, learner, seed). So a run is brought back
after an interruption by letting it happen again from its journal, without training, up to the last
checkpoint: see `work.Recorded`.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from offbeat.core.algorithm import Algorithm
from offbeat.core.commands import (
    Aggregate,
    Command,
    Discard,
    Drop,
    Measure,
    Recall,
    Send,
    SetTimer,
    Train,
    Upload,
)
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
    TaskId,
    Timer,
    WantsModel,
)
from offbeat.core.features import Feature
from offbeat.core.journal import Row, command_row, event_row, present_row
from offbeat.core.learner import Learner, MergePoint
from offbeat.core.limits import Every, Until
from offbeat.core.server import Server
from offbeat.runs.schema import Metric
from offbeat.sim.backend import TensorBackend
from offbeat.sim.evaluations import Evaluations
from offbeat.sim.queue import EventQueue
from offbeat.sim.task import SimulatedTask
from offbeat.world.population import Population

_NEVER = float("inf")
_OF_A_TASK = (Arrived, WantsModel, Ready, Lost)  # the most frequent kind first
_ENDS = (Arrived, Lost, Left)
_TRAINED = (Ready, Arrived)


class Recorder(Protocol):
    """Where a simulation writes what happens."""

    def row(self, row: Row) -> None:
        """A journal row."""

    def metric(self, metric: Metric) -> None:
        """An evaluation."""


class Simulation:
    """A run in virtual time; call `step` until `stop_reason` is set."""

    def __init__(
        self,
        algorithm: Algorithm,
        population: Population,
        learner: Learner,
        model_bytes: int,
        *,
        seed: int,
        until: Until,
        every: Every,
        work: TensorBackend,
        recorder: Recorder,
    ) -> None:
        self.server = Server(algorithm.schedule, seed)
        self._labels = Feature.LABELS in algorithm.requires
        self._norms = Feature.NORMS in algorithm.requires
        self._trains_all = self._norms or Feature.CLIENT_STATE in algorithm.requires
        self.work, self.recorder = work, recorder
        self.until, self.evaluations = until, Evaluations(every)
        self.now = 0.0
        self.rows = 0
        self.stop_reason: str | None = None
        self.staleness_sum = 0
        self.bits_up = 0
        self._measurements = 0
        self.courses: dict[TaskId, SimulatedTask] = {}  # of the tasks in training
        self._population, self._learner = population, learner
        self._model_bytes, self._model_bits, self._seed = model_bytes, 8 * model_bytes, seed
        self._queue = EventQueue()
        self._presence: dict[ClientId, Iterator[tuple[float, float]]] = {}

    def start(self) -> None:
        """Let the clients in that are there at the start, and begin."""
        if self._population.always_there:
            self._gather()
        else:
            for client in range(self._learner.clients):
                self._presence[client] = self._population.presence(client)
                self._queue_presence(client)
            while self._queue and self._queue.time == 0.0:
                self._happen(*self._queue.pop())
        if self.evaluations.first:
            self._evaluate(0.0)
        self._happen(0.0, Begin())

    def step(self) -> None:
        """Let the next event happen, or stop."""
        time, event = self._next()
        limit = self.until.seconds
        if event is not None and self.evaluations.by_time:
            for moment in self.evaluations.due(self.now, time if limit is None else min(time, limit)):
                self._evaluate(moment)
                if self.stop_reason is not None:
                    return
        if event is None:
            self._end("nothing is left to happen: no client trains, no timer is set")
        elif limit is not None and time > limit:
            self.now = limit
            self._end(f"reached {limit:g} seconds")
        else:
            self._happen(time, event)
            self._check_limits()

    def submit_all(self, work: TensorBackend) -> None:
        """Submit the tasks in training whose end is known, as they were when the run was saved."""
        for course in self.courses.values():
            if self._needed(course):
                work.submit(course.local(self._seed), course.due[0] if course.due else self.now)

    @property
    def bytes_down(self) -> int:
        """Bytes sent to clients: one model a task, and those they asked for."""
        return (self.server.dispatched + self.server.sent) * self._model_bytes

    @property
    def bytes_up(self) -> int:
        """Bytes sent by clients: one update a task that arrived, as its codec makes it."""
        return self.bits_up // 8

    # ---- events ----

    def _next(self) -> tuple[float, Event | None]:
        """The next event that is still true."""
        while self._queue:
            time, event = self._queue.pop()
            if isinstance(event, _OF_A_TASK):
                course = self.courses.get(event.task)
                if course is not None and course.due is not None and course.due[1] is event:
                    return time, event
            elif not isinstance(event, Timer) or self.server.timers.get(event.timer) == time:
                return time, event
        return _NEVER, None

    def _happen(self, time: float, event: Event) -> None:
        """Feed one event, write it down, and carry out what the server commands.

        Kinds are compared by `is`: a struct's class takes three times as long to say that something is none.
        """
        self.now = time
        server, record = self.server, self.recorder.row
        met = _MEET.get(type(event))
        if met is not None:
            event = met(self, event)
        version = server.version
        commands = server.feed(time, event)
        subject = server.subject
        record(event_row(self.rows, time, event, version, subject))
        self.rows += 1
        if subject is not None and isinstance(event, _ENDS):
            if type(event) is Arrived:
                self.staleness_sum += subject.staleness
                self.bits_up += int(event.metrics.get("bits", self._model_bits))
                self.work.hold(subject)
            del self.courses[subject.id]
        if type(event) is Left:
            self._queue_presence(event.client)
        for command in commands:
            carry_out = _CARRY_OUT.get(type(command))
            if type(command) is Aggregate:
                version = command.version
            record(command_row(self.rows, time, command, version))
            self.rows += 1
            if carry_out is not None:
                carry_out(self, command)
        if type(event) is WantsModel:
            self._answer(event, commands)

    def _ready(self, event: Ready) -> Ready:
        """The update's length is told to schedules that choose by it."""
        self.courses[event.task].due = None
        metrics = self.work.prepare(event.task) if self._norms else {}
        return Ready(event.client, event.task, event.steps, metrics)

    def _arrived(self, event: Arrived) -> Arrived:
        """The training is waited for."""
        upload = self.courses[event.task].upload
        metrics = self.work.finish(event.task, upload[1] if upload else None)
        return Arrived(event.client, event.task, event.steps, metrics)

    def _lost(self, event: Lost) -> Lost:
        self.work.lose(event.task)
        return event

    def _left(self, event: Left) -> Left:
        running = self.server.tasks.get(event.client)
        if running is not None:
            self.work.lose(running.id)
        return event

    def _answer(self, event: WantsModel, commands: list[Command]) -> None:
        """A request has been answered, with a model or with none: the task goes on."""
        sent = next((c for c in commands if isinstance(c, Send)), None)
        course = self.courses[event.task]
        course.answer(MergePoint(event.steps, sent.version, sent.clock) if sent else None)
        self._go_on(course)

    def _go_on(self, course: SimulatedTask) -> None:
        """Queue what happens next to a task; once its end is known, it can be trained."""
        time, event = course.next()
        if not time < _NEVER:  # nor nan
            raise UsageError(
                f"a task of {course.steps} steps of client {course.command.client} would take "
                f"{course.outcome.seconds(course.steps)} seconds: give the world smaller times per step, "
                "delays or sizes of a model per bandwidth"
            )
        course.due = max(time, self.now), event
        self._queue.push(*course.due)
        if self._needed(course) and (course.upload is None or not self._trains_all):
            self.work.submit(course.local(self._seed), course.due[0])

    def _needed(self, course: SimulatedTask) -> bool:
        """Is all known that determines a training, and will its result be needed?

        An update that is held is trained once it may be sent: many are discarded. But its length or the
        client's new state may be needed before, or all the same.
        """
        event = course.due[1] if course.due else None  # none: it is held
        if course.command.hold and self._trains_all:
            return event is None or isinstance(event, _TRAINED)
        return isinstance(event, Arrived)

    # ---- commands ----

    def _train(self, command: Train) -> None:
        outcome = self._population.task(command.client, self._model_bits)
        course = SimulatedTask(command, self.now, outcome, command.steps)
        self.courses[command.task] = course
        self.work.dispatch(command)
        self._go_on(course)

    def _send(self, command: Send) -> None:
        self.work.send(command)

    def _recall(self, command: Recall) -> None:
        course = self.courses[command.task]
        if course.recall(self.now, self.server.fleet.steps_per_epoch(command.client)):
            self._go_on(course)

    def _measure(self, command: Measure) -> None:
        self._queue.push(self.now, self._measured(command))

    def _upload(self, command: Upload) -> None:
        course = self.courses[command.task]
        course.upload = self.now, command
        self._go_on(course)

    def _discard(self, command: Discard) -> None:
        del self.courses[command.task]
        self.work.discard(command)

    def _aggregate(self, command: Aggregate) -> None:
        self.work.aggregate(command)
        if self.evaluations.after(command.version):
            self._evaluate(self.now)

    def _drop(self, command: Drop) -> None:
        self.work.drop(command.task)

    def _set_timer(self, command: SetTimer) -> None:
        self._queue.push(command.at, Timer(command.timer))

    def _measured(self, command: Measure) -> Measured:
        """What the channel is like now: a draw of its own for each measurement."""
        measured = self._population.measure(command.clients, self._measurements, command.seconds)
        self._measurements += 1
        return Measured(*measured)

    def _gather(self) -> None:
        """All clients are there: one entry in the books and in the journal, however many they are."""
        learner, clients = self._learner, range(self._learner.clients)
        samples = [learner.samples(client) for client in clients]
        epochs = [learner.steps_per_epoch(client) for client in clients]
        labels = [self._labels_of(client) for client in clients] if self._labels else None
        self.server.gather(samples, epochs, labels)
        row = present_row(samples, epochs, labels)
        self.recorder.row(row)
        self.rows = row.seq + 1

    def _joined(self, client: ClientId) -> Joined:
        learner, labels = self._learner, self._labels_of(client) if self._labels else None
        return Joined(client, learner.samples(client), learner.steps_per_epoch(client), labels=labels)

    def _labels_of(self, client: ClientId) -> tuple[int, ...] | None:
        counts = self._learner.label_counts(client)
        return tuple(counts) if counts is not None else None

    def _queue_presence(self, client: ClientId) -> None:
        """Queue the next time a client comes, and when it goes again."""
        interval = next(self._presence[client], None)
        if interval is not None:
            self._queue.push(interval[0], self._joined(client))
            if interval[1] < _NEVER:
                self._queue.push(interval[1], Left(client))

    # ---- evaluation and limits ----

    def _evaluate(self, time: float) -> None:
        """Measure the model; at equal times events come first."""
        version, tasks = self.server.version, self.server.counts["arrived"]
        found = self.work.evaluate(version)
        row = self.evaluations.enter(time, version, tasks, self.bytes_up, self.bytes_down, found)
        self.recorder.metric(row)
        wanted = self.until.accuracy
        if wanted is not None and row.accuracy is not None and row.accuracy >= wanted:
            self.now = max(self.now, time)
            self.stop_reason = f"reached accuracy {wanted:g}"

    def _check_limits(self) -> None:
        until, server = self.until, self.server
        if self.stop_reason is not None:
            return
        if server.stopped is not None:
            self._end(server.stopped)
        elif until.versions is not None and server.version >= until.versions:
            self._end(f"reached {until.versions} versions")
        elif until.tasks is not None and server.counts["arrived"] >= until.tasks:
            self._end(f"reached {until.tasks} client tasks")

    def _end(self, reason: str) -> None:
        if self.evaluations.last(self.now, self.server.version):
            self._evaluate(self.now)
        self.stop_reason = reason


_MEET: dict[type, Callable[..., Event]] = {
    Ready: Simulation._ready,
    Arrived: Simulation._arrived,
    Lost: Simulation._lost,
    Left: Simulation._left,
}
"""What is done before the server hears of an event, which gives the event that it hears of."""

_CARRY_OUT: dict[type, Callable[..., None]] = {
    Train: Simulation._train,
    Send: Simulation._send,
    Recall: Simulation._recall,
    Measure: Simulation._measure,
    Upload: Simulation._upload,
    Discard: Simulation._discard,
    Aggregate: Simulation._aggregate,
    Drop: Simulation._drop,
    SetTimer: Simulation._set_timer,
}
"""How a command is carried out, by its kind; the others are the server's own affair."""
