"""Training on a Ray cluster: the learner's data are put there once, models once a version.

Workers are Ray actors of one CPU each. As with worker processes, tasks are handed out in the order in
which their results will be needed; a task is a few hundred bytes, a reference to its base version, and its
client's state. A version is freed with the last task that needs it. A task whose worker or node is lost
runs again on another one: its result is determined by its base model and its `LocalTask`, so nothing
changes but time. The actors belong to this process and end with it, however it ends.

Ray is imported only when it is used.
"""

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from importlib import import_module
from pickle import PicklingError
from typing import Any
from weakref import WeakValueDictionary

import torch

from offbeat.core.errors import RunError, UsageError
from offbeat.core.events import Metrics, TaskId
from offbeat.core.learner import NO_INPUTS, Learner, LocalResult, LocalTask, TaskInputs
from offbeat.core.model import Model
from offbeat.core.objective import Objective
from offbeat.sim.executors.ray_cluster import OnRay, connect, count_workers, import_ray
from offbeat.sim.executors.ray_worker import RayWorker, arrays, make_pickler, tensor, tensors
from offbeat.version import __version__

AHEAD = 2  # jobs a worker holds: one it trains, one it goes on with
MOST_DEATHS = 3
PATIENCE_SECONDS = 300.0
_EVALUATION = -1


@dataclass(eq=False)
class _PublishedVersion:
    """A model and, once a task has needed it, where it is in Ray's object store."""

    model: Model
    reference: Any = None


@dataclass(eq=False)
class _RayTask:
    """A task (or, without one, an evaluation), the model it starts from, and what else it needs."""

    id: int
    task: LocalTask | None
    base: _PublishedVersion | None
    inputs: TaskInputs = NO_INPUTS
    fresh: _PublishedVersion | None = None
    wanted: bool = True
    deaths: int = 0


@dataclass(eq=False)
class _RayActor:
    """An actor that has said hello: its process is `pid` on Ray's node `node`."""

    actor: Any
    node: str
    pid: int
    jobs: deque[_RayTask] = field(default_factory=deque)


