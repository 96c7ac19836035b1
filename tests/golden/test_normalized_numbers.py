"""FedNova and FedLWS, worked out by hand (the arithmetic is in the comments)."""

from dataclasses import replace
from math import sqrt

import pytest
import torch

import offbeat as ob
from offbeat.algorithms.aggregators import Normalization, SumOfDeltas
from offbeat.algorithms.fedlws import ShrunkMean, layers
from offbeat.core.aggregator import Update
from offbeat.core.events import Joined
from offbeat.core.features import Feature
from offbeat.core.layout import Entry, Layout
from offbeat.core.model import Model
from offbeat.core.schedule import Task
from tests.golden.hand_driven import HandDriven
from tests.golden.near import near

# ---- FedNova: a, what local steps add up to ----


@pytest.mark.parametrize("steps", [1, 2, 5, 40])
def test_a_is_the_weight_of_the_gradients_in_an_update(steps):
    assert Normalization().a(steps) == steps
    for rho in (0.1, 0.5, 0.9):  # SGD with momentum, all gradients 1 and rate 1
        velocity = moved = 0.0
        for _ in range(steps):
            velocity = rho * velocity + 1
            moved += velocity
        assert Normalization(momentum=rho).a(steps) == pytest.approx(moved)
    for x in (1e-12, 0.01, 0.5, 0.99):  # w := w − η(g + μ w) from 0: −η g times 1 + (1 − ημ) + …
        moved = 0.0
        for _ in range(steps):
            moved = moved + 1 - x * moved
        assert Normalization(proximal=x).a(steps) == pytest.approx(moved)


# ---- FedNova: two clients, n = 1 and 3, with 2 and 4 steps ----


def nova(**options: float) -> HandDriven:
    run = HandDriven(ob.fednova(epochs=1, **options), [], [0.0, 0.0])
    run.feed(0, Joined(0, 1, 2))  # a round of its own: client 1 is there from the second one on
    run.feed(0, Joined(1, 3, 4))
    run.delta(1, 0, 0.0, 0.0)
    run.delta(2, 0, 8.0, 0.0)
    run.delta(2, 1, 0.0, 16.0)
    return run


def test_fednova_unequal_steps():
    # ā = ¼·2 + ¾·4 = 3.5; 3.5 (¼ (8, 0)/2 + ¾ (0, 16)/4) = 3.5 (1, 3)
    assert nova().w == near(3.5, 10.5)


def test_fednova_momentum():
    # a(2) = 1 + 1.5 = 2.5, a(4) = 1 + 1.5 + 1.75 + 1.875 = 6.125; ā = ¼·2.5 + ¾·6.125 = 5.21875
    # 5.21875 (¼·8/2.5, ¾·16/6.125) = 5.21875 (0.8, 1.9591837)
    assert nova(momentum=0.5).w == near(4.175, 10.2244898)


def test_fednova_proximal():
    # ημ = ½: a(2) = 1 + ½, a(4) = 1 + ½ + ¼ + ⅛; ā = ¼·1.5 + ¾·1.875 = 1.78125
    # 1.78125 (¼·8/1.5, ¾·16/1.875) = 1.78125 (1.3333333, 6.4)
    assert nova(mu=1.0, lr=0.5).w == near(2.375, 11.4)


def test_the_weights_of_a_sum_of_deltas():
    w = Model.empty(Layout.flat(1))
    updates = [
        Update(Task(i, i, 0, steps, 0.0, 1, samples, share), w, torch.tensor([delta]), w.integers)
        for i, (steps, samples, share, delta) in enumerate([(2, 1, 0.125, 8.0), (4, 3, 0.375, 16.0)])
    ]

    def step(weights, **options):
        return SumOfDeltas(weights=weights, **options).step(updates, w, {}).tolist()

    assert step("share") == near(7.0)  # ⅛·8 + ⅜·16
    assert step("equal") == near(12.0)  # ½·8 + ½·16
    assert step("samples") == near(14.0)  # ¼·8 + ¾·16
    # with normalize: ⅛·8/2 + ⅜·16/4 = 2, ½·4 + ½·4 = 4, ¼·4 + ¾·4 = 4, times ā = 3.5, 3, 3.5
    assert step("share", normalize=Normalization()) == near(7.0)
    assert step("equal", normalize=Normalization()) == near(12.0)
    assert step("samples", normalize=Normalization()) == near(14.0)
    # 1/(τ + 1) = ½ and scale 3
    assert step("equal", normalize=Normalization(), staleness=ob.polynomial(1.0, 1.0), scale=3.0) == near(
        18.0
    )


