"""A pool of Ray actors of one CPU each: the learner's data are put there once, models once a version.

A task is a few hundred bytes, a reference to its base version, and its client's state. A task whose worker or
node is lost runs again on another one. The actors belong to this process and end with it, however it ends.
"""

from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pickle import PicklingError
from typing import Any

import torch

from offbeat.core.errors import RunError, UsageError
from offbeat.core.learner import Learner, LocalResult
from offbeat.core.objective import Objective
from offbeat.sim.executors.ray.cluster import OnRay, connect, count_workers, import_ray
from offbeat.sim.executors.ray.worker import Packed, RayWorker, packed, tensor, tensors
from offbeat.sim.executors.worker_log import Line, log_lines
from offbeat.sim.executors.worker_pool import (
    Crashed,
    Done,
    OutOfMemory,
    PoolTask,
    Started,
    Version,
    WorkerPool,
    arrays,
    raise_failure,
)
from offbeat.version import __version__

START_SECONDS = 300.0  # s without any worker
# Failed starts in a row, per worker. A node that is lost may take many of them at once.
MOST_FAILED_STARTS = 3


@dataclass(frozen=True, eq=False)
class _Actor:
    """An actor that has started: its process is `pid` on Ray's node `node`."""

    handle: Any
    node: str
    pid: int


_Event = Started[_Actor] | Done[_Actor] | Crashed[_Actor] | OutOfMemory[_Actor]


class RayPool(WorkerPool[_Actor]):
    """An executor of Ray actors. Raises `UsageError` where the cluster cannot be used."""

    def __init__(self, learner: Learner, objective: Objective, options: OnRay) -> None:
        super().__init__(_RayPort(learner, objective, options))


class _RayPort:
    def __init__(self, learner: Learner, objective: Objective, options: OnRay) -> None:
        self._ray = import_ray()
        self._errors: Any = import_module("ray.exceptions")
        # The handles of all actors.
        self._handles: set[Any] = set()
        self._logged = set[Line]()
        # Handles by the reference of the reply to `hello`.
        self._starting: dict[Any, Any] = {}
        # Tasks by the reference of the reply.
        self._running: dict[Any, tuple[_Actor, PoolTask]] = {}
        self._failed_starts = 0
        self._packed: Any = None
        content = pack(learner, objective)
        self._connected = connect(self._ray, options.address)
        try:
            self.count = count_workers(self._ray, options)
            self._packed = self._ray.put(content)
            self._actor = self._ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(RayWorker)
        except BaseException:
            self.close()
            raise

    def spawn(self) -> None:
        handle = self._actor.remote()
        self._handles.add(handle)
        self._starting[handle.hello.remote(self._packed)] = handle

    def send(self, worker: _Actor, task: PoolTask) -> None:
        base, fresh = self._put(task.base), self._put(task.fresh)
        state = arrays(task.inputs.state)
        reference = worker.handle.work.remote(task.task, base, fresh, state, task.client)
        self._running[reference] = (worker, task)

    def collect(self, *, block: bool) -> list[_Event]:
        references = [*self._starting, *self._running]
        number, seconds = (1, START_SECONDS) if block else (len(references), 0)
        ready, _ = self._ray.wait(references, num_returns=number, timeout=seconds) if references else ([], 0)
        if block and not ready and not self._running:
            raise RunError(
                f"no worker has started on the Ray cluster for {seconds:g} seconds: its CPUs are taken or "
                "its nodes are gone (see `ray status`); a run with a directory can be resumed"
            )
        events = []
        for reference in ready:
            if reference in self._starting:
                events += self._started(self._starting.pop(reference), reference)
            elif reference in self._running:
                # A worker lost in this loop has no running tasks any more.
                events.append(self._replied(reference))
        return events

    def close(self) -> None:
        for handle in list(self._handles):
            self._end(handle)
        self._starting, self._running, self._packed = {}, {}, None
        if self._connected:
            self._connected = False
            self._ray.shutdown()

    def _put(self, version: Version | None) -> Any:
        """Where a version is in Ray's object store; it is put there at its first use."""
        if version is None:
            return None
        if version.reference is None:
            model = version.model
            vectors = (model.values.numpy(), model.integers.numpy(), model.shared.numpy())
            version.reference = self._ray.put((model.layout, *vectors))
        return version.reference

    def _started(self, handle: Any, reference: Any) -> list[Any]:
        """An actor has started, or failed to: then another one is asked for."""
        try:
            reply = self._ray.get(reference)
        except self._errors.RayTaskError as error:
            raise RunError(f"a Ray worker cannot load Offbeat or the learner:\n{error}") from None
        except self._errors.RayError as error:
            self._failed_starts += 1
            if self._failed_starts >= MOST_FAILED_STARTS * self.count:
                raise RunError(
                    f"{self._failed_starts} workers in turn could not start on Ray; the last:\n{error}"
                ) from None
            self._end(handle)
            self.spawn()
            return []
        self._failed_starts = 0
        here = {"Offbeat": __version__, "PyTorch": torch.__version__}
        if "error" in reply:
            raise RunError(f"Ray node {reply['node']} cannot train with this learner:\n{reply['error']}")
        if reply["versions"] != here:
            raise RunError(
                f"Ray node {reply['node']} has {reply['versions']}, this process {here}: results would "
                "depend on where a task runs; install the same versions on all nodes"
            )
        return [Started(_Actor(handle, reply["node"], reply["pid"]))]

    def _replied(self, reference: Any) -> _Event:
        worker, task = self._running[reference]
        try:
            reply = self._ray.get(reference)
        except self._errors.RayTaskError as error:
            raise RunError(f"{task} could not be taken to a Ray worker and back:\n{error}") from None
        except self._errors.RayError as error:
            return self._crashed(worker, error)
        log_lines(reply.get("logged", ()), self._logged)
        if "out_of_memory" in reply:
            self._forget(worker)
            return OutOfMemory(worker, reply["out_of_memory"])
        del self._running[reference]
        if "error" in reply:
            raise_failure(task, reply["error"], f"Ray worker (node {worker.node})")
        if task.task is None:
            return Done(worker, task, reply["found"])
        return Done(worker, task, _result(reply) if task.wanted else None)

    def _forget(self, worker: _Actor) -> None:
        """End a worker, and await none of its replies."""
        self._running = {r: running for r, running in self._running.items() if running[0] is not worker}
        self._end(worker.handle)

    def _crashed(self, worker: _Actor, error: Exception) -> Crashed[_Actor]:
        self._forget(worker)
        node_lives = any(n["NodeID"] == worker.node and n["Alive"] for n in self._ray.nodes())
        return Crashed(worker, f"Ray workers died of it; the last:\n{error}" if node_lives else None)

    def _end(self, handle: Any) -> None:
        self._handles.discard(handle)
        with suppress(self._errors.RayError):
            self._ray.kill(handle)


def _result(reply: dict[str, Any]) -> LocalResult:
    """A training's result, copied: Ray's copy of it is then freed."""
    shared = None if reply["shared"] is None else tensor(reply["shared"])
    delta, integers = tensor(reply["delta"]), tensor(reply["integers"])
    return LocalResult(delta, integers, reply["metrics"], reply["lr"], shared, tensors(reply["state"]))


def pack(learner: Learner, objective: Objective) -> Packed:
    """Learner and objective as bytes, and apart from them the data's arrays, which a node's workers share."""
    try:
        return packed(import_module("ray.cloudpickle").Pickler, learner, objective)
    except (PicklingError, AttributeError, TypeError) as error:
        raise UsageError(f"executor ray needs a learner that can be pickled: {error}") from None
