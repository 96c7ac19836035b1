"""What a client minimises: the contract of local objectives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from offbeat.core.events import Metrics
from offbeat.core.features import NONE, Feature
from offbeat.core.model import Tensors
from offbeat.core.wrapper import Wrapper


@dataclass
class FreshModel:
    """A global model that came in mid-task: its values, shaped as the module's float tensors.

    `clock` and `staleness` (versions published between the task's base and it) are numbers for its weight.
    """

    values: Sequence[Tensor]
    clock: int
    staleness: int


def _no_representation(_: Sequence[Tensor] | None) -> Tensor:
    raise RuntimeError("this learner has no representations")


@dataclass
class LocalRun:
    """One task's training, as an objective sees it while it goes on.

    All lists of tensors are in the order of the module's parameters and have their shapes. `anchor`
    are the parameters w_o the task started from; `shared` is the vector that came with the model.
    `state` is the client's own: flat tensors of any length by name, as `end` left them after its last
    task, none before the first. What an objective remembers during a task only goes to `scratch`.
    `buffers` are the module's floating buffers, `integers` its others. `represent` gives the representation
    of the batch at hand, the input of the module's last linear layer: of the model in training where called
    without values (with gradients), else of a model of these parameters and buffers (without).
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
        """The parameters' gradients; zeros where a parameter had no part in the loss."""
        for p in self.parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        return [p.grad for p in self.parameters if p.grad is not None]

    @property
    def values(self) -> list[Tensor]:
        """The parameters as they are now, without their history."""
        return [p.detach() for p in self.parameters]

    def shaped(self, flat: Tensor) -> list[Tensor]:
        """A flat vector cut into the shapes of the parameters (and buffers, if it is that long)."""
        like = [*self.parameters, *self.buffers]
        views, at = [], 0
        for tensor in like:
            if at == flat.numel():
                break
            views.append(flat[at : at + tensor.numel()].view(tensor.shape))
            at += tensor.numel()
        return views


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors as one flat vector, in a fresh tensor."""
    return torch.cat([t.detach().reshape(-1) for t in tensors]) if tensors else torch.zeros(0)


class Objective:
    """What happens at each step of a task besides the loss's own gradient; by default nothing.

    An objective is a frozen dataclass of hyper-parameters, so that it can be sent to any process; what
    changes is in the `LocalRun`. Of vectors that travel with the model the server keeps the mean over
    all clients of what each has reported.
    """

    @property
    def requires(self) -> frozenset[Feature]:
        """What it needs of the other parts or the driver."""
        return NONE

    @property
    def provides(self) -> frozenset[Feature]:
        """What it gives that other parts may need."""
        return NONE

    @property
    def shared_vectors(self) -> int:
        """How many vectors of the parameters' size travel with the model."""
        return 0

    def begin(self, run: LocalRun) -> None:
        """Before the first step."""

    def loss(self, run: LocalRun, loss: Tensor) -> Tensor:
        """The loss to differentiate, given the batch's own."""
        return loss

    def adjust(self, run: LocalRun) -> None:
        """Change the gradients in place, before a step."""

    def merge(self, run: LocalRun, fresh: FreshModel, loss: Callable[[], Tensor]) -> None:
        """A model asked for in mid-task is here; `loss` gives the next batch's, as the module is."""

    def end(self, run: LocalRun) -> Metrics:
        """After the last step: leave new state in `run.state`; returns metrics of its own."""
        return {}


class ObjectiveWrapper(Wrapper, Objective):
    """An objective around another one; subclasses declare the field `inner`."""

    inner: Objective

    @property
    def shared_vectors(self) -> int:
        """As many as the objective inside has."""
        return self.inner.shared_vectors

    def begin(self, run: LocalRun) -> None:
        """Begin the objective inside."""
        self.inner.begin(run)

    def loss(self, run: LocalRun, loss: Tensor) -> Tensor:
        """The loss of the objective inside."""
        return self.inner.loss(run, loss)

    def adjust(self, run: LocalRun) -> None:
        """Adjust the gradients as the objective inside does."""
        self.inner.adjust(run)

    def merge(self, run: LocalRun, fresh: FreshModel, loss: Callable[[], Tensor]) -> None:
        """Merge a fresh model as the objective inside does."""
        self.inner.merge(run, fresh, loss)

    def end(self, run: LocalRun) -> Metrics:
        """End the objective inside."""
        return self.inner.end(run)
