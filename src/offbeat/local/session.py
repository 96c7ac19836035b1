"""A task's training while it goes on, and how it is put away in the middle and taken up again."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from offbeat.core.errors import UsageError
from offbeat.core.events import Version
from offbeat.core.model import Model, Tensors
from offbeat.core.objective import LocalRun, Objective
from offbeat.local.flat_module import FlatModule
from offbeat.local.training import Optimizer


@dataclass
class Session:
    """One task in training: `version` is that of its `base`, `total` the sum of the losses so far."""

    bench: FlatModule
    base: Model
    version: Version
    objective: Objective
    optimizer: Optimizer
    run: LocalRun
    total: Tensor


def checkpoint(course: Session) -> Tensors:
    """All that the steps so far have changed, on the CPU; what a task begins with is not in it."""
    found = {"total": course.total, "random": torch.get_rng_state(), **_parts(course)}
    if course.total.is_cuda:  # layers draw from the GPU's own
        found["gpu_random"] = torch.cuda.get_rng_state(course.total.device)
    for index, state in course.optimizer.state_dict()["state"].items():
        found |= {f"optimizer.{index}.{name}": t for name, t in state.items() if t is not None}
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in found.items()}


def restore(course: Session, half: Tensors) -> None:
    """Bring a training that has just begun to where another one of the same task was put away.

    Raises `UsageError` where that was of another model.
    """
    parts = _parts(course)
    states: dict[int, dict[str, Tensor]] = {}
    for name, tensor in half.items():
        kind, _, rest = name.partition(".")
        if kind == "optimizer":
            index, _, what = rest.partition(".")
            states.setdefault(int(index), {})[what] = tensor.clone()
        elif name in parts and parts[name].shape == tensor.shape:
            # parts of models, which nobody may write to, are equal
            if not torch.equal(parts[name].cpu(), tensor):
                with torch.no_grad():
                    parts[name].copy_(tensor)
        elif name not in ("total", "random", "gpu_random"):
            raise UsageError(f"a training cannot be taken up: its {name} is not one of this model's")
    course.optimizer.load_state_dict({**course.optimizer.state_dict(), "state": states})
    course.total.copy_(half["total"])
    torch.set_rng_state(half["random"])
    if course.total.is_cuda:
        torch.cuda.set_rng_state(half["gpu_random"], course.total.device)


def _parts(course: Session) -> Tensors:
    """The tensors that steps write to, besides the optimizer's."""
    bench = {f"module.{i}": tensor for i, tensor in enumerate(course.bench.tensors())}
    return {**bench, **{f"scratch.{name}": t for name, t in _scratch(course.run.scratch)}}


def _scratch(scratch: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """An objective's tensors; its numbers come only with a merge, or an end."""
    for name, value in scratch.items():
        tensors = value if isinstance(value, list | tuple) else [value]
        for i, tensor in enumerate(tensors):
            if not isinstance(tensor, Tensor):
                raise UsageError(f"a training cannot be put away: its objective's {name} is no tensor")
            yield f"{name}.{i}", tensor
