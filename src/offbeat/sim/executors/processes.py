"""Worker processes: a pool of single-threaded processes on this machine.

Models travel in shared memory, each version written once for the tasks that are with the workers at the same
time; a task itself is a few hundred bytes. Where the learner trains on a GPU, each worker has its own memory
there: models are copied from it to shared memory and back.
"""

import os
import signal
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pickle import PicklingError
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from offbeat.core.errors import OffbeatError, UsageError
from offbeat.core.layout import Layout
from offbeat.core.learner import Learner, LocalResult, TaskInputs
from offbeat.core.model import Model
from offbeat.core.objective import Objective
from offbeat.sim.executors.by_value import Deferred, main_hidden
from offbeat.sim.executors.shared_memory import Block
from offbeat.sim.executors.start_method import (
    NEEDS_GUARD,
    UNGUARDED,
    adopt_environment,
    spawn_context,
    worker_context,
)
from offbeat.sim.executors.worker_log import Line, WorkerLog, log_lines
from offbeat.sim.executors.worker_pool import (
    Crashed,
    Done,
    OutOfMemory,
    PoolTask,
    Started,
    Version,
    WorkerPool,
    arrays,
    evaluate_for,
    failure,
    raise_failure,
)

_UNPICKLABLE = PicklingError, AttributeError, TypeError, RuntimeError, NotImplementedError, RecursionError


@dataclass(frozen=True)
class _Sent:
    """A task at a worker and the shared memory it uses: the versions it reads, the block of its result."""

    task: PoolTask
    versions: tuple[Version, ...]
    result: Block


@dataclass(eq=False)
class _Worker:
    process: Any
    connection: Connection
    sent: deque[_Sent] = field(default_factory=deque)
    # The layout that was sent to the worker last.
    layout: Layout | None = None


_Event = Started[_Worker] | Done[_Worker] | Crashed[_Worker] | OutOfMemory[_Worker]


class ProcessPool(WorkerPool[_Worker]):
    """An executor of `count` worker processes."""

    def __init__(self, learner: Learner, objective: Objective, count: int) -> None:
        try:
            super().__init__(_ProcessPort(learner, objective, count))
        except OffbeatError:
            raise
        except _UNPICKLABLE as error:
            raise UsageError(
                f"workers = {count} needs a learner that can be pickled ({' '.join(str(error).split())}): "
                "give a function that makes the module, and define it, the data and all functions at the top "
                "of a file, without lambdas and open files; or give workers = 0"
            ) from None


