"""Tasks trained together on the device: the bits of tasks trained together by `vmap`, and one wait."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from offbeat.local.fast.batched import BatchedTrainer
from offbeat.local.objectives import Plain
from tests.device.pretended import DEVICE, PretendedDevice
from tests.local.fast.test_batched import SEED, STEPS, learner, normed, rectified, tasks


@pytest.mark.parametrize("module", [rectified, normed])
def test_tasks_together_wait_once_and_come_back_on_the_device(
    device: PretendedDevice, module: Callable[[], nn.Module]
) -> None:
    here, there = learner(module), learner(module, device=DEVICE)
    base, chosen = here.initial(SEED), tasks()
    expected = BatchedTrainer(here, Plain(), len(chosen)).train([(task, base) for task in chosen])
    trainer, resident = BatchedTrainer(there, Plain(), len(chosen)), base.to(DEVICE)
    with device.phase() as noted:
        found = trainer.train([(task, resident) for task in chosen])
    for own, other in zip(expected, found, strict=True):
        assert other.delta.device.type == DEVICE
        torch.testing.assert_close(other.delta.cpu(), own.delta, rtol=1e-4, atol=1e-6)
        assert other.metrics["loss"] == pytest.approx(own.metrics["loss"], rel=1e-5)
    assert len(noted.waits) == 1, noted.waits
    assert noted.downloaded == 4 * len(STEPS)
