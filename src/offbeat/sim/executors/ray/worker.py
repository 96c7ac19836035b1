"""A worker on a Ray cluster, and how values get there and back."""

import io
import os
import pickle
import traceback
import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from offbeat.core.events import ClientId
from offbeat.core.layout import Layout
from offbeat.core.learner import Learner, LocalTask, TaskInputs
from offbeat.core.model import Model
from offbeat.core.objective import Objective
from offbeat.data.dataset import Dataset
from offbeat.sim.executors.worker_log import WorkerLog
from offbeat.sim.executors.worker_pool import arrays, evaluate_for, failure
from offbeat.version import __version__

Packed = tuple[bytes, list[Any]]
Vectors = tuple[Layout, Any, Any, Any]
_ALIGNED = 64  # bytes; PyTorch aligns tensors so too, and another alignment can change the last bits


class RayWorker:
    """Trains and evaluates in a process of its own, single-threaded."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._logged = WorkerLog()
        self._made: tuple[Learner, Objective] | None = None

    def hello(self, packed: Packed) -> dict[str, Any]:
        """Unpack learner and objective; return the worker's place and versions."""
        ray: Any = import_module("ray")
        place: dict[str, Any] = {"node": ray.get_runtime_context().get_node_id(), "pid": os.getpid()}
        try:
            content, buffers = packed
            self._made = pickle.loads(content, buffers=buffers)
        except Exception:
            return {**place, "error": traceback.format_exc()}
        return {**place, "versions": {"Offbeat": __version__, "PyTorch": torch.__version__}}

    def work(
        self,
        task: LocalTask | None,
        base: Vectors,
        fresh: Vectors | None,
        state: Mapping[str, Any],
        client: ClientId | None = None,
    ) -> dict[str, Any]:
        """Train a task, or evaluate without one: on the samples that `client` holds out, if it is given."""
        return self._reply(task, base, fresh, state, client) | {"logged": self._logged.take()}

    def _reply(
        self,
        task: LocalTask | None,
        base: Vectors,
        fresh: Vectors | None,
        state: Mapping[str, Any],
        client: ClientId | None,
    ) -> dict[str, Any]:
        assert self._made is not None
        learner, objective = self._made
        inputs = TaskInputs(tensors(state), _model(fresh) if fresh is not None else None)
        try:
            if task is None:
                return {"found": evaluate_for(learner, _model(base), client, inputs)}
            result = learner.train(_model(base), task, objective, inputs)
            return {
                "delta": result.delta.numpy(),
                "integers": result.integers.numpy(),
                "metrics": dict(result.metrics),
                "lr": result.lr,
                "shared": None if result.shared is None else result.shared.numpy(),
                "state": arrays(result.state),
            }
        except Exception as error:
            return failure(error)


def _model(vectors: Vectors) -> Model:
    layout, values, integers, shared = vectors
    return Model(layout, tensor(values), tensor(integers), tensor(shared))


def tensor(array: Any) -> Tensor:
    """A copy of an array."""
    copy = torch.empty(array.shape, dtype=getattr(torch, array.dtype.name))
    copy.numpy()[...] = array
    return copy


def tensors(named: Mapping[str, Any]) -> dict[str, Tensor]:
    """Copies of arrays."""
    return {name: tensor(array) for name, array in named.items()}


def packed(pickler: type[Any], *what: Any) -> Packed:
    """Pickle as `pickler` does, but for datasets: their arrays are kept apart, uncopied."""

    class Pickler(pickler):  # type: ignore[misc]
        def reducer_override(self, what: Any) -> Any:
            if type(what) is Dataset and isinstance(what.x, Tensor) and what.y is not None:
                return _dataset, (what.x.numpy(), what.y.numpy(), what.classes)
            return super().reducer_override(what)

    file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    Pickler(file, protocol=5, buffer_callback=buffers.append).dump(what)
    return file.getvalue(), buffers


def _dataset(x: Any, y: Any, classes: int | None) -> Dataset:
    return Dataset(_borrowed(x), _borrowed(y), classes)


def _borrowed(array: Any) -> Tensor:
    """An array in Ray's shared memory as a read-only tensor by convention; a copy if it is not aligned."""
    if array.ctypes.data % _ALIGNED:
        return tensor(array)
    # PyTorch warns that it has no read-only tensors.
    with warnings.catch_warnings(action="ignore"):
        return torch.from_numpy(array)