class _ProcessPort:
    def __init__(self, learner: Learner, objective: Objective, count: int) -> None:
        self.count = count
        self._learner, self._objective = learner, objective
        self._context = worker_context()
        # Workers started since the last `collect`.
        self._started: list[_Worker] = []
        # The workers by their connection.
        self._workers: dict[Any, _Worker] = {}
        self._blocks: list[Block] = []
        self._free: list[Block] = []
        self._logged = set[Line]()
        # Tasks at workers, by the version that they read.
        self._uses: Counter[Version] = Counter()

    def spawn(self) -> None:
        ours, theirs = self._context.Pipe()
        arguments = dict(os.environ), theirs, Deferred((self._learner, self._objective))
        process = self._context.Process(target=_work, args=arguments, daemon=True)
        with main_hidden():
            try:
                process.start()
            except ValueError:
                # A fork server passes at most 252 file descriptors, one for each tensor.
                self._context = spawn_context()
                process = self._context.Process(target=_work, args=arguments, daemon=True)
                process.start()
        theirs.close()
        worker = self._workers[ours] = _Worker(process, ours)
        self._started.append(worker)

    def send(self, worker: _Worker, task: PoolTask) -> None:
        assert task.base is not None
        layout, fresh = task.base.model.layout, task.fresh
        versions = (task.base,) if fresh is None else (task.base, fresh)
        names = [self._share(version).name for version in versions]
        sent = _Sent(task, versions, self._block(layout))
        worker.sent.append(sent)
        told, worker.layout = worker.layout, layout
        new_layout = None if told is layout else layout
        message = (task.task, task.client, names, arrays(task.inputs.state), sent.result.name, new_layout)
        # A worker that has ended is found by `collect`.
        with suppress(ConnectionError):
            worker.connection.send(message)

    def collect(self, *, block: bool) -> list[_Event]:
        events: list[Any] = [Started(worker) for worker in self._started]
        self._started = []
        busy = [worker.connection for worker in self._workers.values() if worker.sent]
        for connection in wait(busy, None if block and not events else 0):
            worker = self._workers[connection]
            try:
                reply = worker.connection.recv()
            except (EOFError, ConnectionError):
                events.append(self._crashed(worker))
            else:
                log_lines(reply.get("logged", ()), self._logged)
                short = reply.get("out_of_memory")
                events.append(self._done(worker, reply) if short is None else self._ended(worker, short))
        return events

    def close(self) -> None:
        for worker in self._workers.values():
            worker.process.terminate()
        for worker in self._workers.values():
            worker.process.join()
            worker.connection.close()
        for block in self._blocks:
            block.close()
        self._workers, self._blocks, self._free = {}, [], []

    def _done(self, worker: _Worker, reply: Mapping[str, Any]) -> Done[_Worker]:
        sent = worker.sent.popleft()
        task, out = sent.task, sent.result
        if "error" in reply:
            raise_failure(task, reply["error"], "worker process")
        result = None
        if task.task is None:
            result = reply["found"]
        elif task.wanted:
            there = sent.versions[0].model.values.device
            vectors = (out.values, out.integers, out.shared)
            values, integers, shared = (vector.to(there, copy=True) for vector in vectors)
            result = LocalResult(
                values, integers, reply["metrics"], reply["lr"], shared if reply["shared"] else None,
                _tensors(reply["state"]),
            )  # fmt: skip
        self._release(sent)
        return Done(worker, task, result)

    def _ended(self, worker: _Worker, told: str) -> OutOfMemory[_Worker]:
        """End a worker, which frees all that it holds on its device."""
        worker.process.terminate()
        self._forget(worker)
        return OutOfMemory(worker, told)

    def _forget(self, worker: _Worker) -> None:
        """Wait for the end of a worker, and take back its shared memory."""
        worker.process.join()
        worker.connection.close()
        del self._workers[worker.connection]
        for sent in worker.sent:
            self._release(sent)

    def _crashed(self, worker: _Worker) -> Crashed[_Worker]:
        self._forget(worker)
        code = worker.process.exitcode
        if code == UNGUARDED:
            raise UsageError(NEEDS_GUARD) from None
        why = "is there enough memory?" if code == -signal.SIGKILL else "what they wrote before may say why"
        return Crashed(worker, f"workers died of it (last exit code {code}): {why}")

    # ---- shared memory ----

    def _block(self, layout: Layout) -> Block:
        if not self._free:
            self._blocks.append(Block(layout))
            return self._blocks[-1]
        return self._free.pop()

    def _share(self, version: Version) -> Block:
        """The block that holds a version; it is written when no other task at a worker reads it."""
        if not self._uses[version]:
            model = version.model
            block = self._block(model.layout)
            block.write(model.values, model.integers, model.shared)
            version.reference = block
        self._uses[version] += 1
        return version.reference  # type: ignore[no-any-return]

    def _release(self, sent: _Sent) -> None:
        self._free.append(sent.result)
        for version in sent.versions:
            self._uses[version] -= 1
            if not self._uses[version]:
                del self._uses[version]
                self._free.append(version.reference)


# ---- in the worker ----


def _work(environment: Mapping[str, str], connection: Connection, training: Deferred) -> None:
    """Do the tasks that arrive, until the connection closes; `training` are the learner and the objective."""
    adopt_environment(environment)
    # The parent decides what an interruption means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    logged = WorkerLog()
    inbox: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_listen, args=(connection, inbox), daemon=True).start()
    try:
        learner, objective = training.get()
    except Exception as error:
        inbox.get()
        connection.send(failure(_not_there(error)))
        return
    blocks: dict[str, Block] = {}
    layout: Layout | None = None
    while True:
        task, client, names, state, result_name, new_layout = inbox.get()
        layout = new_layout or layout
        assert layout is not None
        for name in (*names, result_name):
            if name not in blocks:
                blocks[name] = Block(layout, name)
        read = (blocks[name] for name in names)
        base, *fresh = (Model(layout, block.values, block.integers, block.shared) for block in read)
        out, reply, inputs = blocks[result_name], dict[str, Any](), TaskInputs(_tensors(state), *fresh)
        try:
            if task is None:
                reply["found"] = evaluate_for(learner, base, client, inputs)
            else:
                result = learner.train(base, task, objective, inputs)
                shared = out.shared if result.shared is None else result.shared
                out.write(result.delta, result.integers, shared)
                reply |= {"metrics": dict(result.metrics), "lr": result.lr, "state": arrays(result.state)}
                reply["shared"] = result.shared is not None
        except Exception as error:
            reply = failure(error)
        connection.send(reply | {"logged": logged.take()})


def _not_there(error: Exception) -> UsageError:
    """The error of a learner that cannot be made in a worker."""
    told = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return UsageError(
        f"a worker process cannot load the learner ({told}): what it is made of must be at the top of a file "
        "that can be imported, outside of `if __name__ == '__main__':`; or give workers = 0"
    )


def _listen(connection: Connection, inbox: SimpleQueue[Any]) -> None:
    """Receive messages of the parent, also while the worker sends; end this process with the parent.

    A client's state may be longer than a pipe holds: were both to send one, each would wait for the other to
    read, for good.
    """
    try:
        while True:
            inbox.put(connection.recv())
    except (EOFError, ConnectionError):
        # No process waits for the task in training.
        os._exit(1)


def _tensors(named: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in named.items()}
