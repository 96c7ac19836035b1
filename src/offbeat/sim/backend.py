"""What the simulator does with tensors: train, hold, aggregate. And what it does without them.

`LiveBackend` does the work. `ReplayBackend` stands in for it while a run is brought back from its journal:
the same events happen in the same order, while metrics come from the record and no tensor is touched.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from msgspec.structs import replace

from offbeat.core.algorithm import Task
from offbeat.core.buffers import Finalizer, unchanged
from offbeat.core.codec import Codec
from offbeat.core.commands import Aggregate, Discard, Send, Train, Upload
from offbeat.core.errors import RunError, UsageError
from offbeat.core.events import Metrics, TaskId
from offbeat.core.global_model import GlobalModel
from offbeat.core.journal import Row, expand
from offbeat.core.learner import LocalResult, LocalTask, TaskInputs
from offbeat.core.model import Model
from offbeat.core.streams import Purpose, stream
from offbeat.runs.client_states import ClientStates
from offbeat.runs.schema import Metric
from offbeat.sim.executors.base import Executor
from offbeat.vectors.heap import HeapTrimmer


class TensorBackend(Protocol):
    """The tensor side of a simulation."""

    def dispatch(self, command: Train) -> None:
        """A task starts from the current version."""

    def send(self, command: Send) -> None:
        """A task is sent the current version to merge."""

    def submit(self, task: LocalTask, due: float) -> None:
        """All that determines a task is known, and when its update is due; both may yet change."""

    def prepare(self, task: TaskId) -> Metrics:
        """The task is done and its client holds the update: its metrics, with its "norm"."""

    def discard(self, command: Discard) -> None:
        """A client does not send the update it holds."""

    def finish(self, task: TaskId, upload: Upload | None) -> Metrics:
        """The task's update is due, as its codec makes it: its metrics. Waits for the training."""

    def hold(self, task: Task) -> None:
        """The server has taken the finished task's update in."""

    def lose(self, task: TaskId) -> None:
        """A task came to nothing."""

    def drop(self, task: TaskId) -> None:
        """A held update is not used."""

    def aggregate(self, command: Aggregate) -> None:
        """Make the next version."""

    def evaluate(self, version: int) -> Metrics:
        """Measure the current version."""


class LiveBackend:
    """Trains on an executor and aggregates into a global model, which `complete` makes fit to be judged."""

    def __init__(
        self,
        tensors: GlobalModel,
        executor: Executor,
        clients: ClientStates,
        codec: Codec | None,
        seed: int,
        complete: Finalizer = unchanged,
    ) -> None:
        self.tensors, self.clients = tensors, clients
        self._complete = complete
        self._executor, self._codec, self._seed = executor, codec, seed
        self._finished: dict[TaskId, LocalResult] = {}
        self._submitted: set[TaskId] = set()
        self._evaluated: tuple[int, Metrics] | None = None
        self._gaps = HeapTrimmer()

    def dispatch(self, command: Train) -> None:
        """Keep the version it starts from."""
        self.tensors.dispatch(command.task)

    def send(self, command: Send) -> None:
        """Keep the version it is sent."""
        self.tensors.send(command.task)

    def submit(self, task: LocalTask, due: float) -> None:
        """Let the executor train it; one that was submitted otherwise before is trained anew."""
        if task.task in self._submitted:
            self._executor.cancel(task.task)
        self._submitted.add(task.task)
        _, base = self.tensors.bases[task.task]
        _, fresh = self.tensors.fresh.get(task.task, (0, None))
        self._executor.submit(task, base, due, TaskInputs(self.clients.get(task.client), fresh))

    def finish(self, task: TaskId, upload: Upload | None) -> Metrics:
        """Wait for the executor; let the update go through the codec."""
        result = self._result(task)
        if self._codec is not None:
            result = self._finished[task] = self._coded(task, result, upload.bits if upload else None)
        return result.metrics

    def _coded(self, task: TaskId, result: LocalResult, bits: int | None) -> LocalResult:
        """What arrives of an update, and as metric "bits" what it took, with what goes along as it is."""
        assert self._codec is not None
        generator = stream(self._seed, Purpose.CODEC, task=task)
        try:
            delta, charged = self._codec.apply(result.delta, bits, generator)
        except UsageError:
            if bool(result.delta.isfinite().all()):
                raise
            raise RunError(
                f"the update of task {task} has infinities or NaN, which no codec can encode: its training "
                "has diverged; give a smaller learning rate"
            ) from None
        layout = self.tensors.model.layout
        total = charged + 64 * layout.integers + 32 * layout.shared
        return replace(result, delta=delta, metrics={**result.metrics, "bits": total})

    def prepare(self, task: TaskId) -> Metrics:
        """Wait for the executor, and measure the change of the parameters."""
        result = self._result(task)
        norm = float(result.delta[: self.tensors.model.layout.parameters].norm())
        return {**result.metrics, "norm": norm}

    def discard(self, command: Discard) -> None:
        """A client that keeps state has trained all the same: its state stays."""
        if command.task in self._finished or command.task in self._submitted:
            self.clients.put(command.client, self._result(command.task).state)
        self.lose(command.task)

    def _result(self, task: TaskId) -> LocalResult:
        if task not in self._finished:
            self._finished[task] = self._executor.result(task)
            self._submitted.discard(task)
        return self._finished[task]

    def hold(self, task: Task) -> None:
        """Give the update to the global model."""
        result = self._finished.pop(task.id)
        self.tensors.arrive(task, result)
        self.clients.put(task.client, result.state)

    def lose(self, task: TaskId) -> None:
        """Free what the task held."""
        self.tensors.lose(task)
        self._finished.pop(task, None)
        if task in self._submitted:
            self._submitted.discard(task)
            self._executor.cancel(task)

    def drop(self, task: TaskId) -> None:
        """Free the update."""
        self.tensors.drop(task)

    def aggregate(self, command: Aggregate) -> None:
        """Apply the updates."""
        self.tensors.aggregate(command)
        self._gaps.after(self.tensors.model.values.nbytes)

    def evaluate(self, version: int) -> Metrics:
        """Evaluate, once a version."""
        if self._evaluated is None or self._evaluated[0] != version:
            self._evaluated = (version, self._executor.evaluate(self.completed()))
        return self._evaluated[1]

    def completed(self) -> Model:
        """The current version, complete."""
        return self._complete(self.tensors.model)


