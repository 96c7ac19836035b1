"""A server and its sites in one event loop, over links in memory: whole runs, good networks and bad ones."""

import asyncio
import re
from collections import Counter
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
import torch

import offbeat as ob
from offbeat.core.errors import RunError
from offbeat.data.dataset import Dataset
from offbeat.models.specs import LogisticSpec
from offbeat.net import join
from offbeat.net.client import store
from offbeat.net.client.store import SiteStore
from offbeat.net.client.task import TrainingTask
from offbeat.net.messages import FromServer, UpdateAck
from offbeat.net.server.durable_store import DurableStore
from offbeat.net.server.effects import Effects
from offbeat.net.server.service import SMALL, Service
from offbeat.net.transport import OnChannel
from offbeat.net.wire.unfinished import DIRECTORY
from offbeat.sim.replay import replay
from offbeat.testing.network import Faults, MemoryNetwork
from tests.ended import ended_files
from tests.net.support import Shares, Terms, serve, terms_of
from tests.sampling import thorough

pytestmark = pytest.mark.usefixtures("here")

TRAINING = ob.Training(lr=0.1, batch_size=20)
SITES = 4
TERMS = terms_of(clients=SITES, lease=20.0, until=ob.Until(tasks=40), evaluate=ob.Every(versions=1))


