"""What an aggregator or server step of one's own may give: the change of the values, a fresh tensor."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

import offbeat as ob
from offbeat.core.aggregator import Aggregator, Update
from offbeat.core.algorithm import ServerStep
from offbeat.core.errors import AlgorithmError
from offbeat.core.model import Model, Tensors


@dataclass(frozen=True)
class Own(Aggregator):
    make: Callable[[Model], Tensor]

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        return self.make(model)


@dataclass(frozen=True)
class Doubled(ServerStep):
    def transform(self, step: Tensor, memory: Tensors) -> Tensor:
        return step.double()


def play(algorithm: ob.Algorithm) -> ob.Run:
    learner = ob.NoTraining(2, parameters=3)
    return ob.simulate(algorithm, ob.World(1.0), learner, until=ob.Until(versions=2))


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (lambda m: torch.zeros(3, dtype=torch.float64), r"a tensor of torch\.float64 of shape \(3,\)"),
        (lambda m: torch.zeros(2), r"a tensor of torch\.float32 of shape \(2,\)"),
        (lambda m: torch.zeros(()), r"a tensor of torch\.float32 of shape \(\)"),
        (lambda m: m.values.numpy() * 0, "a ndarray"),
        (lambda m: None, "a NoneType"),
    ],
)
def test_a_step_that_is_none(make: Callable[[Model], Tensor], given: str) -> None:
    """One of float64 would make the model so, whose bits then depend on who trains."""
    with pytest.raises(AlgorithmError, match=f"the step of Own and the server steps is {given}: give"):
        play(replace(ob.fedavg(), aggregator=Own(make), name="own"))


def test_a_server_steps_step_that_is_none() -> None:
    with pytest.raises(AlgorithmError, match=r"is a tensor of torch\.float64 of shape \(3,\): give"):
        play(replace(ob.fedavg(), server_steps=(Doubled(),), name="own"))


def test_a_step_that_is_the_model() -> None:
    """To add the model to it would change the version that tasks have started from."""
    with pytest.raises(AlgorithmError, match="the step of Own and the server steps is the model itself"):
        play(replace(ob.fedavg(), aggregator=Own(lambda m: m.values), name="own"))
