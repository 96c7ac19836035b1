"""The same algorithm, events and seed through the simulator and a coordinator: the same rows and bits."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.net.server.durable_store import DurableStore
from offbeat.sim.replay import replay
from tests.conformance.test_same_everywhere import OPTIONS, SEED, SPEEDS
from tests.net.replay_player import Play, coordinator_of, rows_of
from tests.options import EVERY_FEATURE
from tests.sampling import mostly_thorough, thorough

TASKS = 40
pytestmark = pytest.mark.usefixtures("one_thread")


def module() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))


@pytest.fixture(scope="module")
def learner() -> ob.TorchLearner:
    source = ob.load("digits", samples=200, test_samples=20)
    data = ob.federate(source, None, np.array_split(np.arange(200), 5))
    return ob.TorchLearner(module, data, ob.Training(lr=0.1, batch_size=20))


WORLDS = {
    "steady": ob.World(seconds_per_step=SPEEDS),
    "unsteady": ob.World(
        seconds_per_step=SPEEDS,
        jitter=0.1,
        availability=ob.Availability(dropout=0.15, period=60, present=0.8),
    ),
}


@pytest.mark.parametrize("world", ["unsteady", *thorough("steady")])
@pytest.mark.parametrize(  # but for the one that needs a radio
    "name", mostly_thorough([*(n for n in ob.ALGORITHMS if n != "wireless"), "port urgent"], EVERY_FEATURE)
)
def test_a_coordinator_does_what_the_simulator_does(
    name: str, world: str, learner: ob.TorchLearner, tmp_path: Path
) -> None:
    def make() -> ob.Algorithm:
        if name == "port urgent":
            return ob.port(epochs=3, size=2, tau_max=2, urgent=True)
        return ob.ALGORITHMS[name](**OPTIONS.get(name, {}))

    run = ob.simulate(
        make(),
        WORLDS[world],
        learner,
        seed=SEED,
        until=ob.Until(tasks=TASKS),
        evaluate=None,
        out=tmp_path / "s",
    )
    rows = rows_of(run)
    there = next(row.seq for row in rows if row.name == "begin")
    coordinator = coordinator_of(
        make(), learner.initial(SEED), max(1, there), SEED, until=ob.Until(tasks=TASKS)
    )
    play = Play(make(), learner, coordinator)
    meta = {"label": name, "algorithm": {"name": name}, "seed": SEED, "clients": 5}
    state = DurableStore(tmp_path / "d", coordinator, meta)
    for row in rows:
        if row.kind == "event":
            outcome = play.event(row)
            state.commit(outcome)
            play.deliver(outcome)
    assert play.rows == rows
    assert coordinator.stopped == run.stop_reason
    assert torch.equal(coordinator.tensors.model.values, run.model.values)
    assert torch.equal(coordinator.tensors.model.integers, run.model.integers)
    assert coordinator.driver.engine.bytes_down == run.summary.bytes_down
    assert coordinator.driver.engine.bytes_up == run.summary.bytes_up
    assert not coordinator.rejected
    state.finish(coordinator, {})
    assert replay(ob.read_run(tmp_path / "d"), make()).difference is None
