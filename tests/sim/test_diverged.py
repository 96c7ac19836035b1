"""Training that diverges: the run goes on, or says what is wrong."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import offbeat as ob
from offbeat.algorithms import ALGORITHMS
from offbeat.algorithms.registry import Factory
from offbeat.codec import Qsgd, TopK
from offbeat.core.codec import Codec
from offbeat.core.errors import RunError
from offbeat.data import Dataset

UNTIL = ob.Until(tasks=25)
WORLD = ob.World([1.0, 1.5, 4.0], channel=ob.Channel(100_000))


class NoNumber(nn.Module):
    """A model whose loss is none from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * float("nan")


@pytest.fixture
def learner() -> ob.TorchLearner:
    whole = Dataset(torch.ones(60, 2), torch.arange(60) % 2, 2)
    return ob.TorchLearner(
        NoNumber, ob.federate(whole, whole, np.split(np.arange(60), 3)), ob.Training(batch_size=5)
    )


@pytest.mark.parametrize(
    "factory", [f for f in ALGORITHMS.values() if f().codec is None], ids=lambda f: f.name
)
def test_a_run_goes_on(factory: Factory[...], learner: ob.TorchLearner) -> None:
    options = {"fedasmu": {"size": 2, "period": 2.0}}.get(factory.name, {})
    run = ob.simulate(factory(**options), WORLD, learner, until=UNTIL)
    assert run.summary.tasks == 25
    assert run.summary.loss != run.summary.loss  # it is told


@pytest.mark.parametrize("codec", [Qsgd(), TopK(fraction=0.5)])
def test_an_update_that_no_codec_can_encode(codec: Codec, learner: ob.TorchLearner) -> None:
    coded = ob.compose(ob.fedbuff(size=2), codec=codec)
    with pytest.raises(RunError, match=r"the update of task 0 has infinities or NaN.*smaller learning rate"):
        ob.simulate(coded, WORLD, learner, until=UNTIL)
