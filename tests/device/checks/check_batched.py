"""Tasks trained together on the device: the bits of tasks trained together by `vmap`, and one wait."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.core.model import Model
from offbeat.local.fast import batched_module
from offbeat.local.fast.batched import BatchedTrainer
from offbeat.local.fast.batched_module import _Convolution
from offbeat.local.objectives import Plain
from tests.device.pretended import DEVICE, PretendedDevice
from tests.local.fast.test_batched import (
    IMAGES,
    SEED,
    STEPS,
    batch_normed,
    convolutional,
    learner,
    normed,
    rectified,
    tasks,
)
from tests.sampling import thorough
from tests.sim.sim_worlds import CALM, digits


def wide() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4000), nn.ReLU(), nn.Linear(4000, 10))


@pytest.mark.parametrize(
    ("module", "shape"),
    [*thorough((rectified, (6,)), (normed, (6,))), (batch_normed, IMAGES), (convolutional, (1, 4, 4))],
)
def test_tasks_together_wait_once_and_come_back_on_the_device(
    device: PretendedDevice, module: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    options: dict[str, Any] = {"batch_size": 5, "lr": 0.05, "drop_last": True}
    here, there = learner(module, shape, **options), learner(module, shape, device=DEVICE, **options)
    base, chosen = here.initial(SEED), tasks()
    expected = BatchedTrainer(here, Plain(), len(chosen)).train([(task, base) for task in chosen])
    trainer, resident = BatchedTrainer(there, Plain(), len(chosen)), base.to(DEVICE)
    assert trainer._samples.shape == (len(chosen) * 5, *shape)  # a GPU has no samples of weight zero
    with device.phase() as noted:
        found = trainer.train([(task, resident) for task in chosen])
    for own, other in zip(expected, found, strict=True):
        assert other.delta.device.type == DEVICE
        torch.testing.assert_close(other.delta.cpu(), own.delta, rtol=1e-3, atol=1e-5)
        assert torch.equal(other.integers.cpu(), own.integers)
        assert other.metrics["loss"] == pytest.approx(own.metrics["loss"], rel=1e-5)
    assert len(noted.waits) == 1, noted.waits
    assert noted.downloaded == 4 * len(STEPS)


@pytest.mark.parametrize(
    ("training", "each", "found"),
    [
        ({}, 2, 17.0),
        ({"optimizer": "adam", "lr": 0.01}, 5, 30.4),
        *thorough(({"momentum": 0.9}, 3, 20.4), ({"clip_norm": 1.0}, 3, 20.4)),
    ],
)
def test_the_peak_is_below_that_of_the_documented_formula(
    device: PretendedDevice, training: dict[str, Any], each: int, found: float
) -> None:
    """`found` is the peak in models, without the data, that was measured when this was written."""
    data, clients = digits(wide).data, 5
    one = ob.TorchLearner(wide, data, ob.Training(batch_size=2, device=DEVICE, **training))
    until = ob.Until(tasks=10)
    with device.phase() as noted:
        ob.simulate(ob.fedavg(steps=2), CALM, one, until=until, evaluate=None, executor=ob.Batched(clients))
    values = Model.of(wide()).layout.values
    # The current version, and the initial one: the warm-up of the guard lasts longer than ten tasks.
    versions, held = 2, clients
    formula = 4 * values * (2 + clients * each + versions + held) + data.train.nbytes
    assert noted.peak < formula
    assert noted.peak - data.train.nbytes == pytest.approx(4 * values * found, rel=0.02)


@pytest.mark.parametrize("limit", [1 << 30, 0])
def test_convolutions_are_one_product_up_to_a_limit(
    device: PretendedDevice, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    products = []
    multiply = _Convolution.multiply

    def counted(layer: _Convolution, windows: torch.Tensor) -> torch.Tensor:
        products.append(windows.shape)
        return multiply(layer, windows)

    monkeypatch.setattr(_Convolution, "multiply", counted)
    monkeypatch.setattr(batched_module, "UNFOLDED", limit)
    there = learner(convolutional, (1, 4, 4), batch_size=5, device=DEVICE)
    BatchedTrainer(there, Plain(), 2)
    assert bool(products) == bool(limit)
