"""Optimizers and decays of the learning rate."""

from math import cos, pi

import pytest
import torch

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
        optimizer = Training(lr=0.3, decay=decay).build([torch.zeros(1, requires_grad=True)], version)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.3 * factor, abs=1e-12)


@pytest.mark.parametrize(
    ("training", "kind", "options"),
    [
        (Training(), torch.optim.SGD, {"lr": 0.1, "momentum": 0, "weight_decay": 0}),
        (
            Training("sgd", 0.2, momentum=0.9, weight_decay=0.01),
            torch.optim.SGD,
            {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.01},
        ),
        (Training("adam", 0.003), torch.optim.Adam, {"lr": 0.003, "betas": (0.9, 0.999), "weight_decay": 0}),
        (Training("adamw", 0.1, weight_decay=0.2), torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.2}),
    ],
)
def test_optimizers(training, kind, options):
    optimizer = training.build([torch.zeros(1, requires_grad=True)], 0)
    assert type(optimizer) is kind
    assert {k: optimizer.param_groups[0][k] for k in options} == options


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
    with pytest.raises(ValueError, match=r"validation error|not allowed"):
        Training(**options)


def test_a_decay_can_be_given_as_a_mapping():
    assert Training(decay={"kind": "inverse", "kappa": 3}).decay == InverseDecay(3.0)
