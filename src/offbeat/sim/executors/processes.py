"""Worker processes: tasks run ahead on several single-threaded processes.

The virtual clock waits only when it reaches an arrival whose training is not done yet. Until then
tasks are handed out in the order in which their results will be needed. Models travel in shared
memory, each version written once however many tasks start from it; a task itself is a few hundred
bytes. A worker that dies is replaced and its tasks run again: a task's result is determined by its
base model and its `LocalTask`, so nothing changes but time.
"""

import os
import signal
import traceback
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from multiprocessing.connection import Connection, wait
from pickle import PicklingError
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from offbeat.core.errors import RunError, UsageError
from offbeat.core.events import Metrics, TaskId
from offbeat.core.learner import NO_INPUTS, Learner, LocalResult, LocalTask, TaskInputs
from offbeat.core.model import Layout, Model
from offbeat.core.objective import Objective
from offbeat.sim.executors.shared_memory import Block
from offbeat.sim.executors.start_method import adopt_environment, spawn_context, worker_context

AHEAD = 2  # jobs a worker holds: one it trains, one it goes on with
MOST_DEATHS = 3
_EVALUATION = -1


@dataclass
class _PoolTask:
    """A task (or, without one, an evaluation), the model it starts from, and what else it needs."""

    id: int
    task: LocalTask | None
    base: Model
    inputs: TaskInputs = NO_INPUTS
    wanted: bool = True
    deaths: int = 0
    result: Block | None = None


@dataclass
class _PoolWorker:
    process: Any
    connection: Connection
    jobs: deque[_PoolTask] = field(default_factory=deque)
    layout: Layout | None = None  # the one it was told last


class ProcessPool:
    """An executor of `count` worker processes."""

    def __init__(self, learner: Learner, objective: Objective, count: int) -> None:
        self._learner, self._objective = learner, objective
        self._context = worker_context()
        self._waiting: list[tuple[float, int, _PoolTask]] = []  # by due time, then first come
        self._entered = 0
        self._jobs: dict[TaskId, _PoolTask] = {}
        self._results: dict[TaskId, LocalResult] = {}
        self._evaluation: Metrics | None = None
        self._free: list[Block] = []
        self._bases: dict[int, tuple[Block, Model, int]] = {}  # by the model's identity, with a use count
        self._layout: Layout | None = None
        self._workers: list[_PoolWorker] = []
        try:
            for _ in range(count):
                self._workers.append(self._hire())
        except (PicklingError, AttributeError, TypeError) as error:
            self.close()
            raise UsageError(f"workers = {count} needs a learner that can be pickled: {error}") from None

    # ---- the executor's interface ----

    def submit(self, task: LocalTask, base: Model, due: float, inputs: TaskInputs) -> None:
        """Queue the task and keep the workers busy."""
        job = _PoolTask(task.task, task, base, inputs)
        self._jobs[job.id] = job
        self._enter(job, due)

    def result(self, task: TaskId) -> LocalResult:
        """Wait until the task is done."""
        while task not in self._results:
            self._collect()
        self._jobs.pop(task)
        return self._results.pop(task)

    def cancel(self, task: TaskId) -> None:
        """Do not train the task, or throw its result away."""
        job = self._jobs.pop(task, None)
        if job is not None:
            job.wanted = False
        self._results.pop(task, None)

    def evaluate(self, model: Model) -> Metrics:
        """Wait for a worker to evaluate, before anything else that is queued."""
        self._evaluation = None
        self._enter(_PoolTask(_EVALUATION, None, model), due=-1.0)
        while self._evaluation is None:
            self._collect()
        return self._evaluation

    def close(self) -> None:
        """End the workers and free the shared memory."""
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()
            for job in worker.jobs:
                if job.result is not None:
                    job.result.close()
        for block in (*self._free, *(block for block, _, _ in self._bases.values())):
            block.close()
        self._workers, self._free, self._bases = [], [], {}

    # ---- handing out and collecting ----

    def _enter(self, job: _PoolTask, due: float) -> None:
        self._layout = job.base.layout
        self._queue(job, due)
        self._hand_out()

    def _queue(self, job: _PoolTask, due: float) -> None:
        heappush(self._waiting, (due, self._entered, job))
        self._entered += 1

    def _collect(self) -> None:
        """Wait until a worker has done something, take it in and give more."""
        self._hand_out()
        connections = {w.connection: w for w in self._workers if w.jobs}
        for connection in wait(list(connections)):
            worker = connections[connection]  # type: ignore[index]
            try:
                reply = worker.connection.recv()
            except (EOFError, ConnectionError):
                self._replace(worker)
            else:
                self._take_in(worker.jobs.popleft(), reply)
        self._hand_out()

    def _hand_out(self) -> None:
        """Fill the workers, the emptiest first."""
        while self._waiting:
            worker = min(self._workers, key=lambda w: len(w.jobs))
            if len(worker.jobs) >= AHEAD:
                return
            job = heappop(self._waiting)[2]
            if job.wanted:
                self._assign(worker, job)

    def _assign(self, worker: _PoolWorker, job: _PoolTask) -> None:
        assert self._layout is not None
        worker.jobs.append(job)  # first: whatever happens, what it holds is let go with the worker's
        job.result = self._free.pop() if self._free else Block(self._layout)
        fresh = self._share(job.inputs.fresh) if job.inputs.fresh else None
        state = _arrays(job.inputs.state)
        layout = None if worker.layout is self._layout else self._layout
        message = (job.task, self._share(job.base), fresh, state, job.result.name, layout)
        worker.layout = self._layout
        try:
            worker.connection.send(message)
        except ConnectionError:
            self._replace(worker)

    def _take_in(self, job: _PoolTask, reply: Mapping[str, Any]) -> None:
        assert job.result is not None
        if "error" in reply:
            self._release(job)
            what = f"task {job.task}" if job.task else "evaluation"
            raise RunError(f"{what} failed in a worker process:\n{reply['error']}")
        if job.task is None:
            self._evaluation = reply["metrics"]
        elif job.wanted:
            out = job.result
            shared = out.shared.clone() if reply["shared"] else None
            self._results[job.id] = LocalResult(
                out.values.clone(), out.integers.clone(), reply["metrics"], reply["lr"], shared,
                _tensors(reply["state"]),
            )  # fmt: skip
        self._release(job)

    def _share(self, model: Model) -> str:
        """The block that holds a model; a new one is written at its first use."""
        block, _, uses = self._bases.get(id(model), (None, model, 0))
        if block is None:
            block = self._free.pop() if self._free else Block(model.layout)
            block.write(model.values, model.integers, model.shared)
        self._bases[id(model)] = (block, model, uses + 1)
        return block.name

    def _release(self, job: _PoolTask) -> None:
        """The job's blocks can serve again."""
        assert job.result is not None
        self._free.append(job.result)
        job.result = None
        for used in (job.base, job.inputs.fresh):
            if used is None:
                continue
            block, model, uses = self._bases[id(used)]
            if uses > 1:
                self._bases[id(model)] = (block, model, uses - 1)
            else:
                del self._bases[id(model)]
                self._free.append(block)

    # ---- processes ----

    def _hire(self) -> _PoolWorker:
        ours, theirs = self._context.Pipe()
        arguments = (dict(os.environ), theirs, self._learner, self._objective)
        process = self._context.Process(target=_work, args=arguments, daemon=True, name="offbeat-worker")
        try:
            process.start()
        except ValueError:  # a fork server passes at most 252 file descriptors, one for each tensor
            self._context = spawn_context()
            process = self._context.Process(target=_work, args=arguments, daemon=True, name="offbeat-worker")
            process.start()
        theirs.close()
        return _PoolWorker(process, ours)

    def _replace(self, dead: _PoolWorker) -> None:
        """A worker died: hire another and run its jobs again."""
        dead.process.join()
        dead.connection.close()
        jobs = list(dead.jobs)
        self._workers[self._workers.index(dead)] = self._hire()
        for job in jobs:
            self._release(job)
            self._queue(job, -1.0)
        if jobs:
            self._blame(jobs[0], dead.process.exitcode)

    def _blame(self, job: _PoolTask, code: int | None) -> None:
        """The job at hand may be what the worker died of."""
        job.deaths += 1
        if job.deaths >= MOST_DEATHS:
            raise RunError(
                f"{job.task or 'evaluation'}: {job.deaths} workers died of it (last exit code {code}); "
                "a script that simulates with workers must do so under `if __name__ == '__main__':`"
            )


