"""Running statistics that stay at sites which are killed and come back, and a server that has none."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.core.buffers import Buffers, finalizer
from offbeat.core.learner import LocalTask, TaskInputs
from offbeat.core.model import Model
from offbeat.models.specs import LogisticSpec
from offbeat.net import join
from offbeat.net.client.join import make_context
from offbeat.net.client.site import Site
from offbeat.net.client.store import SiteStore
from offbeat.net.client.task import TrainingTask
from offbeat.net.messages import TaskAssignment
from offbeat.net.server.durable_store import DurableStore
from offbeat.net.server.server_learner import server_learner
from offbeat.net.server.service import Service
from offbeat.runs.files import read_tensors
from offbeat.testing.network import MemoryNetwork
from tests.conformance.settings import OPTIONS, SEED, SPEEDS
from tests.digits import equal_digits
from tests.net.replay_player import Play, coordinator_of, rows_of
from tests.net.support import Shares, run_spec, serve, terms_of
from tests.sampling import thorough

UNSENT = pytest.mark.parametrize("policy", ["local", "recompute"])
TRAINING = ob.Training(lr=0.1, batch_size=20)
SITES = 4


def judge_of(test: Any = None) -> ob.TorchLearner:
    """The learner of a run's server."""
    return server_learner(LogisticSpec(), TRAINING, test, (1, 8, 8), 10)


def module(*_: Any) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))


