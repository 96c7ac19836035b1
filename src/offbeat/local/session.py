"""A local training in progress: checkpoint and restore between two steps, and its result."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from offbeat.core.errors import UsageError
from offbeat.core.learner import PERSONAL, LocalResult, LocalTask, TaskInputs
from offbeat.core.model import Model, Tensors
from offbeat.core.objective import LocalRun, Objective
from offbeat.data.dataset import Batch
from offbeat.local.criterion import Criterion
from offbeat.local.examples_privacy import ExampleGradients
from offbeat.local.fast.cuda_graphs import CapturedGradients
from offbeat.local.flat_module import FlatModule
from offbeat.local.gradient_flow import GradientFlow
from offbeat.local.misread_scores import ScoreWatch
from offbeat.local.seeding import restore_others, save_others
from offbeat.local.training import Optimizer, Training


@dataclass
class BatchPart:
    """A part of the batch of a local step.

    Attributes:
        rows: Its samples' numbers in the train set.
        share: Its share of the batch's samples.
        resident: Whether the train set is where the module is, so that `read` is a computation there.
    """

    rows: Tensor
    read: Callable[[Tensor], Batch]
    share: float
    resident: bool

    @cached_property
    def batch(self) -> Batch:
        """Its samples, which are read at first use."""
        return self.read(self.rows)


Parts = list[BatchPart]
"""A batch of a local step, in the parts in which it goes through the module."""


@dataclass
class Session:
    """A task in training.

    Attributes:
        bench: The module.
        base: The model that the task started from.
        task: The task.
        inputs: The client's state, and the fresh model if there is one.
        training: Options of the local training.
        criterion: The loss of a batch.
        per_epoch: Local steps of one epoch of the client.
        objective: The local objective.
        optimizer: The optimizer of this task.
        run: The objective's view of the task.
        total: Sum of the losses so far.
        batches: The task's batches, numbered.
        scaler: Scales the loss in half precision. None means that there is no need to.
        factors: Factors of the learning rate of the steps so far, where they differ.
        losses: Numbers of this session's steps, and the losses of their parts.
        examples: Makes the steps' gradients, with privacy of examples. None means the plain ones.
        flow: Watches whether gradients reach the parameters, in the first task.
        scores: Watches what the loss is called with, in the first task.
        captured: Makes the gradients of a plain loss by CUDA graphs. None means without.
        own_code: Whether code of the user's runs, which may draw from NumPy's and Python's generators.
        summed: `total` as a number, once the steps are done.
    """

    bench: FlatModule
    base: Model
    task: LocalTask
    inputs: TaskInputs
    training: Training
    criterion: Criterion
    per_epoch: int
    objective: Objective
    optimizer: Optimizer
    run: LocalRun
    total: Tensor
    batches: Iterator[tuple[int, Parts]]
    scaler: torch.amp.GradScaler | None = None
    factors: list[float] = field(default_factory=list)
    losses: list[tuple[int, Tensor]] = field(default_factory=list)
    examples: ExampleGradients | None = None
    flow: GradientFlow | None = None
    scores: ScoreWatch | None = None
    captured: CapturedGradients | None = None
    own_code: bool = True
    summed: float = 0.0

    @property
    def watches_gradients(self) -> bool:
        """Whether it has watched whether gradients reach the parameters."""
        return self.flow is not None and self.flow.watched


def result_of(session: Session) -> LocalResult:
    """The result of a task whose steps are done."""
    run, bench, task = session.run, session.bench, session.task
    if session.factors:
        run.lr *= sum(session.factors) / len(session.factors)
    bench.reclaim()
    own = session.objective.end(run)
    delta, integers = bench.delta(session.base)
    if session.flow is not None and session.watches_gradients:
        moved = bool(delta.any()) or bool(bench.personal)
        session.flow.end(f"client {task.client}, task {task.task}", run.lr, moved=moved)
    metrics = {"loss": session.summed / run.steps, **own}
    personal = {PERSONAL + name: tensor for name, tensor in bench.personal.items()}
    state = bench.to_cpu({**run.state, **personal})
    there = session.base.values.device
    shared = run.shared_delta.to(there) if run.shared_delta is not None else None
    return LocalResult(delta, integers, metrics, run.lr, shared, state)


def checkpoint(session: Session) -> Tensors:
    """Copy to the CPU all tensors that the steps so far have changed; the task's inputs are not in it."""
    tensors = {"total": session.total, "random": torch.get_rng_state(), **_parts(session)}
    tensors["factors"] = torch.tensor(session.factors, dtype=torch.float64)
    if session.scaler is not None:
        scale = session.scaler.state_dict()
        tensors["scaler"] = torch.tensor([scale["scale"], scale["_growth_tracker"]], dtype=torch.float64)
    if session.own_code:
        tensors["others_random"] = save_others()
    if session.total.is_cuda:
        # On a GPU, layers draw from its own generator.
        tensors["gpu_random"] = torch.cuda.get_rng_state(session.total.device)
    for index, state in session.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": t for name, t in state.items() if t is not None}
    tensors = {name: part for whole, t in tensors.items() for name, part in _dense_parts(whole, t).items()}
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}


