"""Settings at which one way of aggregating becomes another, on a small problem with real updates."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from msgspec import structs

import offbeat as ob
from offbeat.algorithms.fedfa import Window
from offbeat.core.aggregator import Aggregator, Update
from offbeat.core.model import Model
from tests.algorithms.pull import Pull, play, replay, same_model


def close(one: ob.Run, other: ob.Run, atol: float = 1e-5) -> bool:
    return torch.allclose(one.model.values, other.model.values, atol=atol)


# ---- rounds ----


def test_fedprox_without_its_term_is_fedavg_bit_for_bit():
    one, other = play(ob.fedprox(3, mu=0.0)), play(ob.fedavg(3))
    assert same_model(one, other)
    assert one.journal == other.journal
    assert ob.fedprox(mu=0.0).objective == ob.fedavg().objective
    assert not close(play(ob.fedprox(3, mu=0.1)), other, 1e-3)


@pytest.mark.parametrize("sampled", [None, 2])
def test_fednova_at_equal_steps_is_fedavg(sampled):
    plain = play(ob.fedavg(3, clients_per_round=sampled))
    assert close(play(ob.fednova(3, clients_per_round=sampled)), plain)
    assert close(play(ob.fednova(3, clients_per_round=sampled, momentum=0.9)), plain)  # a(3) cancels


def test_fednova_at_equal_steps_is_fedprox():
    assert close(play(ob.fednova(3, mu=0.5, lr=0.2)), play(ob.fedprox(3, mu=0.5)))


def test_fednova_at_unequal_steps_is_neither():
    nova = play(ob.fednova(epochs=1))
    assert not close(nova, play(ob.fedavg(epochs=1)), 1e-3)
    assert not close(nova, play(ob.fednova(epochs=1, momentum=0.9)), 1e-3)
    assert not close(play(ob.fednova(epochs=1, mu=0.5, lr=0.2)), play(ob.fedprox(epochs=1, mu=0.5)), 1e-3)


def test_fedlws_that_does_not_shrink_is_fedavg_bit_for_bit():
    assert same_model(play(ob.fedlws(3, low=0.0, high=0.0)), play(ob.fedavg(3)))
    early = ob.Until(versions=3)  # the nearer the models come to each other, the less is shrunk
    assert not close(play(ob.fedlws(3), until=early), play(ob.fedavg(3), until=early), 1e-3)


@pytest.mark.parametrize(
    "make", [ob.fedadagrad, lambda *a, **k: ob.fedadam(*a, **k, beta2=0.999999), ob.fedyogi]
)
def test_fedopt_that_does_not_adapt_is_fedavg(make):
    """v stays τ² where τ is far above every g: η m / (τ + τ) = g at η = 2τ and β₁ = 0."""
    tau = 1e4
    assert close(play(make(3, server_lr=2 * tau, beta1=0.0, tau=tau)), play(ob.fedavg(3)), 1e-3)


# ---- FedFa ----


def test_fedfa_param_of_one_replaces_from_the_second_arrival_on():
    """As FedAsync with α = 1 does from the first one on."""
    algorithm = ob.fedfa(1, "param", 3)
    run = play(algorithm)
    arrived = iter(range(10**6))
    expected = replay(run, algorithm, lambda w, base, delta, staleness: base + delta if next(arrived) else w)
    assert torch.allclose(run.model.values, expected, atol=1e-5)


def test_fedfa_delta_of_one_is_fedbuff_of_one_from_the_second_arrival_on():
    algorithm = ob.fedfa(1, "delta", 3, server_lr=0.7)
    run = play(algorithm)
    arrived = iter(range(10**6))
    expected = replay(
        run, algorithm, lambda w, base, delta, staleness: w + 0.7 * delta if next(arrived) else w
    )
    assert torch.allclose(run.model.values, expected, atol=1e-5)


@dataclass(frozen=True)
class Waiting(Aggregator):
    """A window that is full of zeros at first, and whose step counts when all its entries are new."""

    window: Window

    def step(self, updates: Sequence[Update], model: Model, memory: dict[str, torch.Tensor]) -> torch.Tensor:
        if not memory:
            nothing = structs.replace(updates[0], delta=torch.zeros_like(model.values))
            self.window.step([nothing] * self.window.size, model, memory)
        assert len(updates) == self.window.size
        return [self.window.step([u], model, memory) for u in updates][-1]


@pytest.mark.parametrize("K", [1, 2, 5])
def test_fedfa_delta_that_waits_for_k_new_ones_is_fedbuff(K):
    buffered = ob.fedbuff(K, 3, staleness=ob.constant(), server_lr=0.8)
    waiting = replace(buffered, aggregator=Waiting(Window(K, scale=0.8)))
    one, other = play(buffered), play(waiting)
    assert one.journal == other.journal
    assert close(one, other)


def fedfa(**options: Any) -> ob.Run:
    return play(ob.fedfa(3, **options), learner=Pull((2, 2, 2, 2)))


def test_fedfa_with_weights_that_are_all_the_same_is_plain():
    for kind in ("delta", "param"):
        plain = fedfa(kind=kind, steps=3)
        assert close(fedfa(kind=kind, steps=3, weights="share"), plain)
        assert same_model(fedfa(kind=kind, steps=3, mu=0.0), plain)
        assert not close(fedfa(kind=kind, steps=3, mu=0.5), plain, 1e-3)
    assert close(fedfa(steps=3, normalize=True), fedfa(steps=3))
    assert close(fedfa(kind="param", steps=3, staleness=ob.constant(0.5)), fedfa(kind="param", steps=3))
    assert close(fedfa(steps=3, staleness=ob.constant(0.5)), fedfa(steps=3, server_lr=0.5))


def test_fedfa_tells_its_options_apart():
    runs = [
        play(ob.fedfa(3, **options))
        for options in ({}, {"kind": "param"}, {"weights": "share"}, {"normalize": True}, {"server_lr": 0.5})
    ]
    for i, one in enumerate(runs):
        for other in runs[:i]:
            assert not close(one, other, 1e-3)