# ---- FedLWS: two layers (3, 4) and (2), and a buffer; n = 1 and 3 ----

TWO = Layout(
    (
        Entry("a.weight", (1,), "float32", "parameter"),
        Entry("a.bias", (1,), "float32", "parameter"),
        Entry("b.weight", (1,), "float32", "parameter"),
        Entry("running_mean", (1,), "float32", "buffer"),
    )
)


def lws(start: tuple[float, ...] = (3.0, 4.0, 2.0, 10.0), **options: float) -> list[float]:
    run = HandDriven(ob.fedlws(1, **options), [1, 3], start, TWO)
    run.delta(1, 0, 4.0, 0.0, 8.0, 4.0)
    run.delta(2, 1, 0.0, 4.0, 0.0, 0.0)
    return run.w


# w_avg − w = ¼(4, 0) + ¾(0, 4) = (1, 3), ¼·8 = 2 and ¼·4 = 1. ‖w‖ = 5 and 2, ‖w_avg − w‖ = √10 and 2.


def test_fedlws_shrinks_by_how_much_the_clients_disagree():
    # Δ̄ = (2, 2): both are √8 from it, τ = 0.03·√8 = 0.0848528; Δ̄ = 4: both are 4 from it, τ = 0.12
    # γ = 5/(5 + 0.0848528·√10) = 0.9490677 and 2/(2 + 0.12·2) = 0.8928571
    # γ (3 + 1, 4 + 3) and γ (2 + 2); the buffer is not shrunk
    assert lws() == near(3.7962707, 6.6434738, 3.5714286, 11.0)


def test_fedlws_clips():
    low, high = 5 / (5 + 0.01 * sqrt(10)), 5 / (5 + 0.2 * sqrt(10))
    assert lws(beta=0.001) == near(4 * low, 7 * low, 4 * 2 / 2.02, 11.0)  # 0.001·√8 and 0.004 are below 0.01
    assert lws(beta=1.0) == near(4 * high, 7 * high, 4 * 2 / 2.4, 11.0)  # √8 and 4 are above 0.2
    # β·√8 = 0.0848528 is raised to 0.1, β·4 = 0.12 is lowered to 0.11
    a, b = 5 / (5 + 0.1 * sqrt(10)), 2 / (2 + 0.11 * 2)
    assert lws(low=0.1, high=0.11) == near(4 * a, 7 * a, 4 * b, 11.0)


def test_fedlws_leaves_a_layer_of_zeros_alone():
    assert lws((0.0, 0.0, 2.0, 10.0)) == near(1.0, 3.0, 3.5714286, 11.0)


def test_fedlws_counts_from_the_model_there_is():
    layout = Layout.flat(1)
    old, now = (Model(layout, torch.tensor([v]), torch.zeros(0, dtype=torch.int64)) for v in (1.0, 2.0))
    updates = [
        Update(Task(0, 0, 0, 1, 0.0, 1, samples=1), old, torch.tensor([5.0]), now.integers),  # w_0 = 6: Δ = 4
        Update(Task(1, 1, 1, 1, 0.0, 0, samples=1), now, torch.tensor([0.0]), now.integers),  # w_1 = 2: Δ = 0
    ]
    # w_avg = 4; both are 2 from Δ̄: τ = 0.06, γ = 2/(2 + 0.06·2)
    assert (now.values + ShrunkMean().step(updates, now, {})).tolist() == near(4 * 2 / 2.12)


def test_a_layer_ends_with_its_bias():
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3, bias=False),
        torch.nn.BatchNorm2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(4, 3),
    )
    assert layers(Layout.of(module)) == [slice(0, 18 + 2 + 2), slice(22, 22 + 12 + 3)]
    assert layers(TWO) == [slice(0, 2), slice(2, 3)]
    assert Feature.SINGLE_UPDATES in replace(ShrunkMean(), low=0.0).requires
