"""Evaluation at the sites of a deployed run: the numbers of the simulator, without a common test set."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import wraps
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch

import offbeat as ob
from offbeat.data.dataset import Dataset
from offbeat.data.federated import FederatedData, own_data
from offbeat.metrics import aggregate_clients
from offbeat.models.specs import LogisticSpec
from offbeat.models.specs import build as build_module
from offbeat.net import join
from offbeat.net.auth.credentials import ServerCredentials, SiteCredentials
from offbeat.net.client.task import TrainingContext
from offbeat.net.grpc.client import connect
from offbeat.net.grpc.server import listen
from offbeat.net.server.service import Service
from offbeat.net.wire.limits import Limits
from offbeat.sim.replay import replay
from offbeat.testing.network import Faults, MemoryNetwork
from tests.net.support import serve, terms_of

pytestmark = pytest.mark.usefixtures("here")

SITES = 4
TRAINING = ob.Training(lr=0.1, batch_size=20)
VALIDATION = 0.2
UNTIL = ob.Until(versions=6)
IN_TURN = ob.fedbuff(1, steps=4, concurrency=1)  # one site trains at a time: the models are the simulator's
AT_CLIENTS = ob.Every(versions=2, at="clients")
Connect = Callable[[str], Any]


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that runs in an event loop of its own."""

    @wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(test(**arguments))

    return run


@pytest.fixture(scope="module")
def parts() -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """Unequal shares of digits."""
    return np.split(np.arange(400), [70, 150, 280])


def data_of(parts: Any) -> list[Dataset]:
    source = ob.load("digits", samples=400, test_samples=100)
    return [source.train.subset(part) for part in parts]


def simulated(parts: Any, algorithm: ob.Algorithm, every: ob.Every = AT_CLIENTS) -> ob.Run:
    """The same run in virtual time: clients that are as fast as each other."""
    source = ob.load("digits", samples=400, test_samples=100)
    data = ob.federate(source.train, source.test, parts, validation=VALIDATION)

    def module() -> Any:
        return build_module(LogisticSpec(), source.train.sample_shape, 10)

    learner = ob.TorchLearner(module, data, TRAINING)
    return ob.simulate(algorithm, ob.World([1.0] * SITES), learner, seed=3, until=UNTIL, evaluate=every)


async def deployed(
    parts: Any,
    directory: Path,
    algorithm: ob.Algorithm,
    listen: Any,
    connect: Connect,
    *,
    every: ob.Every = AT_CLIENTS,
    test: Dataset | None = None,
    started: Any = None,
    timeout: float = 60.0,
    lease: float = 60.0,
    until: ob.Until = UNTIL,
    killed: int | None = None,
    validation: float = VALIDATION,
    state: bool = False,
) -> ob.RunRecord:
    """A deployed run to its end. Sites join one after another, so that site i is client i."""
    options = terms_of(clients=SITES, lease=lease, until=until, evaluate=every, evaluation_timeout=timeout)
    ready: asyncio.Future[Service] = asyncio.get_running_loop().create_future()

    def is_ready(service: Service) -> None:
        if started is not None:
            started(service)
        ready.set_result(service)

    server = asyncio.create_task(
        serve(
            algorithm, LogisticSpec(), TRAINING, directory, listen,
            options=options, seed=3, test=test, sample_shape=(1, 8, 8), classes=10, started=is_ready,
            linger=2.0,
        )
    )  # fmt: skip
    service = await asyncio.wait_for(ready, 300)
    sites: list[asyncio.Task[str]] = []
    for i, data in enumerate(data_of(parts)):
        place = directory.parent / f"site-{i}" if state else None
        sites.append(
            asyncio.create_task(join(connect(f"site-{i}"), data, validation=validation, state=place))
        )
        while len(service.snapshot().sites) <= i and not server.done():
            await asyncio.sleep(0.01)
    if killed is not None:
        record = None
        while not (record and record.evaluations()):
            await asyncio.sleep(0.02)
            record = ob.read_run(directory)
        sites[killed].cancel()
    await asyncio.wait_for(server, 300)
    for site in sites:
        site.cancel()
    await asyncio.gather(*sites, return_exceptions=True)
    return ob.read_run(directory)


def over(network: MemoryNetwork) -> tuple[Any, Connect]:
    return network.listen, network.connect


def numbers(run: ob.Run | ob.RunRecord) -> list[Any]:
    """Evaluations without what depends on time."""
    return [(m.version, m.tasks, m.found) for m in run.evaluations()]


def rows(run: ob.Run | ob.RunRecord) -> list[dict[str, Any]]:
    """What clients have found, without what depends on time: a busy server evaluates fewer versions."""
    return [{k: v for k, v in row.items() if k not in ("t", "evaluation")} for row in run.client_metrics()]


