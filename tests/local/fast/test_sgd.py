"""The SGD of local training takes the steps of PyTorch's own, to the bit."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from offbeat.core.errors import UsageError
from offbeat.local.fast.sgd import SGD
from offbeat.local.training import Training

SHAPES = ((10, 1, 5, 5), (10,), (7, 3, 3, 3), (40, 33), ())


def moved(kind: type, seed: int, steps: int, lr: float, **options: Any) -> list[Tensor]:
    """Parameters, of which some are laid out channels last, after steps with random gradients."""
    draw = torch.Generator().manual_seed(seed)

    def tensors() -> list[Tensor]:
        made = [torch.randn(shape, generator=draw) for shape in SHAPES]
        return [t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else t for t in made]

    parameters = [nn.Parameter(t) for t in tensors()]
    optimizer = kind(parameters, lr, **options)
    for step in range(steps):
        optimizer.zero_grad()
        for place, (parameter, gradient) in enumerate(zip(parameters, tensors(), strict=True)):
            if (place + step) % 4:  # the others have no part in this step's loss
                parameter.grad = gradient
        optimizer.step()
    return [p.detach() for p in parameters]


@pytest.mark.bits
@given(
    seed=st.integers(0, 999),
    steps=st.integers(1, 7),
    lr=st.floats(1e-4, 2.0),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    weight_decay=st.sampled_from([0.0, 0.01]),
    nesterov=st.booleans(),
)
def test_same_bits(
    seed: int, steps: int, lr: float, momentum: float, weight_decay: float, nesterov: bool
) -> None:
    options = {"momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov and momentum > 0}
    ours, theirs = (moved(kind, seed, steps, lr, **options) for kind in (SGD, torch.optim.SGD))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_two_steps_by_hand():
    w = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = SGD([w], lr=0.5, momentum=0.5, weight_decay=0.5)
    w.grad = torch.tensor([1.0, 1.0])
    optimizer.step()  # g + λw = [1.5, 0]; w = [1 − 0.75, −2]
    assert w.tolist() == [0.25, -2.0]
    optimizer.step()  # v = 0.5 [1.5, 0] + [1.125, 0] = [1.875, 0]; w = [0.25 − 0.9375, −2]
    assert w.tolist() == [-0.6875, -2.0]


def test_gradients_stay_as_they_are():
    w = nn.Parameter(torch.ones(3))
    w.grad = torch.ones(3)
    optimizer = SGD([w], lr=0.5, momentum=0.9)
    optimizer.step()
    optimizer.step()
    assert w.grad.tolist() == [1.0, 1.0, 1.0]


def test_zero_grad_forgets_and_then_nothing_moves():
    w = nn.Parameter(torch.ones(2))
    w.grad = torch.ones(2)
    optimizer = SGD([w], lr=0.5)
    optimizer.zero_grad()
    optimizer.step()
    assert w.grad is None
    assert w.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_another_goes_on_from_its_state(momentum: float):
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    a, b = SGD([first], 0.1, momentum), SGD([second], 0.1, momentum)
    for p, optimizer in ((first, a), (second, b)):
        p.grad = torch.tensor([1.0, 2.0])
        optimizer.step()
    c = SGD([second], 0.1, momentum)
    c.load_state_dict(b.state_dict())
    for optimizer in (a, c):
        optimizer.step()
    assert torch.equal(first, second)


def test_nesterov_without_a_momentum_is_refused() -> None:
    with pytest.raises(UsageError, match=r"optimizer = 'sgd' with .*: nesterov needs a momentum"):
        Training(optimizer_options={"nesterov": True}).build([nn.Parameter(torch.ones(2))], 0.1)
