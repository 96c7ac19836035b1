"""A pool of workers: the place of each task, and recovery from the crash of a worker.

Tasks are dispatched in the order in which their results will be needed, ahead of the virtual clock, which
waits only when it reaches an arrival whose training is not done yet. A worker that crashes is replaced and
its tasks run again: a task's result is determined by its base model and its `LocalTask`, so nothing changes
but time. The pool does no IO; a port starts the workers, sends them tasks and receives what they reply.

Where workers share the memory of a GPU and it runs out, the worker that says so ends, its tasks run again,
and there is one worker less from then on. A task for which a single worker has no memory ends the run.
"""

import logging
import traceback
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Generic, NoReturn, Protocol, TypeVar
from weakref import WeakValueDictionary

from torch import Tensor

from offbeat.core.errors import OffbeatError, RunError, UsageError
from offbeat.core.events import ClientId, ClientResults, Metrics, TaskId
from offbeat.core.learner import NO_INPUTS, ClientEvaluator, Learner, LocalResult, LocalTask, TaskInputs
from offbeat.core.model import Model
from offbeat.sim.executors.out_of_memory import out_of_memory

log = logging.getLogger(__name__)

# A worker holds two tasks: the next one is there when the first ends.
AHEAD = 2
MOST_CRASHES = 3
# Due time of tasks that go before all queued ones.
AT_ONCE = -1.0

W = TypeVar("W", bound=Hashable)


@dataclass(eq=False)
class Version:
    """A model that tasks start from; `reference` is where its copy for the workers is, if there is one.

    Both live as long as a task that needs them.
    """

    model: Model
    reference: Any = None


@dataclass(eq=False)
class PoolTask:
    """A task, or without one an evaluation, with the versions and the client's state that it needs.

    An evaluation is on what a `client` holds out, or without one on the test set. `result`, or `found`, the
    evaluation's samples and metrics, is there once a worker has done it. `alone` says that the task was last
    sent when the pool had a single worker.
    """

    task: LocalTask | None
    base: Version | None
    fresh: Version | None = None
    inputs: TaskInputs = NO_INPUTS
    wanted: bool = True
    crashes: int = 0
    alone: bool = False
    result: LocalResult | None = None
    client: ClientId | None = None
    found: "Found | None" = None

    def __str__(self) -> str:
        return f"task {self.task}" if self.task else "evaluation"

    def cancel(self) -> None:
        """Free the models and inputs of the task."""
        self.wanted, self.base, self.fresh, self.inputs = False, None, None, NO_INPUTS


@dataclass(frozen=True)
class Started(Generic[W]):
    """A worker takes tasks from now on."""

    worker: W


@dataclass(frozen=True)
class Done(Generic[W]):
    """A worker has done a task; no `reply` where it was cancelled."""

    worker: W
    task: PoolTask
    reply: "LocalResult | Found | None"


@dataclass(frozen=True)
class Crashed(Generic[W]):
    """A worker has ended; `reason` says how, unless the task in training has nothing to do with it."""

    worker: W
    reason: str | None


@dataclass(frozen=True)
class OutOfMemory(Generic[W]):
    """A worker had no memory for the first of its tasks, and has ended; `told` is how its device said so."""

    worker: W
    told: str


def failure(error: Exception) -> dict[str, Any]:
    """A worker's reply about a task that failed.

    It is how a device said that its memory ran out, an error raised on purpose, or another's traceback.
    """
    if (short := out_of_memory(error)) is not None:
        return {"out_of_memory": short}
    told = error if isinstance(error, OffbeatError) else "".join(traceback.format_exception(error))
    return {"error": told}


def raise_failure(task: PoolTask, error: OffbeatError | str, worker: str) -> NoReturn:
    """Raise in this process the error that `failure` has reported of a task in a worker."""
    if isinstance(error, OffbeatError):
        raise error
    raise RunError(f"{task} failed in a {worker}:\n{error}")


def arrays(named: Mapping[str, Tensor]) -> dict[str, Any]:
    """A state's tensors as arrays: a pipe carries them without file descriptors, Ray without a copy."""
    return {name: tensor.numpy() for name, tensor in named.items()}


Found = tuple[int, Metrics]
"""Samples and metrics of an evaluation; 0 samples where it was on the test set."""


def evaluate_for(learner: Learner, model: Model, client: ClientId | None, inputs: TaskInputs) -> Found:
    """Evaluate, in a worker, on a client's held-out samples; without a client on the test set."""
    if client is None:
        return 0, dict(learner.evaluate(model))
    assert isinstance(learner, ClientEvaluator)
    samples, metrics = learner.evaluate_client(model, client, inputs)
    return samples, dict(metrics)


class Port(Protocol[W]):
    """Starts workers of one kind, and carries tasks and replies."""

    count: int

    def spawn(self) -> None:
        """Start a worker."""

    def send(self, worker: W, task: PoolTask) -> None:
        """Send a task to a worker, which does its tasks in the order in which they come."""

    def collect(self, *, block: bool) -> Sequence[Started[W] | Done[W] | Crashed[W] | OutOfMemory[W]]:
        """The events since the last call, in order; if `block`, wait until there is one.

        Raises `RunError` for a task that failed and where no worker can be had.
        """

    def close(self) -> None:
        """End the workers."""


