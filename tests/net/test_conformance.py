"""The same algorithm, events and seed through the simulator and a coordinator: the same rows and bits."""

from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

import offbeat as ob
from offbeat.algorithms.privacy.private import complete_privacy, with_privacy
from offbeat.core.commands import Aggregate
from offbeat.core.journal import Row
from offbeat.core.learner import LocalResult
from offbeat.core.privacy.ledger import ReleasePlan
from offbeat.core.schedule import Task
from offbeat.net.messages import UpdateSubmission
from offbeat.net.secure.private_update import private_update
from offbeat.net.secure.release_seeds import FreshSeeds
from offbeat.net.server.durable_store import DurableStore
from offbeat.net.server.effects import Effects
from offbeat.net.server.handlers import RunInfo
from offbeat.sim.backend import simulated_seeds
from offbeat.sim.replay import replay
from tests.conformance.settings import OPTIONS, SEED, SPEEDS
from tests.digits import equal_digits
from tests.net.replay_player import FOREVER, Play, coordinator_of, name_of, rows_of
from tests.net.support import coordinator_from, terms_of
from tests.options import EVERY_FEATURE
from tests.sampling import mostly_thorough, thorough

TASKS = 40
pytestmark = pytest.mark.usefixtures("one_thread")


CLIP = 0.05  # of updates whose norm is about 0.1


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def module() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))


@pytest.fixture(scope="module")
def learner() -> ob.TorchLearner:
    return ob.TorchLearner(
        module, equal_digits(5, samples=200, test_samples=20), ob.Training(lr=0.1, batch_size=20)
    )


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


class InjectedSeeds(FreshSeeds):
    """The seeds of a simulated run, at a server."""

    def noise(self, release: Aggregate) -> bytes:
        return simulated_seeds(SEED).noise(release)

    def rounding(self, task: Task, release: Aggregate) -> bytes:
        return simulated_seeds(SEED).rounding(task, release)


class PrivatePlay(Play):
    """Sites that clip what they send, and send nothing else."""

    def event(self, row: Row) -> Effects:
        if row.name == "arrived":
            site = self.sites[name_of(row.client or 0)]
            update, clip = site.result(self.learner, self.algorithm, row.steps or 0), CLIP
            assert site.task is not None
            result = LocalResult(update.delta, update.integers, update.metrics, update.lr)  # type: ignore[arg-type]
            own = private_update(result, site.task.model, clip)
            sent = UpdateSubmission(update.task, update.steps, own.delta, own.integers, lr=own.lr)
            self.coordinator.receive(row.t, name_of(row.client or 0), sent)
            return self.coordinator.take()
        return super().event(row)


@pytest.mark.parametrize("bands", [3, *thorough(1)])
@pytest.mark.parametrize("name", ["fedbuff", *thorough("fedcompass", "feddyn")])
def test_a_server_with_noise_does_what_the_simulator_does(name: str, bands: int) -> None:
    """The same releases and, for the same seeds, the same bits."""
    data = ob.federate(ob.load("digits"), None, np.array_split(np.arange(200), 5))
    learner = ob.TorchLearner(linear, data, ob.Training(lr=0.1, batch_size=20))
    noise = ob.Noise(multiplier=4, bands=bands, budget=ob.Budget(delta=1e-3))
    given = ob.Privacy(clip=CLIP, least=2, samples_unit=50, noise=noise)
    algorithm = ob.ALGORITHMS[name](**OPTIONS.get(name, {}))
    until = ob.Until(tasks=TASKS)
    run = ob.simulate(
        algorithm, WORLDS["unsteady"], learner, seed=SEED, until=until, evaluate=None, privacy=given
    )
    rows = rows_of(run)
    privacy = complete_privacy(given, algorithm, 5)
    there = next(row.seq for row in rows if row.name == "begin")
    wanted = terms_of(clients=max(1, there), lease=FOREVER, max_consecutive_failures=None, until=until)
    initial = learner.initial(SEED)
    coordinator = coordinator_from(
        with_privacy(algorithm, privacy), initial, wanted, RunInfo("run", {}), seed=SEED,
        release_plan=ReleasePlan(privacy, initial.layout.parameters, 5), seeds=InjectedSeeds(),
    )  # fmt: skip
    play = PrivatePlay(algorithm, learner, coordinator)
    for row in rows:
        if row.kind == "event":
            play.deliver(play.event(row))
    assert [_without_metrics(row) for row in play.rows] == [_without_metrics(row) for row in rows]
    assert len(run.entries("aggregate")) > 5
    assert coordinator.tensors.model.values.numpy().tobytes() == run.model.values.numpy().tobytes()


def _without_metrics(row: Row) -> Row:
    return replace(row, data=None) if row.name == "arrived" else row
