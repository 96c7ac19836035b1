"""Numbers read from tensors: on the CPU each by itself, in their order."""

import torch

from offbeat.core.reads import read_numbers


def test_numbers_come_in_their_order_with_their_values() -> None:
    scalars = [torch.tensor(1.5), torch.tensor([2]), torch.tensor(True), torch.tensor(float("inf"))]
    assert read_numbers(scalars) == [1.5, 2, True, float("inf")]
    assert read_numbers([]) == []