def _work(
    environment: Mapping[str, str], connection: Connection, learner: Learner, objective: Objective
) -> None:
    """What a worker process does until its connection closes."""
    adopt_environment(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption means
    torch.set_num_threads(1)
    inbox: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_listen, args=(connection, inbox), daemon=True).start()
    blocks: dict[str, Block] = {}
    layout: Layout | None = None
    while True:
        message = inbox.get()
        task, base_name, fresh_name, state, result_name, told = message
        layout = told or layout
        assert layout is not None
        for name in (base_name, result_name, fresh_name):
            if name is not None and name not in blocks:
                blocks[name] = Block(layout, name)
        base = _model(layout, blocks[base_name])
        fresh = _model(layout, blocks[fresh_name]) if fresh_name is not None else None
        inputs = TaskInputs(_tensors(state), fresh)
        connection.send(_answer(learner, objective, task, base, inputs, blocks[result_name]))


def _listen(connection: Connection, inbox: SimpleQueue[Any]) -> None:
    """Receive what the parent sends, also while the worker sends; end this process with the parent.

    A client's state may be longer than a pipe holds: were both to send one, each would wait for the other to
    read, for good.
    """
    try:
        while True:
            inbox.put(connection.recv())
    except (EOFError, ConnectionError):
        os._exit(1)  # nobody waits for the task in training


def _model(layout: Layout, block: Block) -> Model:
    return Model(layout, block.values, block.integers, block.shared)


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Tensors as arrays, which a pipe carries without file descriptors."""
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _tensors(arrays: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _answer(
    learner: Learner,
    objective: Objective,
    task: LocalTask | None,
    base: Model,
    inputs: TaskInputs,
    out: Block,
) -> dict[str, Any]:
    try:
        if task is None:
            return {"metrics": dict(learner.evaluate(base))}
        result = learner.train(base, task, objective, inputs)
        out.write(result.delta, result.integers, out.shared if result.shared is None else result.shared)
        return {
            "metrics": dict(result.metrics),
            "lr": result.lr,
            "shared": result.shared is not None,
            "state": _arrays(result.state),
        }
    except Exception:
        return {"error": traceback.format_exc()}
