"""Training loops of a user's own, against the same federation under the built-in learner."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn
from torch.nn import functional

import offbeat as ob
from tests.sim.sim_worlds import CLIENTS, digits, mlp

LR, BATCH = 0.2, 20


@dataclass(frozen=True)
class PlainTorch:
    """A loop in PyTorch over the clients of `digits`, with one SGD optimizer a task."""

    make: Callable[[], nn.Module] = mlp
    adaptive: bool = True
    handles: bool = True

    @cached_property
    def built_in(self) -> ob.TorchLearner:
        return digits(self.make)

    def __getstate__(self) -> dict[str, object]:
        return {"make": self.make, "adaptive": self.adaptive, "handles": self.handles}

    def __call__(self, task: ob.ClientTask) -> None:
        data = self.built_in.data
        train, rows = data.train, data.client_indices(task.client)
        module = task.load_into(self.make())
        lr = LR * task.lr_factor
        optimizer = torch.optim.SGD(module.parameters(), lr)

        def loss(batch: torch.Tensor) -> torch.Tensor:
            x, y = train.gather(rows[batch])
            return functional.cross_entropy(module(x), y)

        for batch in task.steps(task.batches(), loss=loss if self.adaptive else None):
            optimizer.zero_grad()
            value = loss(batch)
            if self.handles:
                value = task.penalized(value)
            value.backward()
            if self.handles:
                task.correct_gradients()
            optimizer.step()
        task.submit(module.state_dict(), samples=len(rows), lr=lr)


def learners(loop: PlainTorch) -> tuple[ob.TorchLearner, ob.LoopLearner]:
    """The built-in learner, and one around the loop, of the same federation."""
    built_in = loop.built_in
    samples = [built_in.samples(client) for client in range(CLIENTS)]
    own = ob.LoopLearner(
        loop, loop.make, samples, batch_size=BATCH, evaluate=digits(loop.make).evaluate,
        labels=[built_in.label_counts(client) or [] for client in range(CLIENTS)],
    )  # fmt: skip
    return built_in, own
