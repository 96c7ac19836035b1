"""`scaled` must give what a multiplication gives, to the last bit."""

import pytest
import torch

from offbeat.vectors.arithmetic import scaled

VALUES = [0.0, -0.0, 1.0, -1.0, 1 / 3, 1e-38, -1e-42, 3e38, float("inf"), -float("inf")]


@pytest.mark.parametrize("coefficient", [0.3, -0.7, 1 / 3, 1.0, 0.0, -0.0, 1e-30, -1e-45, 1e20])
def test_the_bits_are_those_of_a_multiplication(coefficient: float) -> None:
    vector = torch.cat([torch.tensor(VALUES), torch.randn(9_973, generator=torch.Generator().manual_seed(0))])
    expected = torch.mul(vector, coefficient)
    own, room = scaled(vector, coefficient), torch.empty_like(vector)
    assert scaled(vector, coefficient, room) is room
    number = ~expected.isnan()  # a NaN's sign is the processor's own affair
    for found in (own, room, scaled(vector.clone(), coefficient, vector)):
        assert torch.equal(found[number].view(torch.int32), expected[number].view(torch.int32))
        assert torch.equal(found.isnan(), ~number)