@pytest.fixture(params=[SMALL, -1], ids=["in the loop", "in a thread"])
def where_it_runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the coordinator runs: the models here are small, and with -1 none is."""
    monkeypatch.setattr("offbeat.net.server.service.SMALL", request.param)


async def federation(
    algorithm: ob.Algorithm, digits: Shares, network: MemoryNetwork, directory: Path,
    terms: Terms = TERMS, states: Path | None = None, started: Any = None,
    min_step_seconds: float = 0.0,
) -> str | None:  # fmt: skip
    """A run to its end. Each site takes `min_step_seconds` a step more than the one before."""
    data, test = digits
    server = asyncio.create_task(
        serve(
            algorithm, LogisticSpec(), TRAINING, directory, network.listen,
            options=terms, test=test, seed=3, started=started,
        )
    )  # fmt: skip
    sites = [
        asyncio.create_task(
            join(
                network.connect(f"site-{i}"),
                d,
                state=states and states / str(i),
                min_step_seconds=i * min_step_seconds,
            )
        )
        for i, d in enumerate(data)
    ]
    reason = await server
    done = await asyncio.wait_for(asyncio.gather(*sites, return_exceptions=True), 300) if reason else sites
    for site in sites:
        site.cancel()
    await asyncio.gather(*sites, return_exceptions=True)
    if reason:
        assert set(done) <= {reason}
    return reason


async def serve_again(digits: Any, directory: Path, algorithm: ob.Algorithm) -> str | None:
    """Serve a run that has ended; a site that comes is told."""
    network = MemoryNetwork()
    site = asyncio.create_task(join(network.connect("site-0"), digits[0][0]))
    reason = await serve(
        algorithm, LogisticSpec(), TRAINING, directory, network.listen, test=digits[1], seed=3, linger=0.2
    )
    assert await asyncio.wait_for(site, 300) == reason
    return reason


def check_run(directory: Path, algorithm: ob.Algorithm) -> ob.RunRecord:
    record = ob.read_run(directory)
    assert record.status == "finished"
    assert replay(record, algorithm).difference is None
    rows = list(record.rows())
    ended = [row.task for row in rows if row.name in ("arrived", "lost")]
    assert len(ended) == len(set(ended))
    assert record.meta["summary"]["tasks"] == sum(row.name == "arrived" for row in rows)
    assert {p.name for p in directory.glob("*.safetensors")} == ended_files(directory)
    return record


@pytest.mark.parametrize(
    "algorithm",
    [
        ob.fedasmu(epochs=2, size=2, period=0.05, threshold=3),
        *thorough(
            ob.fedcompass(q_min=2, q_max=8),
            ob.fedfa(steps=3, size=4),
            ob.port(epochs=3, size=2, tau_max=2),
            ob.scaffold(steps=3),
        ),
    ],
    ids=lambda a: a.name,
)
def test_a_federation_learns(algorithm: ob.Algorithm, digits: Any, tmp_path: Path) -> None:
    reason = asyncio.run(federation(algorithm, digits, MemoryNetwork(), tmp_path / "run"))
    assert reason == "reached 40 client tasks"
    record = check_run(tmp_path / "run", algorithm)
    first, last = record.evaluations()[0], record.evaluations()[-1]
    assert first.accuracy is not None
    assert last.accuracy is not None
    assert last.accuracy > first.accuracy + 0.2
    assert last.version == record.meta["summary"]["versions"]


@pytest.mark.parametrize(
    ("seed", "where_it_runs"),
    [(1, SMALL), *thorough((0, -1), (0, SMALL), (1, -1), (2, SMALL), (2, -1), (3, SMALL), (3, -1))],
    indirect=["where_it_runs"],
)
@pytest.mark.usefixtures("where_it_runs")
def test_a_bad_network_loses_nothing(seed: int, digits: Any, tmp_path: Path) -> None:
    """Links are cut at any message, which may have arrived, and messages come twice."""
    faults = Faults(cut=0.05, duplicate=0.1, delay=0.002, rng=Random(seed))
    algorithm = ob.fedasmu(epochs=2, size=2, period=0.05, threshold=3) if seed % 2 else ob.scaffold(steps=3)
    asyncio.run(
        federation(algorithm, digits, MemoryNetwork(faults), tmp_path / "run", states=tmp_path / "sites")
    )
    record = check_run(tmp_path / "run", algorithm)
    assert faults.cuts > 3
    assert faults.duplicates > 3
    assert record.meta["rejected"] == {}


def test_a_server_that_stops_goes_on_later(digits: Any, tmp_path: Path) -> None:
    """Three times on the same directory, with sites that stay and deliver what they have trained."""
    algorithm = ob.fedbuff(steps=3, size=2, concurrency=SITES)
    data, test = digits
    directory, network = tmp_path / "run", MemoryNetwork()

    async def lives() -> list[str | None]:
        sites = [asyncio.create_task(join(network.connect(f"site-{i}"), d)) for i, d in enumerate(data)]
        reasons = []
        for life in range(3):
            services: list[Service] = []
            server = asyncio.create_task(
                serve(
                    algorithm, LogisticSpec(), TRAINING, directory, network.listen,
                    options=TERMS, test=test, seed=3, started=services.append,
                )
            )  # fmt: skip
            while life < 2 and not (services and services[0].snapshot().arrived >= 12 * (life + 1)):
                await asyncio.sleep(0.005)
            if life < 2:
                services[0].detach()
            reasons.append(await server)
        assert set(await asyncio.wait_for(asyncio.gather(*sites), 300)) == {reasons[-1]}
        return reasons

    assert asyncio.run(lives()) == [None, None, "reached 40 client tasks"]
    record = check_run(directory, algorithm)
    assert not [row for row in record.rows() if row.name == "left"]
    assert [t for t in np.diff([row.t for row in record.rows()]) if t < 0] == []


@pytest.mark.usefixtures("where_it_runs")
@pytest.mark.parametrize("seed", [0, *thorough(1)])
def test_a_server_killed_over_and_over(seed: int, digits: Any, tmp_path: Path) -> None:
    """Dropped at any moment, without a goodbye or a checkpoint, while the network is bad too."""
    algorithm = ob.fedbuff(steps=3, size=2, concurrency=SITES)
    rng = Random(seed)
    data, test = digits
    network = MemoryNetwork(Faults(cut=0.02, duplicate=0.05, rng=Random(seed)))

    async def lives() -> int:
        sites = [asyncio.create_task(join(network.connect(f"site-{i}"), d)) for i, d in enumerate(data)]
        deaths, services = 0, list[Service]()
        while True:
            server = asyncio.create_task(
                serve(
                    algorithm, LogisticSpec(), TRAINING, tmp_path / "run", network.listen,
                    options=TERMS, test=test, seed=3, checkpoint_seconds=0.05, linger=0.3,
                    started=services.append,
                )
            )  # fmt: skip
            wanted = rng.randrange(8)  # updates, before it dies
            while not server.done() and len(services) <= deaths:
                await asyncio.sleep(0)
            begun = services[-1].snapshot().arrived
            while not server.done() and services[-1].snapshot().arrived < begun + wanted:
                await asyncio.sleep(0)
            if server.done():
                assert server.result() == "reached 40 client tasks"
                break
            server.cancel()
            await asyncio.gather(server, return_exceptions=True)
            deaths += 1
        await asyncio.wait_for(asyncio.gather(*sites), 300)
        return deaths

    assert asyncio.run(lives()) >= 1
    check_run(tmp_path / "run", algorithm)


def test_no_update_is_acknowledged_before_it_is_committed(
    digits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a commit is under way the loop has turns enough to send what it should not send yet."""
    network, commit = MemoryNetwork(), DurableStore.commit
    committed, acknowledged = set[int](), list[tuple[int, bool]]()

    class Seen:
        """The server's end of a link: is what it acknowledges committed?"""

        def __init__(self, link: Any) -> None:
            self.site, self.receive, self.forward = link.site, link.receive, link.forward
            self.end, self.close, self._link = link.end, link.close, link

        @property
        def took(self) -> float:
            return float(self._link.took)

        def send(self, message: FromServer) -> None:
            if isinstance(message, UpdateAck) and message.accepted:
                acknowledged.append((message.task, message.task in committed))
            self._link.send(message)

    async def turns() -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    async def served() -> str | None:
        loop = asyncio.get_running_loop()

        def slowly(state: DurableStore, *outcomes: Effects) -> None:
            asyncio.run_coroutine_threadsafe(turns(), loop).result(30)
            commit(state, *outcomes)
            committed.update(*(outcome.updates for outcome in outcomes))

        async def listen(on_channel: OnChannel) -> MemoryNetwork:
            return await network.listen(lambda link: on_channel(Seen(link)))

        monkeypatch.setattr(DurableStore, "commit", slowly)
        server = asyncio.create_task(
            serve(
                ob.fedasync(steps=3), LogisticSpec(), TRAINING, tmp_path / "run", listen,
                options=terms_of(clients=2, lease=20.0, until=ob.Until(tasks=10)),
                test=digits[1], seed=3,
            )
        )  # fmt: skip
        sites = [asyncio.create_task(join(network.connect(f"site-{i}"), digits[0][i])) for i in range(2)]
        try:
            return await asyncio.wait_for(server, 300)
        finally:
            for task in (server, *sites):
                task.cancel()
            await asyncio.gather(server, *sites, return_exceptions=True)

    assert asyncio.run(served()) == "reached 10 client tasks"
    assert [task for task, durable in acknowledged if not durable] == []
    assert len(acknowledged) >= 9  # of the last one the site may hear only that the run is over