@pytest.mark.parametrize("at", ["clients", "both"])
@in_loop
async def test_the_numbers_are_those_of_the_simulator(parts: Any, tmp_path: Path, at: Any) -> None:
    algorithm, every = IN_TURN, ob.Every(versions=1, at=at)
    test = ob.load("digits", samples=400, test_samples=100).test if at == "both" else None
    record = await deployed(
        parts, tmp_path / "run", algorithm, *over(MemoryNetwork()), every=every, test=test
    )
    expected = simulated(parts, algorithm, every)
    assert replay(record, algorithm).difference is None
    assert rows(record)[-4:] == rows(expected)[-4:] != []
    assert [row["client"] for row in record.client_metrics(0)] == [0, 1, 2, 3]
    by_version = {version: found for version, _, found in numbers(expected)}
    assert {version: by_version[version] for version, _, _ in numbers(record)} == {
        version: found for version, _, found in numbers(record)
    }
    assert numbers(record)[-1][0] == 6
    assert ("loss" in record.evaluations()[-1].found) == (at == "both")


@in_loop
async def test_over_grpc_without_a_common_test_set(parts: Any, tmp_path: Path) -> None:
    algorithm, address = IN_TURN, ""

    async def open_listener(on_channel: Any) -> Any:
        nonlocal address
        listener = await listen("127.0.0.1:0", ServerCredentials(), Limits(), on_channel)
        address = f"127.0.0.1:{listener.port}"
        return listener

    def connect_site(name: str) -> Any:
        return lambda: connect(address, SiteCredentials(name=name), Limits())

    record = await deployed(parts, tmp_path / "run", algorithm, open_listener, connect_site)
    assert rows(record)[-4:] == rows(simulated(parts, algorithm))[-4:]
    assert record.evaluations()[-1].found["clients.count"] == 4.0
    assert replay(record, algorithm).difference is None


@pytest.mark.thorough
@in_loop
async def test_a_killed_site_is_not_waited_for_longer_than_the_timeout(parts: Any, tmp_path: Path) -> None:
    """Its lease is long: the deadline of the evaluation ends the wait."""
    algorithm = ob.fedbuff(2, steps=4)
    record = await deployed(
        parts, tmp_path / "run", algorithm, *over(MemoryNetwork()),
        timeout=0.5, until=ob.Until(seconds=2.0), killed=2,
    )  # fmt: skip
    evaluations = record.evaluations()
    assert evaluations[0].found["clients.count"] == 4.0
    assert evaluations[-1].found["clients.count"] == 3.0
    assert {row["client"] for row in record.client_metrics(evaluations[-1].seq)} == {0, 1, 3}
    assert record.status == "finished"


@in_loop
async def test_evaluations_survive_a_bad_network(parts: Any, tmp_path: Path) -> None:
    network, algorithm = MemoryNetwork(Faults(cut=0.03, duplicate=0.1, delay=0.005)), IN_TURN
    record = await deployed(parts, tmp_path / "run", algorithm, *over(network), timeout=20.0)
    assert replay(record, algorithm).difference is None
    expected = {(row["version"], row["client"]): row["loss"] for row in rows(simulated(parts, algorithm))}
    found = {(row["version"], row["client"]): row["loss"] for row in rows(record)}
    assert found
    assert found == {key: expected[key] for key in found}
    assert max(version for version, _ in found) == 6
    for metric in record.evaluations():
        told = {row["client"]: row for row in record.client_metrics(metric.seq)}
        again = {
            client: (row["samples"], {name: row[name] for name in ("loss", "accuracy")})
            for client, row in told.items()
        }
        assert metric.found == aggregate_clients(again)


