"""The Adam and AdamW of local training take the steps of PyTorch's own, to the bit."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from offbeat.core.errors import UsageError
from offbeat.local.fast.adam import FusedAdam
from offbeat.local.training import Training

SHAPES = ((10, 1, 5, 5), (10,), (7, 3, 3, 3), (40, 33), ())


def drawn(seed: int) -> list[Tensor]:
    """Tensors, of which some are laid out channels last."""
    draw = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=draw) for shape in SHAPES]
    return [t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else t for t in made]


def step(optimizer: Any, parameters: list[nn.Parameter], number: int) -> None:
    optimizer.zero_grad()
    for place, (parameter, gradient) in enumerate(zip(parameters, drawn(number), strict=True)):
        if (place + number) % 4:  # the others have no part in this step's loss
            parameter.grad = gradient
    optimizer.step()


@pytest.mark.bits
@given(
    seed=st.integers(0, 999),
    steps=st.integers(1, 7),
    lr=st.floats(1e-4, 2.0),
    betas=st.sampled_from([(0.9, 0.999), (0.0, 0.5)]),
    weight_decay=st.sampled_from([0.0, 0.01]),
    decoupled=st.booleans(),
)
def test_same_bits(
    seed: int, steps: int, lr: float, betas: tuple[float, float], weight_decay: float, decoupled: bool
) -> None:
    theirs = partial(torch.optim.AdamW if decoupled else torch.optim.Adam, fused=True)
    found = []
    for make in (partial(FusedAdam, decoupled=decoupled), theirs):
        parameters = [nn.Parameter(t) for t in drawn(seed)]
        optimizer = make(parameters, lr=lr, betas=betas, weight_decay=weight_decay)
        for number in range(steps):
            step(optimizer, parameters, seed + number)
        found.append(parameters)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_the_order_of_gradients_and_states_in_memory_changes_no_bit() -> None:
    """A checkpoint and a captured step have them contiguous."""
    found = []
    for layout in (torch.preserve_format, torch.contiguous_format):
        parameters = [nn.Parameter(t) for t in drawn(0)]
        optimizer = FusedAdam(parameters, 0.1)
        for number in range(3):
            state = optimizer.state_dict()["state"]
            copies = {
                i: {n: t.clone(memory_format=layout) for n, t in own.items()} for i, own in state.items()
            }
            optimizer = FusedAdam(parameters, 0.1)
            optimizer.load_state_dict({"state": copies})
            for parameter, gradient in zip(parameters, drawn(number), strict=True):
                parameter.grad = None
                parameter.grad = gradient.clone(memory_format=layout)
            optimizer.step()
        found.append(parameters)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_parameters_of_several_types_are_moved() -> None:
    parameters = [nn.Parameter(torch.ones(2, dtype=dtype)) for dtype in (torch.float32, torch.float64)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    FusedAdam(parameters, 0.5).step()
    for parameter in parameters:
        torch.testing.assert_close(parameter.detach(), torch.full_like(parameter, 0.5))


@pytest.mark.parametrize(
    "options", [{"betas": (0.9, 1.0)}, {"betas": (-0.1, 0.9)}, {"eps": -1.0}, {"betas": 3}]
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="optimizer = 'adam' with"):
        Training("adam", optimizer_options=options).build([nn.Parameter(torch.ones(2))], 0.1)


@pytest.mark.parametrize(
    "options", [{"optimizer": "adamw", "optimizer_options": {"amsgrad": True}}, {"precision": "float16"}]
)
def test_what_it_does_not_have_is_left_to_pytorch(options: dict[str, Any]) -> None:
    made = Training(**{"optimizer": "adam", **options}).build([nn.Parameter(torch.ones(2))], 0.1)
    assert isinstance(made, torch.optim.Adam)
    assert made.param_groups[0]["fused"]
    assert made.param_groups[0]["weight_decay"] == 0.0