def restore(session: Session, saved: Tensors) -> None:
    """Bring a training that has just begun to a checkpoint of the same task.

    Raises:
        UsageError: the checkpoint is of another model.
    """
    parts = _parts(session)
    states: dict[int, dict[str, Tensor]] = {}
    for name, tensor in saved.items():
        kind, _, rest = name.partition(".")
        if kind == "optimizer":
            index, _, what = rest.partition(".")
            if (made := _whole(what, name, saved)) is not None:
                states.setdefault(int(index), {})[what.partition(":")[0]] = made
        elif name in parts and parts[name].shape == tensor.shape:
            # Parts of models are immutable and equal already, so they are not written to.
            if not torch.equal(parts[name].cpu(), tensor):
                with torch.no_grad():
                    parts[name].copy_(tensor)
        elif name not in ("total", "random", "others_random", "gpu_random", "factors", "scaler"):
            raise UsageError(f"a training cannot be restored: its {name} is not one of this model's")
    session.optimizer.load_state_dict({**session.optimizer.state_dict(), "state": states})
    session.total.copy_(saved["total"])
    session.factors[:] = saved["factors"].tolist()
    if session.scaler is not None:
        scale, tracker = saved["scaler"].tolist()
        state = session.scaler.state_dict()
        session.scaler.load_state_dict({**state, "scale": scale, "_growth_tracker": int(tracker)})
    torch.set_rng_state(saved["random"])
    if "others_random" in saved:
        restore_others(saved["others_random"])
    if session.total.is_cuda:
        torch.cuda.set_rng_state(saved["gpu_random"], session.total.device)


def _parts(session: Session) -> Tensors:
    """The tensors that steps write to, besides the optimizer's.

    An objective's own are all tensors: its numbers come only with a merge, or an end.
    """
    parts = {f"module.{i}": tensor for i, tensor in enumerate(session.bench.tensors())}
    for name, value in session.run.scratch.items():
        for i, tensor in enumerate(value if isinstance(value, list | tuple) else [value]):
            if not isinstance(tensor, Tensor):
                raise UsageError(f"a training cannot be saved: its objective's {name} is no tensor")
            parts[f"scratch.{name}.{i}"] = tensor
    return parts


def _dense_parts(name: str, tensor: Tensor) -> Tensors:
    """A tensor by its name; the parts of a sparse one, such as the momentum of sparse gradients."""
    if tensor.layout is not torch.sparse_coo:
        return {name: tensor}
    sizes = torch.tensor([int(tensor.is_coalesced()), *tensor.shape])
    return {f"{name}:indices": tensor._indices(), f"{name}:values": tensor._values(), f"{name}:sizes": sizes}


def _whole(what: str, name: str, saved: Tensors) -> Tensor | None:
    """The copy of a saved tensor; of a sparse one at its values, and None at its other parts."""
    kind = what.partition(":")[2]
    if not kind:
        return saved[name].clone()
    if kind != "values":
        return None
    whole = name.removesuffix(":values")
    coalesced, *shape = saved[f"{whole}:sizes"].tolist()
    indices = saved[f"{whole}:indices"].clone()
    made = torch.sparse_coo_tensor(indices, saved[name].clone(), shape, check_invariants=False)
    return made._coalesced_(bool(coalesced))