@pytest.fixture(autouse=True)
def models_with_buffers(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No model of the registry has BatchNorm: here they all are one that has."""
    monkeypatch.setattr("offbeat.models.specs.build", module)
    torch.set_num_threads(1)


def composed(name: str, policy: Buffers, **options: Any) -> ob.Algorithm:
    return ob.compose(ob.ALGORITHMS[name](**{**OPTIONS.get(name, {}), **options}), buffers=policy)


@UNSENT
@pytest.mark.parametrize("name", ["fedasmu", "scaffold", *thorough("fedbuff", "fedcompass")])
def test_a_coordinator_does_what_the_simulator_does(name: str, policy: Buffers, tmp_path: Path) -> None:
    """Tasks are lost, sites go and come; the final model is the one that the simulator has."""
    learner = ob.TorchLearner(module, equal_digits(5, samples=200, test_samples=20), TRAINING)
    world = ob.World(SPEEDS, jitter=0.1, availability=ob.Availability(dropout=0.1, period=60, present=0.8))
    algorithm = composed(name, policy)
    run = ob.simulate(algorithm, world, learner, seed=SEED, until=ob.Until(tasks=40), evaluate=None)
    rows, initial = rows_of(run), learner.initial(SEED)
    there = next(row.seq for row in rows if row.name == "begin")
    coordinator = coordinator_of(algorithm, initial, max(1, there), SEED, until=ob.Until(tasks=40))
    play = Play(algorithm, learner, coordinator)
    complete = finalizer(policy, learner, initial, SEED)
    meta = {"label": name, "algorithm": {"name": name}, "seed": SEED, "clients": 5}
    state = DurableStore(tmp_path / "d", coordinator, meta, complete=complete)
    for i, row in enumerate(row for row in rows if row.kind == "event"):
        outcome = play.event(row)
        state.commit(outcome)
        play.deliver(outcome)
        if i == 30:  # the server dies
            state.close()
            coordinator = coordinator_of(algorithm, initial, max(1, there), SEED, until=ob.Until(tasks=40))
            state = DurableStore(tmp_path / "d", coordinator, complete=complete)
            play.coordinator = coordinator
    assert play.rows == rows
    assert coordinator.driver.engine.bytes_up == run.summary.bytes_up
    assert coordinator.tensors.model.values[-20:].tolist() == [0.0] * 10 + [1.0] * 10
    state.finish(coordinator, {})
    written = read_tensors(tmp_path / "d" / "model.safetensors")
    for tensor_name, tensor in run.model.state_dict().items():
        assert torch.equal(written[tensor_name], tensor)
    kept = sum(t.nbytes for site in play.sites.values() for t in site.state.values())
    assert kept == run.summary.client_state_bytes


def test_a_site_that_is_killed_goes_on_with_its_statistics(digits: Shares, tmp_path: Path) -> None:
    """As the simulator's client does, which lives on; also where it is killed before its update is taken."""
    algorithm, client = composed("fedbuff", "local"), 2
    own = digits[0][client]
    plan = run_spec(algorithm, judge_of(), SEED)
    workshop = make_context(Site.of(own))(plan.document(), client)
    bases = [judge_of().initial(seed) for seed in range(4)]
    data = equal_digits(SITES, samples=400, test_samples=200)
    learner, state = ob.TorchLearner(module, data, TRAINING), dict[str, torch.Tensor]()
    for task, base in enumerate(bases):
        store = SiteStore(tmp_path)
        store.begin("r1")
        kept = TrainingTask(TaskAssignment(task, 0, 3, SEED, base), workshop, lambda _: None).run(store.state)
        store.save(kept)
        store.close()
        store = SiteStore(tmp_path)
        expected = learner.train(
            base, LocalTask(task, client, 0, 3, SEED), algorithm.objective, TaskInputs(state)
        )
        assert store.pending is not None
        assert isinstance(store.pending.update.delta, torch.Tensor)
        assert torch.equal(store.pending.update.delta, expected.delta)
        assert store.pending.update.delta[-20:].abs().sum() == 0
        taken = task != 1
        store.acknowledge(task, accepted=taken)
        state = expected.state if taken else state
        store.close()
    store = SiteStore(tmp_path)
    assert store.state.keys() == {"buffers.floating", "buffers.integer"}
    assert all(torch.equal(store.state[name], tensor) for name, tensor in state.items())
    assert store.state["buffers.integer"].tolist() == [9]  # of the three tasks that were taken
    store.close()


@pytest.mark.thorough
def test_a_federation_whose_sites_are_killed_has_the_bits_of_its_journal(
    digits: Shares, tmp_path: Path
) -> None:
    """Each site is dropped in the middle of the run, and comes back with its directory."""
    algorithm = composed("fedbuff", "local", size=2, concurrency=SITES)
    data, test = digits
    network = MemoryNetwork()

    async def run() -> str | None:
        services: list[Service] = []
        server = asyncio.create_task(
            serve(
                algorithm, LogisticSpec(), TRAINING, tmp_path / "run", network.listen,
                options=terms_of(
                    clients=SITES, lease=20.0, until=ob.Until(tasks=40), evaluate=ob.Every(versions=1)
                ),
                test=test, seed=3, started=services.append,
            )
        )  # fmt: skip

        def begin(i: int) -> asyncio.Task[str]:
            own = tmp_path / f"site-{i}"
            return asyncio.create_task(join(network.connect(f"site-{i}"), data[i], state=own))

        sites = [begin(i) for i in range(SITES)]
        for i in range(SITES):
            while not (services and services[0].snapshot().arrived >= 6 * (i + 1)):
                await asyncio.sleep(0.005)
            sites[i].cancel()
            await asyncio.gather(sites[i], return_exceptions=True)
            sites[i] = begin(i)
        reason = await server
        await asyncio.wait_for(asyncio.gather(*sites), 300)
        return reason

    assert asyncio.run(run()) == "reached 40 client tasks"
    torch.set_num_threads(1)
    record = ob.read_run(tmp_path / "run")
    learner = ob.TorchLearner(module, equal_digits(SITES, samples=400, test_samples=200), TRAINING)
    initial = judge_of()
    coordinator = coordinator_of(algorithm, initial.initial(3), SITES, 3, until=ob.Until(tasks=40))
    play = Play(algorithm, renumbered(learner, record), coordinator)
    for row in record.rows():
        if row.kind == "event":
            play.deliver(play.event(row))
    assert play.rows == list(record.rows())
    names = {client: name for name, client in record.select("SELECT name, client FROM sites")}
    for site in play.sites.values():
        store = SiteStore(tmp_path / names[site.client])
        assert site.state.keys() == store.state.keys() == {"buffers.floating", "buffers.integer"}
        assert all(torch.equal(store.state[name], tensor) for name, tensor in site.state.items())
        store.close()
    model = coordinator.tensors.model
    judge = judge_of(test)
    expected = judge.estimated(model, 3)
    written = read_tensors(tmp_path / "run/model.safetensors")
    for name, tensor in expected.state_dict().items():
        assert torch.equal(written[name], tensor)
    assert written["2.running_mean"].abs().sum() > 0
    last = record.evaluations()[-1]
    assert judge.evaluate(expected) == {"loss": last.loss, "accuracy": last.accuracy}
    assert last.accuracy is not None
    assert last.accuracy > 0.6


def renumbered(learner: ob.TorchLearner, record: ob.RunRecord) -> Any:
    """The learner of all sites, where client i is whoever came as number i."""
    names = {client: int(name.removeprefix("site-")) for name, client in
             record.select("SELECT name, client FROM sites")}  # fmt: skip
    data = learner.data
    parts = [data.client_indices(names[client]).numpy() for client in range(SITES)]
    return ob.TorchLearner(module, ob.federate(data.train, data.test, parts), TRAINING)


def served(policy: Buffers, directory: Path, test: Any) -> Any:
    """A run without any site, which is stopped when it is there."""

    async def run() -> str | None:
        def end(service: Service) -> None:
            service.finish("enough")

        return await serve(
            composed("fedavg", policy), LogisticSpec(), TRAINING, directory, MemoryNetwork().listen,
            options=terms_of(clients=SITES), test=test, sample_shape=(1, 8, 8), classes=10, started=end,
            linger=0.0,
        )  # fmt: skip

    return asyncio.run(run())


def test_a_server_without_data_estimates_nothing(tmp_path: Path) -> None:
    with pytest.raises(ob.UsageError, match=r"needs samples .* this server has none: give it test data"):
        served("recompute", tmp_path / "a", None)
    assert not (tmp_path / "a").exists()
    assert served("local", tmp_path / "b", None) == "enough"
    written = read_tensors(tmp_path / "b/model.safetensors")
    assert written["2.running_mean"].tolist() == [0.0] * 10


@UNSENT
def test_a_servers_estimates_are_of_its_test_inputs(policy: Buffers, digits: Shares, tmp_path: Path) -> None:
    assert served(policy, tmp_path / "a", digits[1]) == "enough"
    written = read_tensors(tmp_path / "a/model.safetensors")
    learner = judge_of(digits[1])
    model: Model = learner.initial(0)
    assert torch.equal(written["1.weight"], model.state_dict()["1.weight"])
    inside = module()
    model.load_into(inside)
    outputs = inside[1](inside[0](digits[1].x))
    assert torch.allclose(written["2.running_mean"], outputs.mean(0), atol=1e-5)
    assert torch.allclose(written["2.running_var"], outputs.var(0), rtol=1e-4)