@pytest.mark.usefixtures("where_it_runs")
def test_while_a_batch_is_written_the_next_is_heard(
    digits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, services, heard = DurableStore.commit, list[Service](), list[bool]()

    def slowly(state: DurableStore, *outcomes: Effects) -> None:
        """Some updates are written when another one, of a site that was at work, has been aggregated."""
        rows = [row for outcome in outcomes for row in outcome.rows]
        if 0 < sum(row.name == "arrived" for row in rows) < SITES and len(heard) < 3:
            driver, until = services[0]._coordinator.driver, monotonic() + 30
            while driver.engine.rows == rows[-1].seq + 1 and monotonic() < until:
                sleep(0.001)
            heard.append(driver.engine.rows > rows[-1].seq + 1)
        commit(state, *outcomes)

    monkeypatch.setattr(DurableStore, "commit", slowly)
    monkeypatch.setattr(DurableStore, "due", lambda *_: False)  # a checkpoint waits for both
    algorithm = ob.fedasync(steps=3)
    run = federation(
        algorithm, digits, MemoryNetwork(), tmp_path / "run", started=services.append, min_step_seconds=0.005
    )
    asyncio.run(run)
    check_run(tmp_path / "run", algorithm)
    assert heard == [True] * 3


def test_what_cannot_be_written_ends_the_run_though_nobody_says_more(
    digits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(state: DurableStore, *outcomes: Effects) -> None:
        if any(outcome.updates for outcome in outcomes):
            raise RunError("the disk is full")
        commit(state, *outcomes)

    commit = DurableStore.commit
    monkeypatch.setattr(DurableStore, "commit", full)
    data, test = digits
    terms = terms_of(clients=1, lease=1e6, until=ob.Until(tasks=10))
    run = federation(ob.fedasync(steps=3), (data[:1], test), MemoryNetwork(), tmp_path / "run", terms)
    with pytest.raises(RunError, match="the disk is full"):
        asyncio.run(asyncio.wait_for(run, 300))
    record = ob.read_run(tmp_path / "run")
    assert record.status == "failed"
    assert "arrived" not in {row.name for row in record.rows()}


def test_an_accuracy_that_was_reached_ends_the_run_also_after_the_server_failed_to_end_it(
    digits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RunError("the disk is full")

    algorithm = ob.fedasync(steps=3)
    terms = terms_of(clients=SITES, lease=20.0, until=ob.Until(accuracy=0.4), evaluate=ob.Every(versions=1))
    with monkeypatch.context() as broken:
        broken.setattr(DurableStore, "finish", fails)
        with pytest.raises(RunError, match="the disk is full"):
            asyncio.run(federation(algorithm, digits, MemoryNetwork(), tmp_path / "run", terms))
    length = ob.read_run(tmp_path / "run").length
    assert asyncio.run(federation(algorithm, digits, MemoryNetwork(), tmp_path / "run", terms)) == (
        "reached accuracy 0.4"
    )
    assert check_run(tmp_path / "run", algorithm).length == length


def test_a_site_whose_disk_is_full_goes_on(
    digits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written, real = Counter[Path](), store.write_tensors

    def often_full(path: Path, tensors: Any) -> None:
        written[path] += 1
        if written[path] > 1 and written.total() % 3:  # a site that cannot write at first does not join
            raise OSError(28, "No space left on device")
        real(path, tensors)

    monkeypatch.setattr(store, "write_tensors", often_full)
    algorithm = ob.scaffold(steps=3)
    run = federation(algorithm, digits, MemoryNetwork(), tmp_path / "run", states=tmp_path / "sites")
    asyncio.run(asyncio.wait_for(run, 300))
    record = check_run(tmp_path / "run", algorithm)
    assert "lost" not in {row.name for row in record.rows()}
    errors = {said.getMessage().rpartition(": ")[2] for said in caplog.records if said.levelname == "ERROR"}
    assert any(re.fullmatch(r"the state after task \d+ is in memory only", error) for error in errors)


def not_tried_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites find out about their data in their tasks, as where the batch that is tried is a good one."""
    monkeypatch.setattr("offbeat.net.client.task.check_data", lambda *_: None)


def test_a_site_that_keeps_failing_says_so_and_hinders_nobody(
    digits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    not_tried_before(monkeypatch)
    data, test = digits
    bad = Dataset(data[0].x * float("nan"), data[0].y, data[0].classes)
    terms = terms_of(clients=SITES, lease=20.0, until=ob.Until(tasks=20))
    algorithm = ob.fedasync(steps=3)
    asyncio.run(federation(algorithm, ([bad, *data[1:]], test), MemoryNetwork(), tmp_path / "run", terms))
    record = check_run(tmp_path / "run", algorithm)
    reasons = {row.data["reason"] for row in record.rows() if row.name == "lost" and row.data}
    assert reasons
    assert all("the loss is not finite: sample" in reason for reason in reasons)


def test_a_site_that_was_sent_away_hears_of_the_end(
    digits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it comes back only when all the others have heard of it and gone."""
    not_tried_before(monkeypatch)
    data, test = digits
    bad = Dataset(data[0].x * float("nan"), data[0].y, data[0].classes)
    network, attempts = MemoryNetwork(), 0

    async def both() -> list[str | None]:
        server = asyncio.create_task(
            serve(
                ob.fedasync(steps=3), LogisticSpec(), TRAINING, tmp_path / "run", network.listen,
                options=terms_of(
                    clients=2, lease=20.0, max_consecutive_failures=1, until=ob.Until(tasks=20)
                ),
                test=test, seed=3,
            )
        )  # fmt: skip
        good = asyncio.create_task(join(network.connect("good"), data[1]))

        async def late() -> Any:
            nonlocal attempts
            while network.on_channel is None:
                await asyncio.sleep(0.01)
            attempts += 1
            if attempts > 1:
                await good
                while ob.read_run(tmp_path / "run").status != "finished":
                    await asyncio.sleep(0.01)
                for _ in range(1000):  # turns in which a server that waits for nobody else would be gone
                    await asyncio.sleep(0)
            return await network.connect("bad")()

        sent_away = asyncio.create_task(join(late, bad))
        return await asyncio.wait_for(asyncio.gather(server, good, sent_away), 300)

    assert asyncio.run(both()) == ["reached 20 client tasks"] * 3
    assert attempts == 2
    (left,) = [row for row in ob.read_run(tmp_path / "run").rows() if row.name == "left"]
    assert left.data is not None
    assert left.data["reason"].startswith("sent away (consecutive failures: 1), the last: UsageError: client")


def test_stopping_by_hand_makes_the_model_final(digits: Any, tmp_path: Path) -> None:
    def started(service: Service) -> None:
        async def later() -> None:
            while service.snapshot().version < 3:
                await asyncio.sleep(0.01)
            service.finish("enough")

        tasks.append(asyncio.get_running_loop().create_task(later()))

    tasks: list[Any] = []
    terms = terms_of(clients=SITES)
    algorithm = ob.fedavg(steps=2)
    directory = tmp_path / "run"
    assert (
        asyncio.run(federation(algorithm, digits, MemoryNetwork(), directory, terms, started=started))
        == "enough"
    )
    assert check_run(directory, algorithm).stop_reason == "enough"
    again = serve_again(digits, directory, algorithm)
    assert asyncio.run(again) == "enough"
    with pytest.raises(ob.UsageError, match=r"another plan: algorithm\.steps was 2, now it is 3"):
        asyncio.run(serve_again(digits, directory, ob.fedavg(steps=3)))


def test_a_site_with_other_data_is_told(digits: Any, tmp_path: Path) -> None:
    _, test = digits
    network = MemoryNetwork()

    async def both() -> Any:
        server = asyncio.create_task(
            serve(
                ob.fedavg(steps=2), LogisticSpec(), TRAINING, tmp_path / "run", network.listen,
                options=terms_of(clients=2), test=test,
            )
        )  # fmt: skip
        await asyncio.sleep(0)
        wrong = Dataset(torch.zeros(5, 3), torch.zeros(5, dtype=torch.int64), 10)
        try:
            while network.on_channel is None:
                await asyncio.sleep(0.01)
            return await join(network.connect("a"), wrong)
        finally:
            server.cancel()
            await asyncio.gather(server, return_exceptions=True)

    with pytest.raises(ob.UsageError, match=r"shape \(3,\) and 10 classes, the run has"):
        asyncio.run(both())


def test_what_cannot_be_served_is_refused(tmp_path: Path) -> None:
    async def attempt(**options: Any) -> None:
        algorithm = options.pop("algorithm", ob.fedavg(steps=2))
        await serve(algorithm, LogisticSpec(), TRAINING, tmp_path, MemoryNetwork().listen, **options)

    shape = {"sample_shape": (4,), "classes": 2}
    with pytest.raises(ob.UsageError, match="sample_shape and classes"):
        asyncio.run(attempt())
    with pytest.raises(ob.UsageError, match="needs evaluations"):
        asyncio.run(attempt(options=terms_of(until=ob.Until(accuracy=0.5)), **shape))
    with pytest.raises(ob.UsageError, match="3 clients cannot train at the same time"):
        asyncio.run(attempt(algorithm=ob.fedbuff(steps=1, concurrency=3), **shape))
    assert not list(tmp_path.glob("*.db"))


def test_a_task_that_fails_at_its_site_is_lost_and_the_run_goes_on(
    digits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training raises at one site, again and again: it says so, less and less often."""
    run, failed = TrainingTask.run, []

    def fails(job: TrainingTask, state: Any) -> Any:
        if job.context.client == 0:
            failed.append(job.task)
            raise ValueError("the scanner is off")
        return run(job, state)

    monkeypatch.setattr(TrainingTask, "run", fails)
    algorithm = ob.fedasync(steps=3)
    terms = terms_of(clients=SITES, lease=20.0, until=ob.Until(tasks=40))
    asyncio.run(federation(algorithm, digits, MemoryNetwork(), tmp_path / "run", terms))
    rows = list(check_run(tmp_path / "run", algorithm).rows())
    lost = [row for row in rows if row.name == "lost"]
    assert {row.data["reason"] for row in lost if row.data} == {"ValueError: the scanner is off"}
    assert {row.client for row in lost} == {0}
    assert 1 <= len(lost) <= len(failed) <= len(lost) + 2


def test_a_site_that_starts_again_delivers_the_update_it_kept(
    digits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process ends between training and the receipt; a new one finds the update in its directory."""
    data, test = digits
    network, algorithm, directory = MemoryNetwork(), ob.fedasync(steps=3), tmp_path / "run"
    services: list[Service] = []
    run, trained = TrainingTask.run, []

    def noted(job: TrainingTask, state: Any) -> Any:
        trained.append(job.task)
        return run(job, state)

    monkeypatch.setattr(TrainingTask, "run", noted)

    async def served(tasks: int) -> str | None:
        return await serve(
            algorithm, LogisticSpec(), TRAINING, directory, network.listen,
            options=terms_of(lease=20.0, until=ob.Until(tasks=tasks)),
            test=test, seed=3, started=services.append,
        )  # fmt: skip

    async def lives() -> int:
        server = asyncio.create_task(served(10**6))
        site = asyncio.create_task(join(network.connect("a"), data[0], state=tmp_path / "site"))
        while not (services and services[0].snapshot().arrived >= 2):
            await asyncio.sleep(0.002)
        services[0].detach()
        assert await server is None
        while not (tmp_path / "site" / "update.safetensors").exists():  # trained, with nobody to tell
            await asyncio.sleep(0.01)
        site.cancel()
        await asyncio.gather(site, return_exceptions=True)
        store = SiteStore(tmp_path / "site")
        assert store.pending is not None
        store.close()
        trained.clear()
        (tmp_path / "site" / DIRECTORY).mkdir()
        (tmp_path / "site" / DIRECTORY / "server-0.part").write_text("of an evaluation's model")
        server = asyncio.create_task(served(store.pending.update.task + 3))
        reason = await asyncio.wait_for(join(network.connect("a"), data[0], state=tmp_path / "site"), 300)
        assert await server == reason
        return store.pending.update.task

    kept = asyncio.run(lives())
    assert kept not in trained
    assert kept + 1 in trained
    assert not (tmp_path / "site" / DIRECTORY).exists()
    arrived = [row.task for row in ob.read_run(directory).rows() if row.name == "arrived"]
    assert arrived == list(range(kept + 3))
    check_run(directory, algorithm)
