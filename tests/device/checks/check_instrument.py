"""The pretended device notes what a GPU waits for, refuses what it refuses, and computes as the CPU does."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from tests.device.pretended import DEVICE, MixedDevicesError, PretendedDevice


@pytest.mark.parametrize(
    ("wait", "read"),
    [
        ("_local_scalar_dense", lambda x: float(x.sum())),
        ("_local_scalar_dense", lambda x: bool(x.any())),
        ("_to_copy", lambda x: x.cpu()),
        ("copy_", lambda x: torch.empty(4).copy_(x, non_blocking=True)),
        ("nonzero", lambda x: x.nonzero()),
        ("index", lambda x: x[x > 0]),
        ("index", lambda x: x[torch.tensor([0, 1])]),
        ("_to_copy", lambda x: torch.ones(4).to(DEVICE)),
        ("_to_copy", lambda x: torch.tensor([1.0], device=DEVICE)),
        ("copy_", lambda x: x.copy_(torch.ones(4))),
        ("equal", lambda x: torch.equal(x, x)),
    ],
)
def test_waits_are_noted_once_with_their_place(
    device: PretendedDevice, wait: str, read: Callable[[Tensor], object]
) -> None:
    x = torch.arange(4.0).to(DEVICE, non_blocking=True)
    read(x)
    assert [noted.partition(" at ")[0] for noted in device.noted.waits] == [wait]
    assert "check_instrument.py:" in device.noted.waits[0]


def test_work_on_the_device_waits_for_nothing(device: PretendedDevice) -> None:
    x = torch.arange(4.0).to(DEVICE, non_blocking=True)
    total = (x * 2 + torch.ones(4, device=DEVICE)).clamp_(0, 3).sum()
    assert total.device.type == DEVICE
    assert (device.noted.waits, device.noted.uploaded, device.noted.downloaded) == ([], 16, 0)


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x + torch.ones(4),
        lambda x: torch.add(torch.ones(4), x, out=torch.empty(4)),
        lambda x: x.index_select(0, torch.tensor([0])),
        lambda x: nn.functional.linear(torch.ones(2, 4), x),
    ],
)
def test_operands_of_both_devices_are_refused(
    device: PretendedDevice, mix: Callable[[Tensor], object]
) -> None:
    with pytest.raises(MixedDevicesError):
        mix(torch.ones(4, device=DEVICE))


def test_the_peak_counts_each_storage_once_and_forgets_what_is_freed(device: PretendedDevice) -> None:
    with device.phase() as noted:
        x = torch.zeros(1000, device=DEVICE)
        x[:10].add_(1)
        del x
        y = torch.zeros(500, device=DEVICE)
    assert (noted.peak, noted.live, y.nbytes) == (4000, 2000, 2000)


def test_a_training_step_has_the_bits_of_the_cpu(device: PretendedDevice) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5)]
    here = nn.Sequential(*layers)
    x, y = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    there = deepcopy(here).to(DEVICE)
    for module, name in ((here, "cpu"), (there, DEVICE)):
        nn.functional.cross_entropy(module(x.to(name)), y.to(name)).backward()
        torch.optim.AdamW(module.parameters(), fused=True).step()
    for own, other in zip(here.parameters(), there.parameters(), strict=True):
        assert other.device.type == DEVICE
        assert torch.equal(own, other.detach().cpu())
