"""FedOpt's server steps, worked out by hand on two parameters (the arithmetic is in the comments)."""

from math import sqrt
from typing import Any

import pytest

import offbeat as ob
from offbeat.core.layout import Entry, Layout
from tests.golden.hand_driven import HandDriven
from tests.golden.near import near


def one_client(algorithm: ob.Algorithm) -> HandDriven:
    """Its change of the model is the server's gradient g."""
    return HandDriven(algorithm, [1], [0.0, 0.0])


# η = 1, β₁ = ½, β₂ = ¾, τ = 1: m = (0, 0) and v = τ² = (1, 1) at first. g = (4, 0), then (0, 2).
# m = ½(0, 0) + ½(4, 0) = (2, 0), then ½(2, 0) + ½(0, 2) = (1, 1).
OPTIONS: dict[str, Any] = {"server_lr": 1.0, "beta1": 0.5, "tau": 1.0}


def test_adagrad():
    run = one_client(ob.fedadagrad(1, **OPTIONS))
    run.delta(1, 0, 4.0, 0.0)
    assert run.w == near(0.3903882, 0.0)  # v = (17, 1): 2/(√17 + 1), 0/(1 + 1)
    run.delta(2, 0, 0.0, 2.0)
    assert run.w == near(0.5855823, 0.3090170)  # v = (17, 5): + 1/(√17 + 1), 1/(√5 + 1)


def test_adam():
    run = one_client(ob.fedadam(1, **OPTIONS, beta2=0.75))
    run.delta(1, 0, 4.0, 0.0)
    assert run.w == near(
        0.6290397, 0.0
    )  # v = (¾ + ¼·16, ¾) = (4.75, 0.75): 2/(√4.75 + 1); no bias correction
    run.delta(2, 0, 0.0, 2.0)
    # v = (¾·4.75, ¾·0.75 + ¼·4) = (3.5625, 1.5625): + 1/(1.8874586 + 1), 1/(1.25 + 1)
    assert run.w == near(0.9753650, 0.4444444)


def test_yogi():
    run = one_client(ob.fedyogi(1, **OPTIONS, beta2=0.75))
    run.delta(1, 0, 4.0, 0.0)
    assert run.w == near(0.6180340, 0.0)  # v < g²: 1 + ¼·16 = 5, and 1: 2/(√5 + 1)
    run.delta(2, 0, 0.0, 2.0)
    assert run.w == near(0.9270510, 0.4142136)  # v = (5, 1 + ¼·4 = 2): + 1/(√5 + 1), 1/(√2 + 1)
    run.delta(3, 0, 1.0, 1.0)
    # m = (1, 1); v > g²: (5 − ¼, 2 − ¼): + 1/(√4.75 + 1) = 0.3145198, 1/(√1.75 + 1) = 0.4305009
    assert run.w == near(1.2415708, 0.8447145)


def test_the_first_step_of_the_defaults():
    g = 0.5
    # m = 0.1 g (FedAdagrad: g), v = τ² + g², 0.99 τ² + 0.01 g², τ² + 0.01 g² with τ = 10⁻³
    for make, m, v in [
        (ob.fedadagrad, g, 1e-6 + g**2),
        (ob.fedadam, 0.1 * g, 0.99e-6 + 0.01 * g**2),
        (ob.fedyogi, 0.1 * g, 1e-6 + 0.01 * g**2),
    ]:
        run = one_client(make(1, server_lr=2.0))
        run.delta(1, 0, g, -g)
        assert run.w == near(2 * m / (sqrt(v) + 1e-3), -2 * m / (sqrt(v) + 1e-3))


@pytest.mark.parametrize("make", [ob.fedadagrad, ob.fedadam, ob.fedyogi])
def test_floating_buffers_are_the_clients_mean(make):
    layout = Layout(
        (Entry("w", (1,), "float32", "parameter"), Entry("running_var", (1,), "float32", "buffer"))
    )
    run = HandDriven(make(1, server_lr=5.0), [1, 3], [0.0, 1.0], layout)
    for t in (1, 2):
        run.delta(t, 0, 0.0, 0.2 - run.w[1])
        run.delta(t, 1, 1.0, 0.4 - run.w[1])
        assert run.w[0] > t  # ¾ went through the step
        assert run.w[1] == pytest.approx(0.3)  # ½(0.2 + 0.4)