class RayPool:
    """An executor of Ray actors. Raises `UsageError` where the cluster cannot be used."""

    def __init__(self, learner: Learner, objective: Objective, options: OnRay) -> None:
        self._ray = import_ray()
        self._errors: Any = import_module("ray.exceptions")
        self._waiting: list[tuple[float, int, _RayTask]] = []  # by due time, then first come
        self._entered = 0
        self._jobs: dict[TaskId, _RayTask] = {}
        self._results: dict[TaskId, LocalResult] = {}
        self._evaluation: Metrics | None = None
        self._versions: WeakValueDictionary[int, _PublishedVersion] = (
            WeakValueDictionary()
        )  # by the model's identity
        self._latest: _PublishedVersion | None = None  # is likely to be needed again
        self._starting: dict[Any, Any] = {}  # actors by the reference of their hello
        self._workers: list[_RayActor] = []
        self._running: dict[Any, tuple[_RayActor, _RayTask]] = {}  # by the reference of their result
        self._failed_starts = 0
        packed = _packed(learner, objective)
        self._connected = connect(self._ray, options.address)
        try:
            self._count = count_workers(self._ray, options)
            self._packed = self._ray.put(packed)
            self._actor = self._ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(RayWorker)
            for _ in range(self._count):
                self._hire()
        except BaseException:
            self.close()
            raise

    # ---- the executor's interface ----

    def submit(self, task: LocalTask, base: Model, due: float, inputs: TaskInputs) -> None:
        """Queue the task and keep the workers busy."""
        fresh = self._version(inputs.fresh) if inputs.fresh else None
        job = _RayTask(task.task, task, self._version(base), inputs, fresh)
        self._jobs[job.id] = job
        self._queue(job, due)
        self._collect(block=False)

    def result(self, task: TaskId) -> LocalResult:
        """Wait until the task is done."""
        while task not in self._results:
            self._collect(block=True)
        self._jobs.pop(task)
        return self._results.pop(task)

    def cancel(self, task: TaskId) -> None:
        """Do not train the task, or throw its result away."""
        job = self._jobs.pop(task, None)
        if job is not None:
            job.wanted, job.base, job.fresh, job.inputs = (
                False,
                None,
                None,
                NO_INPUTS,
            )  # what it holds is freed
        self._results.pop(task, None)

    def evaluate(self, model: Model) -> Metrics:
        """Wait for a worker to evaluate, before anything else that is queued."""
        self._evaluation = None
        self._queue(_RayTask(_EVALUATION, None, self._version(model)), -1.0)
        while self._evaluation is None:
            self._collect(block=True)
        return self._evaluation

    def close(self) -> None:
        """End the workers and let go of what is in the object store."""
        for actor in (*self._starting.values(), *(worker.actor for worker in self._workers)):
            self._end(actor)
        self._starting, self._workers, self._running = {}, [], {}
        self._waiting, self._jobs, self._latest = [], {}, None
        self._packed = None
        if self._connected:
            self._connected = False
            self._ray.shutdown()

    # ---- handing out and collecting ----

    def _version(self, model: Model) -> _PublishedVersion:
        """The version a model is; it and its copy on Ray live as long as a job that needs them."""
        version = self._versions.get(id(model))
        if version is None:
            version = self._versions[id(model)] = _PublishedVersion(model)
        self._latest = version
        return version

    def _reference(self, version: _PublishedVersion | None) -> Any:
        """Where a version is on Ray; put there at its first use."""
        if version is None:
            return None
        if version.reference is None:
            model = version.model
            vectors = (model.values.numpy(), model.integers.numpy(), model.shared.numpy())
            version.reference = self._ray.put((model.layout, *vectors))
        return version.reference

    def _queue(self, job: _RayTask, due: float) -> None:
        heappush(self._waiting, (due, self._entered, job))
        self._entered += 1

    def _collect(self, *, block: bool) -> None:
        """Take in what workers have done and give them more."""
        self._hand_out()
        references = [*self._starting, *self._running]
        number, seconds = (1, PATIENCE_SECONDS) if block else (len(references), 0)
        ready, _ = self._ray.wait(references, num_returns=number, timeout=seconds) if references else ([], 0)
        if block and not ready and not self._workers:
            raise RunError(
                f"no worker has started on the Ray cluster for {seconds:g} seconds: its CPUs are taken or "
                "its nodes are gone (see `ray status`); a run with a directory can be resumed"
            )
        for reference in ready:
            if reference in self._starting:
                self._welcome(self._starting.pop(reference), reference)
            elif reference in self._running:  # and its worker was not lost a moment ago
                self._take_in(reference)
        self._hand_out()

    def _hand_out(self) -> None:
        """Fill the workers, the emptiest first; a job that a worker died of goes to one that holds no other.

        For the answer to the job before may die with a worker, and then the wrong one would be blamed.
        """
        while self._waiting and self._workers:
            worker = min(self._workers, key=lambda w: len(w.jobs))
            job = self._waiting[0][2]
            alone = job.deaths or any(held.deaths for held in worker.jobs)
            if len(worker.jobs) >= (1 if alone else AHEAD):
                return
            heappop(self._waiting)
            if job.wanted:
                self._assign(worker, job)

    def _assign(self, worker: _RayActor, job: _RayTask) -> None:
        state, base = arrays(job.inputs.state), self._reference(job.base)
        reference = worker.actor.work.remote(job.task, base, self._reference(job.fresh), state)
        worker.jobs.append(job)
        self._running[reference] = (worker, job)

    def _take_in(self, reference: Any) -> None:
        """A job is over, or its worker is."""
        worker, job = self._running[reference]
        what = f"task {job.task}" if job.task else "evaluation"
        try:
            reply = self._ray.get(reference)
        except self._errors.RayTaskError as error:
            raise RunError(f"{what} could not be taken to a Ray worker and back:\n{error}") from None
        except self._errors.RayError as error:
            self._replace(worker, error)
            return
        del self._running[reference]
        worker.jobs.remove(job)
        if "error" in reply:
            raise RunError(f"{what} failed in a Ray worker (node {worker.node}):\n{reply['error']}")
        if job.task is None:
            self._evaluation = reply["metrics"]
        elif job.wanted:
            self._results[job.id] = _result(reply)

    # ---- actors ----

    def _hire(self) -> None:
        actor = self._actor.remote()
        self._starting[actor.hello.remote(self._packed)] = actor

    def _welcome(self, actor: Any, reference: Any) -> None:
        """An actor has started, or failed to."""
        try:
            reply = self._ray.get(reference)
        except self._errors.RayTaskError as error:
            raise RunError(f"a Ray worker cannot load Offbeat or the learner:\n{error}") from None
        except self._errors.RayError as error:
            self._failed_starts += 1
            if self._failed_starts >= MOST_DEATHS * self._count:  # a lost node may take many at once
                raise RunError(
                    f"{self._failed_starts} workers in turn could not start on Ray; the last:\n{error}"
                ) from None
            self._end(actor)
            self._hire()
            return
        self._failed_starts = 0
        here = {"Offbeat": __version__, "PyTorch": torch.__version__}
        if "error" in reply:
            raise RunError(f"Ray node {reply['node']} cannot train with this learner:\n{reply['error']}")
        if reply["versions"] != here:
            raise RunError(
                f"Ray node {reply['node']} has {reply['versions']}, this process {here}: results would "
                "depend on where a task runs; install the same versions on all nodes"
            )
        self._workers.append(_RayActor(actor, reply["node"], reply["pid"]))

    def _replace(self, dead: _RayActor, error: Exception) -> None:
        """A worker is lost: ask Ray for another and run its jobs again."""
        self._workers.remove(dead)
        self._running = {r: (w, job) for r, (w, job) in self._running.items() if w is not dead}
        self._end(dead.actor)
        self._hire()
        for job in dead.jobs:
            self._queue(job, -1.0)
        if dead.jobs and any(n["NodeID"] == dead.node and n["Alive"] for n in self._ray.nodes()):
            self._blame(dead.jobs[0], error)  # the node lives: the job at hand may be what it died of

    def _blame(self, job: _RayTask, error: Exception) -> None:
        job.deaths += 1
        if job.deaths >= MOST_DEATHS:
            raise RunError(
                f"{job.task or 'evaluation'}: {job.deaths} Ray workers died of it; the last:\n{error}"
            )

    def _end(self, actor: Any) -> None:
        with suppress(self._errors.RayError):
            self._ray.kill(actor)


def _result(reply: dict[str, Any]) -> LocalResult:
    """A training's result, copied: what Ray holds of it is then freed."""
    shared = None if reply["shared"] is None else tensor(reply["shared"])
    delta, integers = tensor(reply["delta"]), tensor(reply["integers"])
    return LocalResult(delta, integers, reply["metrics"], reply["lr"], shared, tensors(reply["state"]))


def _packed(learner: Learner, objective: Objective) -> tuple[bytes, list[Any]]:
    """Learner and objective as bytes, and apart from them the data's arrays, which a node's workers share."""
    try:
        return make_pickler(import_module("ray.cloudpickle").Pickler)((learner, objective))
    except (PicklingError, AttributeError, TypeError) as error:
        raise UsageError(f"executor ray needs a learner that can be pickled: {error}") from None
