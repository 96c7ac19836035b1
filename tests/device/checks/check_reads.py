"""What is read from the device together: one wait, and the values and dtypes of each by itself."""

import torch

from offbeat.core.reads import read_numbers
from offbeat.local.host_copies import to_host
from tests.device.pretended import DEVICE, PretendedDevice


def test_numbers_of_both_devices_are_read_with_one_wait(device: PretendedDevice) -> None:
    there = torch.arange(4.0).to(DEVICE, non_blocking=True)
    found = read_numbers([there[1], torch.tensor(7), there.sum(), (there > 1).any()])
    assert found == [1.0, 7, 6.0, 1.0]
    assert len(device.noted.waits) == 1


def test_tensors_of_any_dtype_and_shape_come_in_one_copy(device: PretendedDevice) -> None:
    own = [
        torch.tensor([True, False, True]),
        torch.arange(6.0).view(2, 3).t(),
        torch.tensor(5),
        torch.zeros(0, 4),
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        torch.tensor([1.0], dtype=torch.float64),
    ]
    there = [t.to(DEVICE, non_blocking=True) for t in own]
    found = to_host([there[0], torch.ones(2), *there[1:]])
    assert len(device.noted.waits) == 1
    assert torch.equal(found.pop(1), torch.ones(2))
    for tensor, expected in zip(found, own, strict=True):
        assert tensor.dtype is expected.dtype
        assert torch.equal(tensor, expected)