@in_loop
async def test_a_site_evaluates_while_it_trains(
    parts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation that lasts until an update has arrived: the training does not wait for it."""
    arrived, evaluate, seen = Event(), TrainingContext.evaluate, []

    def slow(self: TrainingContext, *arguments: Any) -> Any:
        seen.append(arrived.wait(300))
        return evaluate(self, *arguments)

    services: list[Service] = []

    def watch(service: Service) -> None:
        services.append(service)

        async def look() -> None:
            while service.snapshot().arrived < 8:
                await asyncio.sleep(0.01)
            arrived.set()

        watch.task = asyncio.create_task(look())  # type: ignore[attr-defined]

    monkeypatch.setattr(TrainingContext, "evaluate", slow)
    record = await deployed(
        parts, tmp_path / "run", ob.fedbuff(2, steps=4), *over(MemoryNetwork()), started=watch,
        every=ob.Every(versions=1, at="clients"), timeout=300.0, until=ob.Until(tasks=12),
    )  # fmt: skip
    assert seen
    assert all(seen)
    first = record.evaluations()[0]
    assert (first.version, first.tasks) == (0, 0)
    assert record.evaluations()[-1].version == record.meta["summary"]["versions"]


@in_loop
async def test_sites_without_held_out_samples_are_not_asked(parts: Any, tmp_path: Path) -> None:
    record = await deployed(
        parts, tmp_path / "run", ob.fedavg(steps=4), *over(MemoryNetwork()), validation=0.0
    )
    assert record.evaluations() == []
    assert record.status == "finished"


@in_loop
async def test_a_failing_evaluation_is_told_and_costs_nothing_else(
    parts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    evaluate = TrainingContext.evaluate

    def fail(self: TrainingContext, *arguments: Any) -> Any:
        if self.client == 1:
            raise ValueError("no such patient")
        return evaluate(self, *arguments)

    monkeypatch.setattr(TrainingContext, "evaluate", fail)
    record = await deployed(
        parts, tmp_path / "run", ob.fedavg(steps=4), *over(MemoryNetwork()), timeout=300.0
    )
    assert {row["client"] for row in record.client_metrics()} == {0, 2, 3}
    said = next(record.__dict__ for record in caplog.records if record.message == "evaluation failed")
    assert (said["site"], said["version"], said["reason"]) == ("site-1", 0, "ValueError: no such patient")


def test_a_site_trains_on_the_rest_and_holds_out_the_same_in_every_run() -> None:
    data = data_of([np.arange(50)])[0]
    first, second = own_data(data, 0.3).numbered(0), own_data(data, 0.3).numbered(7)
    assert first.held_out is not None and second.held_out is not None  # noqa: PT018
    assert torch.equal(first.held_out.client(0), second.held_out.client(7))
    assert (first.samples(0), first.held_out.count(0)) == (35, 15)
    assert not set(first.client_indices(0).tolist()) & set(first.held_out.client(0).tolist())


def test_a_site_may_bring_its_own_held_out_data() -> None:
    data, held = data_of([np.arange(50), np.arange(50, 60)])
    own = own_data((data, held))
    assert isinstance(own, FederatedData)
    assert own.held_out is not None
    assert (own.samples(0), own.held_out.count(0)) == (50, 10)
    with pytest.raises(ob.UsageError, match="the data hold out samples already"):
        own_data((data, held), 0.2)


@in_loop
async def test_what_cannot_be_evaluated_at_sites_is_refused(tmp_path: Path) -> None:
    async def attempt(algorithm: ob.Algorithm, at: Any) -> None:
        options = terms_of(evaluate=ob.Every(versions=1, at=at))
        await serve(
            algorithm, LogisticSpec(), TRAINING, tmp_path / "run", MemoryNetwork().listen,
            options=options, sample_shape=(1, 8, 8), classes=10,
        )  # fmt: skip

    with pytest.raises(ob.UsageError, match=r"evaluate.at = 'both' needs test data at the server"):
        await attempt(ob.fedavg(steps=4), "both")
    with pytest.raises(ob.UsageError, match="buffers = 'recompute' is not allowed with evaluations at sites"):
        await attempt(replace(ob.fedavg(steps=4), buffers="recompute"), "clients")


@in_loop
async def test_a_loop_of_ones_own_evaluates_and_a_metric_of_the_clients_ends_the_run(tmp_path: Path) -> None:
    network, evaluated = MemoryNetwork(), []

    def train(task: ob.ClientTask) -> None:
        for _ in task.steps(task.batches()):
            pass
        task.submit(task.arrays(), samples=40)

    def evaluate(model: ob.Model, client: int) -> dict[str, float]:
        evaluated.append(client)
        return {"auroc": 0.5 if len(evaluated) == 1 else 0.75}

    until = ob.Until(versions=10_000, metric="clients.auroc", reaches=0.7)
    options = terms_of(clients=1, until=until, evaluate=ob.Every(versions=1, at="clients"))
    server = serve(
        ob.fedbuff(1, steps=2, concurrency=1), LogisticSpec(), TRAINING, tmp_path / "run", network.listen,
        options=options, sample_shape=(1, 8, 8), classes=10, linger=2.0,
    )  # fmt: skip
    own = ob.LoopLearner(train, None, 40, batch_size=20, held_out=7, evaluate_client=evaluate)
    reasons = await asyncio.gather(server, join(network.connect("site"), learner=own))
    assert reasons == ["reached clients.auroc 0.7"] * 2
    record = ob.read_run(tmp_path / "run")
    assert [row["samples"] for row in record.client_metrics()] == [7] * len(evaluated)
    assert record.metrics[-1]["clients.auroc"] == 0.75
