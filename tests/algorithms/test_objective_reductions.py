"""Algorithms whose clients keep state: where they are another one, and what is kept."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.algorithms.aggregators import SumOfDeltas
from offbeat.algorithms.asofed import DelayScaled
from offbeat.algorithms.feddyn import Dynamic, DynamicMean
from offbeat.algorithms.moon import Contrastive
from offbeat.algorithms.schedules import Buffered, Rounds
from offbeat.core.learner import LocalTask
from offbeat.core.programme import Programme
from offbeat.local.objectives import Plain, Proximal

CLIENTS, STEPS = 5, 3
EQUAL, UNEQUAL = [20] * 5, [10, 20, 20, 20, 30]
WORLD = ob.World(seconds_per_step=[0.1, 0.12, 0.15, 0.2, 0.3])  # under e seconds a task
ROUNDS = Rounds(Programme(STEPS))
KEEPING = {
    "moon": {"clients_per_round": 3},
    "feddyn": {"clients_per_round": 3, "alpha": 0.1},
    "scaffold": {"clients_per_round": 3},
    "asofed": {"concurrency": 3},
}


def module() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 10))


def learner(sizes: list[int], make: Any = module) -> ob.TorchLearner:
    source = ob.load("digits", samples=100, test_samples=20)
    parts = np.split(np.arange(100), np.cumsum(sizes)[:-1])
    return ob.TorchLearner(make, ob.federate(source, None, parts), ob.Training(lr=0.1, batch_size=10))


def play(algorithm: ob.Algorithm, versions: int = 12, sizes: list[int] = UNEQUAL, **options: Any) -> ob.Run:
    until = options.pop("until", ob.Until(versions=versions))
    return ob.simulate(algorithm, WORLD, learner(sizes), until=until, **options)


def same(one: ob.Run, other: ob.Run) -> bool:
    return torch.equal(one.model.values, other.model.values)


def near(one: ob.Run, other: ob.Run) -> bool:
    return torch.allclose(one.model.values, other.model.values, atol=1e-6)


# ---- reductions ----


def test_moon_of_mu_zero_is_fedavg_bit_for_bit():
    fedavg = play(ob.fedavg(STEPS))
    assert ob.moon(STEPS, mu=0.0).objective == Plain()
    assert same(play(ob.moon(STEPS, mu=0.0)), fedavg)
    assert same(play(replace(ob.moon(STEPS), objective=Contrastive(0.0))), fedavg)
    assert same(play(ob.moon(STEPS), versions=1), play(ob.fedavg(STEPS), versions=1))  # no earlier models yet
    assert not near(play(ob.moon(STEPS), versions=2), play(ob.fedavg(STEPS), versions=2))


@pytest.mark.parametrize("alpha", [1e-4, 0.1, 2.0])
def test_feddyns_first_round_goes_twice_as_far_as_the_mean(alpha):
    """All take part, g = h = 0: h = −α mean Δ, so w₁ = mean w_i − h/α = 2 mean w_i − w₀, given the w_i."""

    def parameters(algorithm: ob.Algorithm) -> torch.Tensor:
        run = play(algorithm, versions=1)
        return run.model.values[: run.model.layout.parameters]

    twice = SumOfDeltas(weights="equal", scale=2.0)
    given = ob.Algorithm(ROUNDS, twice, Proximal(alpha))  # with g_i = 0 the objective is FedProx's
    assert torch.allclose(parameters(ob.feddyn(STEPS, alpha=alpha)), parameters(given), atol=1e-5)
    limit = parameters(ob.Algorithm(ROUNDS, twice, Plain()))
    assert torch.allclose(parameters(given), limit, atol=1e-4) == (alpha < 0.01)


def test_feddyns_server_needs_its_objective():
    with pytest.raises(ob.UsageError, match=r"DynamicMean needs an objective with the drift"):
        ob.Algorithm(ROUNDS, DynamicMean(0.1), Plain())


def test_feddyns_buffers_are_the_unweighted_mean():
    mean = ob.Algorithm(ROUNDS, SumOfDeltas(weights="equal"), Dynamic(0.1))
    one, other = play(ob.feddyn(STEPS, alpha=0.1), versions=1), play(mean, versions=1)
    d = one.model.layout.parameters
    assert torch.allclose(one.model.values[d:], other.model.values[d:], atol=1e-6)


def test_scaffolds_first_round_is_fedavg_with_equal_weights():
    equal = ob.Algorithm(ROUNDS, SumOfDeltas(weights="equal"), Plain(), buffers="mean")
    assert same(play(ob.scaffold(STEPS), versions=1), play(equal, versions=1))
    assert near(
        play(ob.scaffold(STEPS), versions=1, sizes=EQUAL), play(ob.fedavg(STEPS), versions=1, sizes=EQUAL)
    )
    assert not near(play(ob.scaffold(STEPS), versions=2), play(equal, versions=2))


def test_scaffolds_control_variate_is_the_mean_of_the_clients():
    run = play(ob.scaffold(1), versions=1, sizes=EQUAL)
    plain = play(ob.Algorithm(Rounds(Programme(1)), SumOfDeltas(weights="equal"), Plain()), 1, EQUAL)
    moved = plain.model.values - learner(EQUAL).initial(0).values
    d = run.model.layout.parameters
    assert run.model.shared.shape == (d,)
    assert torch.allclose(run.model.shared, -moved[:d] / 0.1, atol=1e-5)  # c = mean ∇f_i; w moved by −ηc


def test_asofeds_first_tasks_are_proximal_steps_added_by_their_shares():
    """Before a client's first task v = h = 0; the clients are quicker than e seconds."""
    added = ob.Algorithm(Buffered(Programme(STEPS)), SumOfDeltas(), Proximal(0.1), buffers="mean")
    one, other = (play(a, versions=1) for a in (ob.asofed(STEPS, proximal=0.1), added))
    assert same(one, other)
    assert one.journal == other.journal
    assert not near(*(play(a, versions=8) for a in (ob.asofed(STEPS, proximal=0.1), added)))


