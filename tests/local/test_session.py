"""A task trained in two parts, in two processes as it were, gives the bits of one trained in one go."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.algorithms.asofed import Online
from offbeat.algorithms.fedasmu.merging import FreshMerge
from offbeat.algorithms.feddyn import Dynamic
from offbeat.algorithms.moon import Contrastive
from offbeat.algorithms.scaffold import ControlVariates
from offbeat.core.buffers import OwnBuffers
from offbeat.core.errors import UsageError
from offbeat.core.learner import LocalTask, MergePoint, TaskInputs
from offbeat.core.model import Model
from offbeat.core.objective import Objective
from offbeat.data import Dataset, FederatedData, federate
from offbeat.local.objectives import Plain, Proximal

STEPS, HALF = 9, 4
OBJECTIVES = [
    Plain(),
    Proximal(0.1),
    Dynamic(0.1),
    Contrastive(mu=1.0),
    ControlVariates(),
    Online(proximal=0.1, beta=0.5),
]
TRAININGS = [
    ob.Training(lr=0.1, batch_size=5, momentum=0.9),
    ob.Training(optimizer="adam", lr=0.01, batch_size=5),
    ob.Training(optimizer="adamw", lr=0.01, batch_size=5, weight_decay=0.1, channels_last=True),
]


def data() -> FederatedData:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(40, 1, 4, 4)).astype(np.float32))
    whole = Dataset(x, torch.from_numpy(rng.integers(0, 3, size=40)), 3)
    return federate(whole, whole, np.split(rng.permutation(40), [17]))


def module() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(16, 3)
    )


def learner(training: ob.Training) -> ob.TorchLearner:
    return ob.TorchLearner(module, data(), training)


def start(training: ob.Training, objective: Objective, merge: bool) -> tuple[Any, ...]:
    """What a client's second task begins with, so that it has a state."""
    one = learner(training)
    base = one.initial(3).sharing(objective.shared_vectors)
    if len(base.shared):
        base = Model(base.layout, base.values, base.integers, torch.linspace(-0.1, 0.1, len(base.shared)))
    other = Model(base.layout, base.values * 0.9, base.integers, base.shared)
    state = one.train(base, LocalTask(0, 1, 0, 3, seed=5), objective).state
    fresh = MergePoint(HALF, 2, 3) if merge else None
    return base, LocalTask(7, 1, 1, STEPS, seed=5, fresh=fresh), objective, TaskInputs(state, other)


@pytest.fixture(autouse=True)
def quiet() -> Any:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


@pytest.mark.bits
@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("training", TRAININGS, ids=lambda t: t.optimizer)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_two_parts_give_what_one_does(objective: Objective, training: ob.Training, merge: bool) -> None:
    same_in_two_parts(FreshMerge(objective), training, merge)


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("inside", [Plain(), Contrastive(mu=1.0)], ids=lambda o: type(o).__name__)
def test_with_buffers_of_its_own(inside: Objective, kept: bool, merge: bool) -> None:
    same_in_two_parts(OwnBuffers(FreshMerge(inside), kept), TRAININGS[0], merge)


def same_in_two_parts(objective: Objective, training: ob.Training, merge: bool) -> None:
    base, task, _, inputs = start(training, objective, merge)
    whole = learner(training).train(base, task, objective, inputs)
    kept = {name: tensor.clone() for name, tensor in inputs.state.items()}
    half = learner(training).train_until(base, task, objective, TaskInputs(inputs.state), HALF)
    torch.manual_seed(99)  # another process knows nothing of the first one's random numbers
    rest = learner(training).train_from(base, task, objective, inputs, HALF, half)
    assert torch.equal(rest.delta, whole.delta)
    assert torch.equal(rest.integers, whole.integers)
    assert rest.metrics == whole.metrics
    assert rest.state.keys() == whole.state.keys()
    assert all(torch.equal(rest.state[name], whole.state[name]) for name in whole.state)
    assert (rest.shared is None) == (whole.shared is None)
    assert rest.shared is None or torch.equal(rest.shared, whole.shared)  # type: ignore[arg-type]
    assert all(torch.equal(inputs.state[name], kept[name]) for name in kept)


def test_a_checkpoint_after_the_last_step_is_the_whole_training() -> None:
    base, task, objective, inputs = start(TRAININGS[0], Plain(), False)
    whole = learner(TRAININGS[0]).train(base, task, objective, inputs)
    saved = learner(TRAININGS[0]).train_until(base, task, objective, inputs, STEPS)
    rest = learner(TRAININGS[0]).train_from(base, task, objective, inputs, STEPS, saved)
    assert torch.equal(rest.delta, whole.delta)
    assert rest.metrics == whole.metrics


def test_the_half_of_another_model_is_refused() -> None:
    base, task, objective, inputs = start(TRAININGS[0], FreshMerge(Plain()), True)
    one = learner(TRAININGS[0])
    half = one.train_until(base, task, objective, inputs, HALF)
    with pytest.raises(UsageError, match=r"its module\.0 is not one of this model's"):
        one.train_from(base, task, objective, inputs, HALF, {**half, "module.0": torch.zeros(3)})


def test_an_objective_that_keeps_what_cannot_be_saved_is_refused() -> None:
    class Odd(Plain):
        def begin(self, run: Any) -> None:
            run.scratch["odd"] = {"of": 1}

    base, task, _, inputs = start(TRAININGS[0], FreshMerge(Plain()), True)
    with pytest.raises(UsageError, match=r"its objective's odd is no tensor"):
        learner(TRAININGS[0]).train_until(base, task, Odd(), inputs, HALF)
