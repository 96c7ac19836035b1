"""Training that diverges ends the run with one line, which says where and why."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import offbeat as ob
from offbeat.algorithms import ALGORITHMS
from offbeat.algorithms.factory import Factory
from offbeat.codec import Qsgd, TopK
from offbeat.core.codec import Codec
from offbeat.core.errors import RunError
from offbeat.core.learner import LocalResult, LocalTask, NoTraining
from offbeat.core.model import Model
from offbeat.data import Dataset

UNTIL = ob.Until(tasks=25)
WORLD = ob.World([1.0, 1.5, 4.0], channel=ob.Channel(100_000))


class NoGradient(nn.Module):
    """A model whose loss is a number at first, and its gradient is none: the slope of a root at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return (self.layer(x) * 0).sqrt()


def learner() -> ob.TorchLearner:
    whole = Dataset(torch.ones(60, 2), torch.arange(60) % 2, 2)
    return ob.TorchLearner(
        NoGradient, ob.federate(whole, whole, np.split(np.arange(60), 3)), ob.Training(batch_size=5)
    )


@pytest.mark.parametrize(
    "factory", [f for f in ALGORITHMS.values() if f().codec is None], ids=lambda f: f.name
)
def test_a_run_ends_and_says_where(factory: Factory[...]) -> None:
    options = {"fedasmu": {"size": 2, "period": 2.0}, "ace": {"steps": 2}}.get(factory.name, {})
    with pytest.raises(RunError, match=r"^client \d, task \d+, step \d+ of \d+: the loss is not finite"):
        ob.simulate(factory(**options), WORLD, learner(), until=UNTIL)


@pytest.mark.parametrize("codec", [Qsgd(), TopK(fraction=0.5)])
def test_an_update_that_no_codec_can_encode(codec: Codec) -> None:
    coded = ob.compose(ob.fedbuff(size=2, steps=1), codec=codec)
    with pytest.raises(RunError, match=r"the update of task 0 has infinities or NaN.*smaller learning rate"):
        ob.simulate(coded, WORLD, learner(), until=UNTIL, guard=None)


class Diverged(NoTraining):
    """A learner of one's own that goes on with numbers that are none."""

    def train(self, base: Model, task: LocalTask, *rest: object) -> LocalResult:
        nothing = torch.full_like(base.values, float("nan"))
        return LocalResult(nothing, base.integers, {"loss": float("nan")}, 0.1)


@pytest.mark.parametrize(
    "factory",
    [f for f in ALGORITHMS.values() if not f().objective.requires and f().codec is None],
    ids=lambda f: f.name,
)
def test_schedules_and_aggregators_take_what_is_no_number(factory: Factory[...]) -> None:
    options = {"fedasmu": {"size": 2, "period": 2.0}, "ace": {"steps": 2}}.get(factory.name, {})
    wild = Diverged(3, parameters=4)
    run = ob.simulate(factory(**options), WORLD, wild, until=UNTIL, evaluate=None, guard=None)
    assert run.summary.tasks == 25