def test_asofeds_server_is_the_sum_of_deltas_by_their_shares():
    added = ob.Algorithm(Buffered(Programme(STEPS)), SumOfDeltas(), Plain(), buffers="mean")
    one = play(replace(ob.asofed(STEPS), objective=Plain()))
    assert same(one, play(added))
    assert one.journal == play(added).journal  # and quick clients' rates are not scaled


def test_any_schedule_can_be_scaled_by_delays():
    scaled = replace(ob.fedavg(STEPS), schedule=DelayScaled(ROUNDS))
    assert same(play(scaled), play(ob.fedavg(STEPS)))
    slow = ob.World(seconds_per_step=10.0)
    run = ob.simulate(scaled, slow, learner(UNEQUAL), until=ob.Until(versions=2))
    factors = {e.get("lr_factor", 1.0) for e in run.entries("train") if e["base"] == 1}
    assert list(factors) == pytest.approx([np.log(30.0)])


# ---- what clients keep ----


def vectors(name: str) -> int:
    """Bytes one client keeps."""
    layout = learner(EQUAL).initial(0).layout
    return (
        4
        * {
            "moon": layout.values,
            "feddyn": layout.parameters,
            "scaffold": layout.parameters,
            "asofed": 2 * layout.parameters,
        }[name]
    )


@pytest.mark.parametrize("name", KEEPING)
@pytest.mark.parametrize("tasks", [3, 15])
def test_only_clients_that_have_trained_keep_anything(name, tasks):
    run = play(ob.ALGORITHMS[name](STEPS, **KEEPING[name]), until=ob.Until(tasks=tasks))
    touched = {e["client"] for e in run.entries("arrived")}
    assert 0 < len(touched) <= CLIENTS
    assert run.summary.client_state_bytes == len(touched) * vectors(name)


@pytest.mark.parametrize("name", KEEPING)
def test_states_in_files_change_nothing(name):
    algorithm = ob.ALGORITHMS[name](STEPS, **KEEPING[name])
    runs = [
        play(algorithm, until=ob.Until(tasks=20), client_memory=limit)
        for limit in (None, 0, 2 * vectors(name))
    ]
    for run in runs[1:]:
        assert same(run, runs[0])
        assert (run.journal, run.summary) == (runs[0].journal, runs[0].summary)


@pytest.mark.parametrize("name", sorted(KEEPING))
def test_an_objective_inside_another_keeps_its_state_beside_the_other_ones(name: str) -> None:
    """FedASMU's slopes are kept with what its objective keeps, or each task would begin with them anew."""
    inside = getattr(ob, name)(STEPS).objective
    merged = ob.compose(ob.fedasmu(steps=STEPS), objective=getattr(ob, name)(STEPS)).objective
    states = []
    for objective in (inside, merged):
        one = learner(UNEQUAL)
        base = one.initial(0).sharing(objective.shared_vectors)
        states.append(one.train(base, LocalTask(0, 1, 0, STEPS, 0), objective).state)
    assert states[1].keys() == {*states[0], "merge"}
