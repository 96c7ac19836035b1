"""A run on the device: the bits of the run on the CPU, versions that stay there, and few waits."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.codec.qsgd import Qsgd
from offbeat.core.global_model import GlobalModel
from offbeat.core.learner import LocalTask
from offbeat.core.model import Model
from offbeat.core.privacy.privacy_options import Privacy, Secure
from offbeat.local.objectives import Plain
from offbeat.local.training import ExponentialDecay
from tests.algorithms.robust.rules import RULES
from tests.device.pretended import DEVICE, Noted, PretendedDevice
from tests.sampling import mostly_thorough, thorough
from tests.sim.sim_worlds import CALM, HARD, digits, make, mlp, normed, outcome

UNTIL = ob.Until(tasks=15)
SELDOM = ob.Every(seconds=20)


def on(device: str, learner: ob.TorchLearner, **options: Any) -> ob.TorchLearner:
    training = replace(learner.training, device=device)
    return ob.TorchLearner(learner.module, learner.data, training, **options)


@pytest.fixture(scope="module")
def learner() -> ob.TorchLearner:
    return digits(normed)


def both(
    device: PretendedDevice,
    algorithm: ob.Algorithm,
    learner: ob.TorchLearner,
    world: ob.World = HARD,
    **own: Any,
) -> tuple[ob.Run, Noted]:
    """The run on the CPU and on the device, which are the same; returns the latter, and what was noted."""
    options: dict[str, Any] = {"until": UNTIL, "evaluate": SELDOM, "seed": 1, **own}
    here = ob.simulate(algorithm, world, learner, **options)
    with device.phase() as noted:
        there = ob.simulate(algorithm, world, on(DEVICE, learner), **options)
    assert outcome(here) == outcome(there)
    assert noted.operations["mm"] + noted.operations["addmm"] > 0
    return there, noted


@pytest.mark.parametrize("name", mostly_thorough(ob.ALGORITHMS, {"scaffold"}))
def test_each_algorithm_has_the_bits_of_the_cpu(
    device: PretendedDevice, name: str, learner: ob.TorchLearner
) -> None:
    both(device, make(name), learner)


@pytest.mark.parametrize("rule", mostly_thorough(RULES, {"aflguard"}))
def test_each_robust_rule_has_the_bits_of_the_cpu(device: PretendedDevice, rule: str) -> None:
    plain = digits(mlp)
    data = replace(plain.data, root=plain.data.test)
    learner = ob.TorchLearner(mlp, data, plain.training)
    algorithm = ob.compose(ob.fedbuff(5, steps=2), aggregator=RULES[rule], clip=2.0)
    both(device, algorithm, learner)


@pytest.mark.parametrize("buffers", ["local", *thorough("mean", "recompute")])
def test_each_policy_of_buffers_has_the_bits_of_the_cpu(
    device: PretendedDevice, buffers: Any, learner: ob.TorchLearner
) -> None:
    both(device, ob.compose(ob.fedbuff(3, steps=2), buffers=buffers), learner)


def test_a_codec_encodes_on_the_cpu(device: PretendedDevice, learner: ob.TorchLearner) -> None:
    both(device, ob.compose(ob.fedbuff(3, steps=2), codec=Qsgd(levels=15)), learner, CALM)


def test_with_privacy_the_sums_are_on_the_cpu(device: PretendedDevice) -> None:
    privacy = Privacy(clip=5.0, secure=Secure())
    _, noted = both(device, ob.fedbuff(3, steps=2), digits(mlp), CALM, privacy=privacy)
    assert noted.downloaded


@pytest.fixture
def waits(device: PretendedDevice) -> Callable[[ob.TorchLearner], dict[str, Noted]]:
    """What a task, an evaluation and a version make the program wait for, once a run is under way."""

    def count(learner: ob.TorchLearner) -> dict[str, Noted]:
        objective = Plain()
        one = on(DEVICE, learner)
        base = one.initial(1).to(DEVICE)
        one.train(base, LocalTask(0, 0, 0, 1, 1), objective)
        one.evaluate(base)
        with device.phase() as short:
            one.train(base, LocalTask(1, 0, 0, 3, 1), objective)
        with device.phase() as long:
            result = one.train(base, LocalTask(2, 0, 0, 12, 1), objective)
        with device.phase() as evaluation:
            one.evaluate(base)
        assert result.delta.device.type == DEVICE
        return {"short": short, "long": long, "evaluation": evaluation}

    return count


@pytest.mark.parametrize("module", [mlp, normed])
def test_a_step_waits_for_nothing_and_a_task_and_an_evaluation_once(
    waits: Callable[[ob.TorchLearner], dict[str, Noted]], module: Callable[[], nn.Module]
) -> None:
    learner = digits(module)
    small = replace(learner.training, evaluation_batch_size=7)
    found = waits(ob.TorchLearner(module, learner.data, small))
    assert {name: len(noted.waits) for name, noted in found.items()} == {
        "short": 1,
        "long": 1,
        "evaluation": 1,
    }
    # What goes up are the numbers of the samples; what comes back is a loss, or scores and targets.
    assert found["long"].uploaded == 12 * 20 * 8
    assert found["long"].downloaded == 0
    assert found["evaluation"].downloaded <= len(learner.data.test or ()) * (10 * 4 + 8) + 15 * 4


TRAININGS: dict[str, dict[str, Any]] = {
    "momentum": {"momentum": 0.9, "weight_decay": 0.1},
    "adam": {"optimizer": "adam", "lr": 0.01, "clip_norm": 0.5},
    "weights": {"class_weights": tuple(range(1, 11)), "accumulate": 2},
    "decay": {"optimizer": "rmsprop", "lr": 0.01, "decay": ExponentialDecay(0.9), "decay_per": "step"},
}


@pytest.mark.parametrize("name", TRAININGS)
def test_no_option_of_the_training_makes_a_step_wait(device: PretendedDevice, name: str) -> None:
    data = digits(mlp).data
    one = ob.TorchLearner(mlp, data, ob.Training(batch_size=20, device=DEVICE, **TRAININGS[name]))
    base = one.initial(1).to(DEVICE)
    one.train(base, LocalTask(0, 0, 0, 1, 1), Plain())
    with device.phase() as noted:
        one.train(base, LocalTask(1, 0, 0, 5, 1), Plain())
    assert len(noted.waits) == 1, noted.waits


def test_large_scores_are_counted_where_they_are(
    device: PretendedDevice, learner: ob.TorchLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offbeat.local.evaluation.HELD", 100)
    there = on(DEVICE, learner)
    base = learner.initial(1)
    expected = learner.evaluate(base)
    with device.phase() as noted:
        assert there.evaluate(base.to(DEVICE)) == expected
    assert noted.downloaded < 100


@pytest.mark.parametrize(("module", "waits"), [(mlp, 2 + 1), (normed, 3 + 2)])
def test_an_update_costs_two_waits_and_a_version_one_and_each_one_more_with_buffers(
    device: PretendedDevice, module: Callable[[], nn.Module], waits: int
) -> None:
    learner = digits(module)
    _, noted = both(device, ob.fedasync(steps=4), learner, CALM, evaluate=None, until=ob.Until(tasks=8))
    _, before = both(device, ob.fedasync(steps=4), learner, CALM, evaluate=None, until=ob.Until(tasks=4))
    assert len(noted.waits) - len(before.waits) == 4 * waits
    assert noted.downloaded - before.downloaded < 4 * 64  # numbers, no vectors


@pytest.mark.parametrize("first", ["cpu", *thorough(DEVICE)])
def test_a_run_goes_on_from_a_checkpoint_on_the_device(
    device: PretendedDevice, tmp_path: Path, learner: ob.TorchLearner, first: str
) -> None:
    algorithm, half, end = make("fedfa"), ob.Until(tasks=8), ob.Until(tasks=16)
    options: dict[str, Any] = {"evaluate": SELDOM}
    whole = ob.simulate(algorithm, HARD, learner, until=end, seed=1, **options)
    ob.simulate(
        algorithm, HARD, on(first, learner), until=half, seed=1, out=tmp_path, keep_checkpoint=True, **options
    )
    gone_on = ob.resume(tmp_path, algorithm, HARD, on(DEVICE, learner), until=end, **options)
    assert torch.equal(gone_on.model.values, whole.model.values)


def wide() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4000), nn.ReLU(), nn.Linear(4000, 10))


@pytest.mark.parametrize(
    ("algorithm", "held", "training", "state"),
    [
        (ob.fedavg(steps=3), 5, {}, 0),
        (ob.fedasync(steps=3), 1, {"optimizer": "adam", "lr": 0.01}, 2),
        *thorough(
            (ob.fedavg(steps=3), 5, {"optimizer": "adam", "lr": 0.01}, 2),
            (ob.fedbuff(4, steps=3), 4, {"momentum": 0.9}, 1),
        ),
    ],
)
def test_the_peak_is_that_of_the_documented_formula(
    device: PretendedDevice,
    monkeypatch: pytest.MonkeyPatch,
    algorithm: ob.Algorithm,
    held: int,
    training: dict[str, Any],
    state: int,
) -> None:
    versions = []
    dispatch = GlobalModel.dispatch

    def counted(self: GlobalModel, task: int) -> Model:
        model = dispatch(self, task)
        good = [self.good.load()] if self.good else []
        versions.append(len({id(own) for own in (model, *good, *self.versions().values())}))
        return model

    monkeypatch.setattr(GlobalModel, "dispatch", counted)
    data = digits(wide).data
    learner = ob.TorchLearner(wide, data, ob.Training(batch_size=20, device=DEVICE, **training))
    with device.phase() as noted:
        ob.simulate(algorithm, CALM, learner, seed=1, until=ob.Until(tasks=30), evaluate=None)
    values = Model.of(wide()).layout.values
    # As docs/gpu.md has it; activations of 20 samples and the data are small beside the model here.
    formula = 4 * values * (3 + max(versions) + held + max(state, 1)) + data.train.nbytes
    assert 0.98 * formula < noted.peak < 1.05 * formula