class ReplayBackend:
    """Answers from a journal, row by row, and checks that history repeats itself."""

    def __init__(self, rows: Iterator[Row], evaluations: Sequence[Metric]) -> None:
        self._rows = rows
        self._evaluations = evaluations
        self._by_version = {m.version: m for m in evaluations}
        self._next: Row | None = None

    def _peek(self) -> Row | None:
        if self._next is None:
            self._next = next(self._rows, None)
        return self._next

    def row(self, row: Row) -> None:
        """The simulation writes `row`: what it stands for must be recorded next."""
        for given in expand(row):
            recorded, self._next = self._peek(), None
            if recorded != given:
                raise RunError(
                    f"the run cannot be brought back: it now gives {given}, the journal has {recorded}. "
                    "Use the version of Offbeat and the configuration it was started with"
                )

    def metric(self, metric: Metric) -> None:
        """The simulation evaluates: it must have done so at the same moment."""
        recorded = self._evaluations[metric.seq] if metric.seq < len(self._evaluations) else None
        if recorded is None or recorded[:6] != metric[:6]:
            raise RunError(
                f"the run cannot be brought back: it now evaluates at {metric}, the record has {recorded}. "
                "Use the version of Offbeat and the configuration it was started with"
            )

    def dispatch(self, command: Train) -> None:
        """Nothing to do."""

    def send(self, command: Send) -> None:
        """Nothing to do."""

    def submit(self, task: LocalTask, due: float) -> None:
        """Nothing to do: what is still in training at the end is submitted then."""

    def discard(self, command: Discard) -> None:
        """Nothing to do."""

    def prepare(self, task: TaskId) -> Metrics:
        """The recorded metrics."""
        return self._recorded(task, "ready")

    def finish(self, task: TaskId, upload: Upload | None) -> Metrics:
        """The recorded metrics."""
        return self._recorded(task, "arrived")

    def _recorded(self, task: TaskId, name: str) -> Metrics:
        row = self._peek()
        if row is None or row.name != name or row.task != task:
            raise RunError(
                f"the run cannot be brought back: task {task} is {name} now, the journal has {row}"
            )
        return {k: v for k, v in (row.data or {}).items() if k != "seconds"}

    def hold(self, task: Task) -> None:
        """Nothing to do."""

    def lose(self, task: TaskId) -> None:
        """Nothing to do."""

    def drop(self, task: TaskId) -> None:
        """Nothing to do."""

    def aggregate(self, command: Aggregate) -> None:
        """Nothing to do."""

    def evaluate(self, version: int) -> Metrics:
        """The recorded evaluation."""
        metric = self._by_version.get(version)
        if metric is None:
            raise RunError(
                f"the run cannot be brought back: it now evaluates version {version}, which the record does "
                "not. Use the version of Offbeat and the configuration it was started with"
            )
        named = {"loss": metric.loss, "accuracy": metric.accuracy}
        return {k: v for k, v in named.items() if v is not None} | (metric.data or {})
