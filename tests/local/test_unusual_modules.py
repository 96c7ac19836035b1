"""Modules with frozen parameters, of half precision, lazy ones, and some that cannot be trained."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import offbeat as ob
from offbeat.algorithms import ALGORITHMS
from offbeat.core.errors import UsageError
from offbeat.core.features import Feature
from offbeat.core.objective import LocalRun, Objective
from offbeat.data import Dataset, FederatedData, federate

CLIENTS = 3
CHANNEL = ob.Channel(100_000)
OPTIONS = {  # in which clients ask for a fresh model, and come back with what they keep
    "fedasmu": {"size": 2, "period": 2.0},
    "fedcompass": {"q_min": 2, "q_max": 6},
    "fedfa": {"size": 2},
    "fedbuff": {"size": 2},
    "port": {"size": 2},
}
pytestmark = pytest.mark.usefixtures("one_thread")


def points(test: int = 20) -> FederatedData:
    x = torch.rand(60 + test, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    y = (x[:, 0] * x[:, 1] > 0).long()
    return federate(Dataset(x[:60], y[:60], 2), Dataset(x[60:], y[60:], 2), np.split(np.arange(60), CLIENTS))


def frozen() -> nn.Module:
    """A layer that was trained elsewhere, and one to train."""
    module = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    module[0].requires_grad_(False)
    return module


class Half(nn.Module):
    """A layer in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 8).bfloat16(), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x.bfloat16())).float())


def play(
    name: str, module: Callable[[], nn.Module], training: ob.Training, executor: ob.Batched | None = None
) -> tuple[ob.TorchLearner, ob.Run, dict[str, Tensor]]:
    """A learner, a short run of it, and what the model began with."""
    learner = ob.TorchLearner(module, points(), training)
    world = ob.World([1.0, 1.5, 4.0], channel=CHANNEL)
    run = ob.simulate(
        ALGORITHMS[name](**OPTIONS.get(name, {})), world, learner, until=ob.Until(tasks=15), executor=executor
    )
    return learner, run, learner.initial(0).state_dict()


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_frozen_parameters_do_not_travel(name: str, optimizer: str) -> None:
    """They are what the run's seed draws, in the module of every task."""
    learner, run, begun = play(name, frozen, ob.Training(optimizer=optimizer, lr=0.05, weight_decay=0.1))
    assert set(run.model.state_dict()) == {"2.weight", "2.bias"}
    assert not torch.equal(run.model.state_dict()["2.weight"], begun["2.weight"])
    assert learner.frozen_digest(0) == frozen_digest(learner.prepare().bench.module)


def frozen_digest(module: nn.Module) -> str:
    """As a learner with these very weights has it."""
    return ob.TorchLearner(module, points()).frozen_digest(1)


def test_frozen_parameters_follow_from_the_seed() -> None:
    learner = ob.TorchLearner(frozen, points())
    assert learner.frozen_digest(0) != learner.frozen_digest(1)
    assert learner.frozen_digest(0) == ob.TorchLearner(frozen, points()).frozen_digest(0)
    assert ob.TorchLearner(lambda: nn.Linear(2, 2), points()).frozen_digest(0) == ""


def test_one_learner_serves_runs_of_several_seeds() -> None:
    """Each run has the frozen part of its own seed."""
    shared = ob.TorchLearner(frozen, points())
    for seed in (1, 2, 1):
        runs = [
            ob.simulate(ob.fedavg(steps=2), learner=learner, seed=seed, until=ob.Until(versions=3))
            for learner in (shared, ob.TorchLearner(frozen, points()))
        ]
        assert torch.equal(runs[0].model.values, runs[1].model.values)


def test_frozen_parameters_trained_together() -> None:
    """Several clients at a time, and one after the other."""
    training = ob.Training(lr=0.05, weight_decay=0.1)
    runs = [play("fedprox", frozen, training, executor)[1] for executor in (ob.Batched(CLIENTS), None)]
    torch.testing.assert_close(runs[0].model.values, runs[1].model.values)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_half_precision(name: str) -> None:
    _, run, begun = play(name, Half, ob.Training(lr=0.05))
    ended = run.model.state_dict()
    assert ended["first.weight"].dtype == torch.bfloat16
    assert not torch.equal(ended["first.weight"], begun["first.weight"])
    assert all(bool(tensor.isfinite().all()) for tensor in ended.values())


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 2))