class WorkerPool(Generic[W]):
    """An executor of `port.count` workers."""

    def __init__(self, port: Port[W]) -> None:
        self._port = port
        # The workers that there are, or that are starting.
        self._count = port.count
        # The waiting tasks by due time, then in the order of submission.
        self._waiting: list[tuple[float, int, PoolTask]] = []
        self._entered = 0
        self._tasks: dict[TaskId, PoolTask] = {}
        # The versions by the identity of the model.
        self._versions: WeakValueDictionary[int, Version] = WeakValueDictionary()
        # A strong reference, since the latest version is likely to be needed again.
        self._latest: Version | None = None
        self._workers: dict[W, list[PoolTask]] = {}
        try:
            for _ in range(port.count):
                port.spawn()
        except BaseException:
            self.close()
            raise

    # ---- the executor's interface ----

    def submit(self, task: LocalTask, base: Model, due: float, inputs: TaskInputs) -> None:
        """Queue the task and keep the workers busy."""
        fresh = self._version(inputs.fresh) if inputs.fresh else None
        entry = self._tasks[task.task] = PoolTask(task, self._version(base), fresh, inputs)
        self._enqueue(entry, due)
        self._collect(block=False)

    def result(self, task: TaskId) -> LocalResult:
        """Wait until the task is done."""
        entry = self._tasks[task]
        while entry.result is None:
            self._collect(block=True)
        del self._tasks[task]
        return entry.result

    def cancel(self, task: TaskId) -> None:
        """Do not train the task, or throw its result away."""
        if (entry := self._tasks.pop(task, None)) is not None:
            entry.cancel()

    def evaluate(self, model: Model) -> Metrics:
        """Wait for a worker to evaluate, before anything else that is queued."""
        entry = PoolTask(None, self._version(model))
        self._enqueue(entry, AT_ONCE)
        return self._found(entry)[1]

    def evaluate_clients(self, model: Model, inputs: Iterable[tuple[ClientId, TaskInputs]]) -> ClientResults:
        """Wait for the workers to evaluate, before anything else that is queued; few clients are queued."""
        results: dict[ClientId, Found] = {}
        queued: deque[tuple[ClientId, PoolTask]] = deque()
        for client, client_inputs in inputs:
            queued.append((client, PoolTask(None, self._version(model), inputs=client_inputs, client=client)))
            self._enqueue(queued[-1][1], AT_ONCE)
            if len(queued) > 2 * AHEAD * self._port.count:
                first, entry = queued.popleft()
                results[first] = self._found(entry)
        return results | {client: self._found(entry) for client, entry in queued}

    def _found(self, evaluation: PoolTask) -> Found:
        """Wait until an evaluation is done."""
        while evaluation.found is None:
            self._collect(block=True)
        return evaluation.found

    def close(self) -> None:
        """End the workers and free their tensors."""
        self._port.close()
        self._waiting, self._tasks, self._workers, self._latest = [], {}, {}, None

    # ---- dispatching and collecting ----

    def _version(self, model: Model) -> Version:
        version = self._versions.get(id(model))
        if version is None:
            version = self._versions[id(model)] = Version(model)
        self._latest = version
        return version

    def _enqueue(self, task: PoolTask, due: float) -> None:
        heappush(self._waiting, (due, self._entered, task))
        self._entered += 1

    def _collect(self, *, block: bool) -> None:
        """Take in the results of workers and give them more tasks."""
        self._dispatch()
        for event in self._port.collect(block=block):
            match event:
                case Started(worker):
                    self._workers[worker] = []
                case Done(worker, task, reply):
                    self._workers[worker].remove(task)
                    if isinstance(reply, LocalResult):
                        task.result = reply
                    else:
                        task.found = reply
                case Crashed(worker, reason):
                    self._record_crash(worker, reason)
                case OutOfMemory(worker, told):
                    self._lower(worker, told)
        self._dispatch()

    def _dispatch(self) -> None:
        """Fill the workers, the emptiest first; a task that a worker crashed of shares one with no other.

        For the reply to the task before may be lost with a worker, and the wrong task would be counted.
        """
        while self._waiting and self._workers:
            worker, held = min(self._workers.items(), key=lambda item: len(item[1]))
            task = self._waiting[0][2]
            alone = task.crashes or any(other.crashes for other in held)
            if len(held) >= (1 if alone else AHEAD):
                return
            heappop(self._waiting)
            if task.wanted:
                held.append(task)
                task.alone = self._count == 1
                self._port.send(worker, task)

    def _record_crash(self, worker: W, reason: str | None) -> None:
        """Replace the worker and run its tasks again; the task in training may have crashed it."""
        tasks = self._workers.pop(worker)
        self._port.spawn()
        for task in tasks:
            self._enqueue(task, AT_ONCE)
        if tasks and reason is not None:
            tasks[0].crashes += 1
            if tasks[0].crashes >= MOST_CRASHES:
                raise RunError(f"{tasks[0].task or 'evaluation'}: {tasks[0].crashes} {reason}")

    def _lower(self, worker: W, reason: str) -> None:
        """Train with one worker less from now on, and put the tasks of the one that has ended back.

        A single worker may have run out of memory beside one that has ended since: its task runs once more.

        Raises:
            UsageError: A single worker has no memory for the task.
        """
        tasks = self._workers.pop(worker)
        for task in tasks:
            self._enqueue(task, AT_ONCE)
        if self._count > 1:
            self._count -= 1
            log.warning(
                "there is not enough memory for %d workers (%s): %d train from now on",
                self._count + 1, reason, self._count,
            )  # fmt: skip
        elif tasks[0].alone:
            what = tasks[0].task or "an evaluation"
            raise UsageError(
                f"there is not enough memory for one worker ({reason}) at {what}: give a smaller "
                "training.batch_size or training.evaluation_batch_size, or another model"
            )
        else:
            self._port.spawn()
