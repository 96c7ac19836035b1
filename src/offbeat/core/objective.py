"""The contract of local objectives."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from offbeat.core.events import Metrics
from offbeat.core.features import AlgorithmPart
from offbeat.core.model import Tensors
from offbeat.core.wrapper import Wrapper


@dataclass
class FreshModel:
    """A global model received in mid-task.

    Attributes:
        values: Its values, shaped as the module's float tensors.
        clock: Age of the model in the run (FedASMU's g).
        staleness: Versions published between the task's base and it.
    """

    values: Sequence[Tensor]
    clock: int
    staleness: int


def _no_representation(_: Sequence[Tensor] | None) -> Tensor:
    raise RuntimeError("this learner has no representations")


@dataclass
class LocalRun:
    """One task in training, as an objective sees it.

    All lists of tensors are in the order of the module's parameters and have their shapes.

    Attributes:
        parameters: The module's parameters w.
        anchor: Parameters w_o the task started from.
        buffers: The module's floating buffers.
        shared: The vector that travels with the model, cut into tensors.
        state: The client's own state: flat tensors of any length by name, as `end` left them after its last
            task; empty before the first.
        scratch: An objective's state during this task only.
        lr: Learning rate.
        steps: Local steps of the task.
        represent: Gives the representation of the current batch, the input of the module's last linear layer:
            of the model in training for None (with gradients), else of a model with these parameters and
            buffers (without gradients).
        shared_delta: Change for the shared vector, float32 [shared]. None means no change.
        integers: The module's integer buffers.
    """

    parameters: Sequence[Tensor]
    anchor: Sequence[Tensor]
    buffers: Sequence[Tensor] = ()
    shared: Sequence[Tensor] = ()
    state: Tensors = field(default_factory=dict)
    scratch: dict[str, Any] = field(default_factory=dict)
    lr: float = 0.0
    steps: int = 0
    represent: Callable[[Sequence[Tensor] | None], Tensor] = _no_representation
    shared_delta: Tensor | None = None
    integers: Sequence[Tensor] = ()

    @property
    def gradients(self) -> list[Tensor]:
        """The parameters' gradients, dense; zeros for a parameter that is not in the loss."""
        for p in self.parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            elif p.grad.layout is not torch.strided:
                p.grad = p.grad.to_dense()
        return [p.grad for p in self.parameters if p.grad is not None]

    @property
    def values(self) -> list[Tensor]:
        """The current parameters, detached."""
        return [p.detach() for p in self.parameters]

    def shaped(self, flat: Tensor) -> list[Tensor]:
        """Cut a flat vector into the shapes of the parameters (and buffers, if it is that long)."""
        return cut(flat, [*self.parameters, *self.buffers])


def cut(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Cut a flat vector into the shapes of these tensors, or of as many as it is long; without a copy."""
    views, at = [], 0
    for tensor in like:
        if at == flat.numel():
            break
        views.append(flat[at : at + tensor.numel()].view(tensor.shape))
        at += tensor.numel()
    return views


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors into one flat vector, a fresh tensor."""
    return torch.cat([t.detach().reshape(-1) for t in tensors]) if tensors else torch.zeros(0)


class Objective(AlgorithmPart):
    """A local objective: changes of the loss and its gradient at each step of a task; by default none.

    An objective is a frozen dataclass of hyper-parameters, so that it can be sent to any process; its state
    is in the `LocalRun`. Of vectors that travel with the model the server has the mean over all clients of
    their reports.
    """

    @property
    def shared_vectors(self) -> int:
        """Number of vectors of the parameters' size that travel with the model."""
        return 0

    @property
    def metric_ranges(self) -> Mapping[str, tuple[float, float]]:
        """Least and greatest value of the metrics of `end` that another part computes with."""
        return {}

    def begin(self, run: LocalRun) -> None:
        """Prepare the task, before its first step."""

    def loss(self, run: LocalRun, loss: Tensor) -> Tensor:
        """Return the loss to differentiate, a scalar; `loss` is that of the batch."""
        return loss

    def adjust(self, run: LocalRun) -> None:
        """Change the gradients in place, before a step."""

    def merge(self, run: LocalRun, fresh: FreshModel, loss: Callable[[], Tensor] | None) -> None:
        """Merge a model received in mid-task.

        Args:
            run: The task.
            fresh: The model.
            loss: Computes the loss of the next batch with the module's present values. None means that the
                training has no such function.
        """

    def end(self, run: LocalRun) -> Metrics:
        """End the task after its last step: put the new state in `run.state`, return metrics of its own."""
        return {}


class ObjectiveWrapper(Wrapper, Objective):
    """Base of objectives around another one; subclasses declare the field `inner`."""

    inner: Objective

    @property
    def shared_vectors(self) -> int:
        """Number of shared vectors of the objective inside."""
        return self.inner.shared_vectors

    @property
    def metric_ranges(self) -> Mapping[str, tuple[float, float]]:
        """Ranges of the metrics of the objective inside."""
        return self.inner.metric_ranges

    def begin(self, run: LocalRun) -> None:
        """Begin the objective inside."""
        self.inner.begin(run)

    def loss(self, run: LocalRun, loss: Tensor) -> Tensor:
        """The loss of the objective inside."""
        return self.inner.loss(run, loss)

    def adjust(self, run: LocalRun) -> None:
        """Adjust the gradients as the objective inside does."""
        self.inner.adjust(run)

    def merge(self, run: LocalRun, fresh: FreshModel, loss: Callable[[], Tensor] | None) -> None:
        """Merge a fresh model as the objective inside does."""
        self.inner.merge(run, fresh, loss)

    def end(self, run: LocalRun) -> Metrics:
        """End the objective inside."""
        return self.inner.end(run)
