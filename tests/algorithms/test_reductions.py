"""Algorithms that must coincide: the reductions of the papers, on a small problem with real updates."""

import pytest
import torch

import offbeat as ob
from offbeat.core.learner import LocalTask
from offbeat.core.model import Model
from tests.algorithms.pull import Pull, play, replay, same_model


def test_the_problem_tells_algorithms_apart():
    runs = [
        play(a) for a in (ob.fedavg(3), ob.fedavgm(3), ob.fedasync(3), ob.fedbuff(2, 3), ob.fedcompass(2, 8))
    ]
    for i, one in enumerate(runs):
        for other in runs[:i]:
            assert not torch.allclose(one.model.values, other.model.values, atol=1e-3)


def test_fedbuff_of_one_is_asynchronous_delta_descent():
    algorithm = ob.fedbuff(1, 3, staleness=ob.constant(), server_lr=0.7)
    run = play(algorithm)
    assert max(e["staleness"] for e in run.entries("arrived")) > 1
    expected = replay(run, algorithm, lambda w, base, delta, staleness: w + 0.7 * delta)
    assert torch.allclose(run.model.values, expected, atol=1e-6)


def test_fedasync_is_its_equation_over_a_whole_run():
    algorithm = ob.fedasync(3, alpha=0.6, staleness=ob.hinge(2.0, 1.0))
    run = play(algorithm)

    def mix(w: torch.Tensor, base: torch.Tensor, delta: torch.Tensor, staleness: int) -> torch.Tensor:
        a = 0.6 * (1.0 if staleness <= 1 else 1 / (2 * (staleness - 1) + 1))
        return (1 - a) * w + a * (base + delta)

    assert torch.allclose(run.model.values, replay(run, algorithm, mix), atol=1e-5)


def test_fedasync_of_alpha_one_replaces():
    algorithm = ob.fedasync(3, alpha=1.0, staleness=ob.constant())
    run = play(algorithm)
    expected = replay(run, algorithm, lambda w, base, delta, staleness: base + delta)
    assert torch.allclose(run.model.values, expected, atol=1e-5)


def test_fedbuff_of_all_equal_clients_begins_as_fedavg_with_equal_weights():
    equal = Pull((2, 2, 2, 2))
    first = ob.Until(versions=1)
    buffered = play(ob.fedbuff(4, 3, concurrency=4), [1.0] * 4, learner=equal, until=first)
    rounds = play(ob.fedavg(3), [1.0] * 4, learner=equal, until=first)
    assert torch.allclose(buffered.model.values, rounds.model.values, atol=1e-6)
    later = ob.Until(versions=3)  # FedBuff sends clients off again before the buffer is full
    buffered = play(ob.fedbuff(4, 3, concurrency=4), [1.0] * 4, learner=equal, until=later)
    rounds = play(ob.fedavg(3), [1.0] * 4, learner=equal, until=later)
    assert not torch.allclose(buffered.model.values, rounds.model.values, atol=1e-3)


def test_fedavgm_without_momentum_is_fedavg_bit_for_bit():
    one, other = play(ob.fedavgm(3, momentum=0.0)), play(ob.fedavg(3))
    assert same_model(one, other)
    assert one.journal == other.journal


def test_fedavg_with_everybody_is_its_equation():
    run, learner = play(ob.fedavg(epochs=2), until=ob.Until(versions=5)), Pull()
    w = learner.initial(0)
    for version in range(5):
        ends = torch.zeros(3)
        for client, samples in enumerate(learner.sizes):
            steps = 2 * learner.steps_per_epoch(client)
            task = LocalTask(0, client, version, steps, 0)
            ends += samples / 12 * (w.values + learner.train(w, task, ob.fedavg(1).objective).delta)
        w = Model(w.layout, ends, w.integers)
    assert torch.allclose(run.model.values, w.values, atol=1e-5)


def test_fedasync_without_a_proximal_term_is_plain():
    assert ob.fedasync(3, rho=0.0).objective == ob.fedasync(3).objective
    assert same_model(play(ob.fedasync(3, rho=0.0)), play(ob.fedasync(3)))
    assert same_model(play(ob.fedasync(3, rho=1e-30)), play(ob.fedasync(3)))
    assert not same_model(play(ob.fedasync(3, rho=0.1)), play(ob.fedasync(3)))


def test_fedcompass_with_no_momentum_has_no_server_step():
    assert ob.fedcompass(2, 8, momentum=0.0).server_steps == ()
    assert not same_model(play(ob.fedcompass(2, 8, momentum=0.5)), play(ob.fedcompass(2, 8)))
    assert not same_model(play(ob.fedcompass(2, 8, normalize=True)), play(ob.fedcompass(2, 8)))


def test_fedcompass_in_lockstep_is_fedavg_with_the_weight_of_the_first_staleness():
    """Equal speeds, st = 1: after the first responses one group of all is Σ p_i Δ_i, FedAvg's step."""
    run = play(ob.fedcompass(3, 3, staleness=ob.constant()), [1.0] * 4, until=ob.Until(versions=6))
    learner, objective = Pull(), ob.fedavg(1).objective
    versions = [learner.initial(0)]

    def make(step: torch.Tensor) -> None:
        model = versions[-1]
        versions.append(Model(model.layout, model.values + step, model.integers))

    def delta(client: int, base: int) -> torch.Tensor:
        return learner.train(versions[base], LocalTask(0, client, base, 3, 0), objective).delta

    shares = [n / 12 for n in learner.sizes]
    for client in range(4):
        make(shares[client] * delta(client, 0))
    make(sum((shares[c] * delta(c, c + 1) for c in range(4)), torch.zeros(3)))  # each from its own version
    make(sum((shares[c] * delta(c, 5) for c in range(4)), torch.zeros(3)))
    assert torch.allclose(run.model.values, versions[-1].values, atol=1e-5)


@pytest.mark.parametrize("make", [lambda **k: ob.fedasync(3, **k), lambda **k: ob.fedbuff(2, 3, **k)])
def test_concurrency_of_all_is_no_limit(make):
    assert play(make(concurrency=4)).journal == play(make()).journal
    assert max_running(play(make(concurrency=2))) == 2


def max_running(run: ob.Run) -> int:
    running = most = 0
    for entry in run.journal:
        running += {"train": 1, "arrived": -1}.get(entry["name"], 0)
        most = max(most, running)
    return most


def test_fedavg_samples_clients_and_weighs_by_them_alone():
    run, learner = play(ob.fedavg(3, clients_per_round=2), until=ob.Until(versions=1)), Pull()
    chosen = sorted(run.entries("aggregate")[0]["clients"])
    assert len(set(chosen)) == 2
    w = learner.initial(0)
    total = sum(learner.sizes[c] for c in chosen)
    step = sum(
        (
            learner.sizes[c]
            / total
            * learner.train(w, LocalTask(0, c, 0, 3, 0), ob.fedavg(1).objective).delta
            for c in chosen
        ),
        torch.zeros(3),
    )
    assert torch.allclose(run.model.values, w.values + step, atol=1e-6)
    seen = {c for e in play(ob.fedavg(3, clients_per_round=2)).entries("aggregate") for c in e["clients"]}
    assert seen == {0, 1, 2, 3}
