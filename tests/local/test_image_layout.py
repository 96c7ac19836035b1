"""Images whose data set is in the memory layout of the module are not laid out again, for the same bits."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.core.learner import LocalTask
from offbeat.core.model import Model
from offbeat.data import Dataset, FederatedData, federate
from offbeat.local.objectives import Plain


def images(layout: torch.memory_format) -> FederatedData:
    """The same images of three channels, in a memory layout."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(60, 3, 8, 8)).astype(np.float32)).to(memory_format=layout)
    y = torch.from_numpy(rng.integers(0, 4, size=60))
    return federate(Dataset(x[:50], y[:50], 4), Dataset(x[50:], y[50:], 4), [np.arange(50)])


def learner(layout: torch.memory_format, module: nn.Module, last: bool | None = None) -> ob.TorchLearner:
    return ob.TorchLearner(
        module, images(layout), ob.Training("sgd", 0.1, batch_size=8, channels_last=last, momentum=0.9)
    )


def cnn() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 4, 3),
            nn.Flatten(), nn.Linear(16, 4),
        )  # fmt: skip


def mlp() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 4))


def trained(learner: ob.TorchLearner) -> tuple[torch.Tensor, Any]:
    base = learner.initial(0)
    task = LocalTask(task=0, client=0, base=0, steps=9, seed=0)
    delta = learner.train(base, task, Plain()).delta
    return delta, learner.evaluate(Model(base.layout, base.values + delta, base.integers))


@pytest.mark.parametrize("module", [cnn, mlp])
@pytest.mark.parametrize("last", [None, False])
def test_the_layout_of_the_data_changes_no_bit(module: Any, last: bool | None) -> None:
    delta, found = trained(learner(torch.contiguous_format, module(), last))
    same, again = trained(learner(torch.channels_last, module(), last))
    assert torch.equal(delta, same)
    assert found == again


def test_images_are_laid_out_once_for_training_and_evaluation() -> None:
    own = learner(torch.contiguous_format, cnn())
    ready = own.prepare()
    before = own.data.train.x.clone()  # type: ignore[union-attr]
    for kept in (ready.train, ready.resident(own.data.train), ready.resident(own.data.test)):  # type: ignore[arg-type]
        batch = kept.gather(torch.tensor([4, 0, 9]))  # type: ignore[union-attr]
        assert batch[0].is_contiguous(memory_format=torch.channels_last)
        assert ready.bench.laid_out(batch)[0].data_ptr() == batch[0].data_ptr()
    assert ready.resident(own.data.test) is ready.resident(own.data.test)  # type: ignore[arg-type]
    assert own.data.train.x.is_contiguous()  # type: ignore[union-attr]
    assert torch.equal(own.data.train.x, before)  # type: ignore[union-attr]


def test_images_that_need_no_other_layout_are_not_copied() -> None:
    for own in (learner(torch.channels_last, cnn()), learner(torch.contiguous_format, mlp())):
        assert own.prepare().train is own.data.train
        assert own.prepare().resident(own.data.test) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("budget", [0, 50 * (3 * 8 * 8 * 4 + 8)])
def test_images_beyond_the_budget_stay_as_they_are(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second budget is that of the train set alone. No bit depends on it."""
    delta, found = trained(learner(torch.contiguous_format, cnn()))
    monkeypatch.setattr("offbeat.local.device.LAID_OUT", budget)
    own = learner(torch.contiguous_format, cnn())
    assert (own.prepare().train is own.data.train) == (budget == 0)
    assert own.prepare().resident(own.data.test) is None  # type: ignore[arg-type]
    same, again = trained(own)
    assert torch.equal(delta, same)
    assert found == again


def test_the_layout_of_the_data_does_not_change_their_digest() -> None:
    """A run is resumed with the same data in another layout."""
    assert images(torch.channels_last).describe() == images(torch.contiguous_format).describe()


def test_a_part_of_images_keeps_their_layout() -> None:
    part = images(torch.channels_last).train.subset([3, 1, 1])  # type: ignore[union-attr]
    assert part.x.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(part.x, images(torch.contiguous_format).train.x[[3, 1, 1]])  # type: ignore[union-attr]
