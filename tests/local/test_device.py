"""Precision and places of what a learner computes with on its device."""

from typing import Any

import numpy as np
import pytest
import torch

import offbeat as ob
from offbeat.core.learner import LocalTask
from offbeat.data import Dataset, federate
from offbeat.local.device import AHEAD, full_precision
from offbeat.local.objectives import Plain


def precisions() -> list[Any]:
    cudnn: Any = torch.backends.cudnn
    return [each.fp32_precision for each in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)]


def test_full_precision_is_without_tf32_and_leaves_the_settings_as_they_were() -> None:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = True
    try:
        with full_precision("cuda"):
            assert not torch.backends.cudnn.allow_tf32
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.backends.cudnn.allow_tf32
        with full_precision("cpu"):
            assert torch.backends.cudnn.allow_tf32
    finally:
        torch.backends.cudnn.allow_tf32 = before


@pytest.mark.skipif(
    not hasattr(torch.backends.cudnn, "conv"), reason="this PyTorch has the older settings only"
)
def test_full_precision_with_the_newer_settings_of_pytorch() -> None:
    cudnn: Any = torch.backends.cudnn
    before = precisions()
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    cudnn.conv.fp32_precision = "ieee"
    try:
        with full_precision("cuda"):
            assert precisions() == ["ieee"] * 3
        assert precisions() == ["tf32", "ieee", before[2]]
    finally:
        for each, was in zip((torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn), before, strict=True):
            each.fp32_precision = was


def test_rows_that_are_copied_ahead_are_those_of_each_batch() -> None:
    """Unlike "cpu", the name "cpu:0" is that of a device, to which rows are copied."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(23, 4)).astype(np.float32))
    data = federate(Dataset(x, torch.from_numpy(rng.integers(0, 3, size=23)), 3), None, [np.arange(23)])
    deltas, module = [], torch.nn.Linear(4, 3)
    for device in ("cpu", "cpu:0"):
        learner = ob.TorchLearner(module, data, ob.Training(lr=0.1, batch_size=5, device=device))
        task = LocalTask(0, 0, 0, 2 * AHEAD + 7, seed=1)
        deltas.append(learner.train(learner.initial(1), task, Plain()).delta)
    assert torch.equal(*deltas)