def complex_buffer() -> nn.Module:
    module = nn.Linear(2, 2)
    module.register_buffer("phases", torch.ones(2, dtype=torch.complex64))
    return module


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lazy, r"model tensor 0\.weight has no shape yet: call the module once with a batch"),
        (complex_buffer, "model tensor phases is complex"),
        (nn.Flatten, "Flatten has no parameter to train"),
        (lambda: nn.Linear(2, 2).requires_grad_(False), "Linear has no parameter to train"),
    ],
)
def test_what_cannot_be_trained(module: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ob.TorchLearner(module, points()).initial(0)


@dataclass(frozen=True)
class TowardLast(Objective):
    """Leaves its parameters themselves as the client's state, or copies of them."""

    copied: bool
    requires = frozenset({Feature.CLIENT_STATE})

    def adjust(self, run: LocalRun) -> None:
        for i, (value, gradient) in enumerate(zip(run.values, run.gradients, strict=True)):
            gradient.add_(value - run.state.get(f"last {i}", value), alpha=0.5)

    def end(self, run: LocalRun) -> dict[str, float]:
        run.state |= {f"last {i}": p.clone() if self.copied else p for i, p in enumerate(run.parameters)}
        return {}


def test_a_state_of_the_modules_own_tensors() -> None:
    """The next client's task writes to them."""
    runs = [
        ob.simulate(
            replace(ob.fedbuff(size=2, steps=3), objective=TowardLast(copied), name="toward-last"),
            learner=ob.TorchLearner(lambda: nn.Linear(2, 2), points()), until=ob.Until(versions=10),
        )
        for copied in (True, False)
    ]  # fmt: skip
    assert torch.equal(runs[0].model.values, runs[1].model.values)


def test_a_test_set_without_samples() -> None:
    learner = ob.TorchLearner(frozen, points(test=0))
    with pytest.raises(UsageError, match="the test set has no samples"):
        ob.simulate(ob.fedavg(), learner=learner, until=ob.Until(versions=2))
    run = ob.simulate(ob.fedavg(), learner=learner, until=ob.Until(versions=2), evaluate=None)
    assert run.summary.versions == 2


def dropping(training: bool) -> nn.Module:
    """A layer, half of what it gives, and a layer; the middle one is built in this mode."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5).train(training), nn.Linear(8, 2))


def test_a_part_built_for_evaluation_trains_like_the_others_before_and_after_one() -> None:
    runs = [
        ob.simulate(
            ob.fedavg(steps=3), learner=ob.TorchLearner(dropping(training), points()),
            until=ob.Until(versions=4), evaluate=evaluate,
        )
        for training, evaluate in ((True, None), (False, None), (False, ob.Every(versions=1)))
    ]  # fmt: skip
    assert all(torch.equal(run.model.values, runs[0].model.values) for run in runs)
    without = ob.TorchLearner(nn.Sequential(*dropping(True)[::2]), points())
    plain = ob.simulate(ob.fedavg(steps=3), learner=without, until=ob.Until(versions=4))
    assert not torch.equal(plain.model.values, runs[0].model.values)  # dropout made a difference


class Kept(nn.Sequential):
    """Keeps its parts in evaluation mode."""

    def train(self, mode: bool = True) -> "Kept":
        super().train(mode)
        for part in self:
            part.train(False)
        return self


def test_a_module_that_keeps_its_parts_from_training_mode_is_heard() -> None:
    made = [
        ob.TorchLearner(module, points()) for module in (Kept(*dropping(True)), Kept(*dropping(True)[::2]))
    ]
    runs = [ob.simulate(ob.fedavg(steps=3), learner=each, until=ob.Until(versions=4)) for each in made]
    assert torch.equal(runs[0].model.values, runs[1].model.values)
