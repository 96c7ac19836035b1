"""Optimizers and decays of the learning rate."""

from math import cos, pi

import pytest
import torch

from offbeat.core.errors import UsageError
from offbeat.local.training import CosineDecay, ExponentialDecay, InverseDecay, Training


@pytest.mark.parametrize(
    ("decay", "factors"),
    [
        (ExponentialDecay(0.5), {0: 1.0, 1: 0.5, 2: 0.25, 10: 0.5**10}),
        (ExponentialDecay(0.5, every=3), {0: 1.0, 2: 1.0, 3: 0.5, 5: 0.5, 6: 0.25}),
        (InverseDecay(4.0), {0: 1.0, 4: 0.5, 12: 0.25}),
        (CosineDecay(4), {0: 1.0, 1: (1 + cos(pi / 4)) / 2, 2: 0.5, 4: 0.0, 9: 0.0}),
        (CosineDecay(10, floor=0.2), {0: 1.0, 5: 0.6, 10: 0.2, 100: 0.2}),
    ],
    ids=str,
)
def test_decay_factors(decay, factors):
    for version, factor in factors.items():
        assert decay.factor(version) == pytest.approx(factor, abs=1e-12)
        assert Training(lr=0.3, decay=decay).rate(version, 0.5) == pytest.approx(0.15 * factor, abs=1e-12)


@pytest.mark.parametrize(
    ("training", "theirs"),
    [
        (Training(), lambda p: torch.optim.SGD(p, 0.1)),
        (
            Training("sgd", 0.2, momentum=0.9, weight_decay=0.01),
            lambda p: torch.optim.SGD(p, 0.2, 0.9, weight_decay=0.01),
        ),
        (Training("adam", 0.003), lambda p: torch.optim.Adam(p, 0.003)),
        (Training("SGD", 0.2, momentum=0.9), lambda p: torch.optim.SGD(p, 0.2, 0.9)),
        (Training("torch.optim.Adam", 0.003), lambda p: torch.optim.Adam(p, 0.003)),
        (Training(torch.optim.NAdam, 0.003), lambda p: torch.optim.NAdam(p, 0.003)),
        (Training("adamw", 0.1, weight_decay=0.2), lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.2)),
    ],
)
def test_optimizers(training, theirs):
    moved = []
    for build in (lambda p: training.build(p, training.rate(0)), theirs):
        parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
        optimizer = build([parameter])
        for step in range(3):
            parameter.grad = torch.tensor([1.0, 2.0, -3.0]) * (step + 1)
            optimizer.step()
        moved.append(parameter.detach())
    torch.testing.assert_close(*moved, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.0},
        {"lr": float("inf")},
        {"batch_size": 0},
        {"momentum": 1.0},
        {"weight_decay": -1.0},
        {"optimizer": "lion"},
        {"decay": {"kind": "exponential", "gamma": 1.5}},
        {"decay": {"kind": "step"}},
    ],
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(UsageError, match=r"not allowed|unknown"):
        Training(**options)


def test_an_optimizer_has_one_name_in_a_record():
    assert Training("AdamW") == Training("torch.optim.AdamW") == Training("adamw")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"optimizer": torch.optim.SGD, "momentum": 0.9}, "momentum is for .*, or give the name, 'sgd'"),
        (
            {"optimizer": torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])},
            "each task makes its own: give the name, 'adam', or a function",
        ),
        ({"optimizer": torch.optim.LBFGS}, "a step of it needs the loss several times"),
        ({"optimizer": "adan"}, 'unknown; did you mean "adam"'),
        ({"optimizer": 7}, "optimizer = 7 is not allowed: give a name, such as 'sgd'"),
    ],
)
def test_what_makes_no_optimizer_is_refused_in_one_line(options, told):
    with pytest.raises(UsageError, match=told) as caught:
        Training(**options)
    assert "\n" not in str(caught.value)


def test_a_decay_can_be_given_as_a_mapping():
    assert Training(decay={"kind": "inverse", "kappa": 3}).decay == InverseDecay(3.0)
