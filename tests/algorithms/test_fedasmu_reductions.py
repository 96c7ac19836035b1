"""FedASMU and FedSSMU with a fixed weight and no requests are FedAsync."""

import pytest
import torch

import offbeat as ob
from tests.algorithms.pull import Pull

# λ = 0 and ι = 1: ξ = 1 and α = 1/2, whatever the staleness and the version
FIXED = {"lam": 0.0, "iota": 1.0, "adaptive": False}
HALF = {"steps": 1, "controls": FIXED, "ask": {"kind": "never"}}

SPEEDS = [15.0, 22.0, 31.0, 49.0]


def play(algorithm: ob.Algorithm, learner: Pull, speeds: list[float]) -> ob.Run:
    return ob.simulate(algorithm, ob.World(speeds), learner, until=ob.Until(tasks=40))


def arrivals(run: ob.Run) -> list[tuple[float, int, int]]:
    return [(e["t"], e["client"], e["staleness"]) for e in run.entries("arrived")]


def test_fedssmu_of_one_client_is_fedasync():
    one = play(ob.fedssmu(**HALF), Pull((3,)), [2.0])
    other = play(ob.fedasync(1, alpha=0.5, staleness=ob.constant()), Pull((3,)), [2.0])
    assert arrivals(one) == arrivals(other)
    assert torch.allclose(one.model.values, other.model.values, rtol=1e-5)


def test_fedasmu_that_triggers_at_every_arrival_is_fedasync():
    """Whole seconds, a trigger every second, no two at one moment: who arrives starts again at once."""
    one = play(ob.fedasmu(**HALF, size=4, period=1.0), Pull(), SPEEDS)
    other = play(ob.fedasync(1, alpha=0.5, staleness=ob.constant()), Pull(), SPEEDS)
    assert arrivals(one) == arrivals(other)
    assert max(staleness for _, _, staleness in arrivals(one)) > 3
    assert torch.allclose(one.model.values, other.model.values, rtol=1e-5)


def test_with_its_own_weights_it_is_not():
    weights = {**HALF, "controls": {"adaptive": False}}
    one, other = (play(ob.fedasmu(**w, size=4, period=1.0), Pull(), SPEEDS) for w in (HALF, weights))
    assert arrivals(one) == arrivals(other)
    assert not torch.allclose(one.model.values, other.model.values, rtol=1e-2)


def test_a_bound_of_one_on_staleness_drops_all_but_fresh_updates():
    run = play(ob.fedasmu(**HALF, size=4, period=1.0, tau_max=1), Pull(), SPEEDS)
    used = {t for e in run.entries("aggregate") for t in e["tasks"]}
    fresh = {e["task"] for e in run.entries("arrived") if e["staleness"] == 0}
    assert used == fresh
    assert run.summary.dropped == len(run.entries("arrived")) - len(fresh) > 0


def test_adaptive_weights_without_rates_are_fixed_weights():
    rates = {"lam_rate": 0.0, "sigma_rate": 0.0, "iota_rate": 0.0}
    still = {**HALF, "controls": {"iota": 1.0, **rates}}
    fixed = {**HALF, "controls": {"iota": 1.0, "adaptive": False}}
    one, other = (play(ob.fedasmu(**w, size=4, period=1.0), Pull(), SPEEDS) for w in (still, fixed))
    assert torch.equal(one.model.values, other.model.values)
    assert one.summary.server_state_bytes > other.summary.server_state_bytes == 0


@pytest.mark.parametrize("name", ["fedasmu", "fedssmu"])
def test_rates_move_the_weights(name):
    options = {"fedasmu": {"size": 4, "period": 1.0}, "fedssmu": {}}[name]
    runs = []
    for rate in (0.05, 0.0):
        controls = {"lam_rate": rate, "sigma_rate": 0.0, "iota_rate": 0.0}
        runs.append(play(getattr(ob, name)(**{**HALF, "controls": controls}, **options), Pull(), SPEEDS))
    assert not torch.allclose(runs[0].model.values, runs[1].model.values, atol=1e-4)
