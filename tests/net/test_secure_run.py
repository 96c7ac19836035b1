"""Secure aggregation end to end: server, helpers and sites over a transport in memory."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import shake_256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import offbeat as ob
from offbeat.algorithms.privacy.private import with_privacy
from offbeat.core.algorithm import Algorithm
from offbeat.core.commands import Aggregate
from offbeat.core.engine import Engine
from offbeat.core.errors import RunError, UsageError
from offbeat.core.events import Arrived
from offbeat.core.global_model import GlobalModel
from offbeat.core.journal import event_of
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model
from offbeat.core.privacy.ledger import ReleasePlan
from offbeat.core.privacy.releases import ReleaseSeeds, SummedUpdates
from offbeat.core.staleness import ConstantWeight
from offbeat.models.specs import LogisticSpec, MLPSpec
from offbeat.net import ServerOptions, SitePolicy, join
from offbeat.net import serve as serve_run
from offbeat.net.client.sent_lines import sent_lines
from offbeat.net.client.store import PendingUpdate, SiteStore
from offbeat.net.messages import FromSite, Leave, Register, UpdateSubmission
from offbeat.net.monitor.from_journal import snapshot_of
from offbeat.net.secure.helping import help_run
from offbeat.net.secure.masking import Masking
from offbeat.net.secure.release_seeds import FreshSeeds
from offbeat.net.server.server_learner import server_learner
from offbeat.runs.files import read_model
from offbeat.runs.record import RunRecord, read_run
from offbeat.secure.committee import tolerated
from offbeat.secure.helper import Helper
from offbeat.secure.messages import UnmaskRefused, UnmaskRequest, UnmaskShare
from offbeat.secure.unmasking import UnmaskingTimes
from offbeat.sim.replay import replay
from offbeat.testing.journal import check_journal
from offbeat.testing.network import MemoryNetwork
from tests.net.cutting_relay import Relay, relay
from tests.net.support import hurry, recording, serve, shares_of_digits, terms_of, torch_left_alone
from tests.net.test_what_leaves_a_site import failing
from tests.sampling import thorough

HELPERS = ("anna", "bert", "cleo", "dora")
TRAINING = ob.Training(lr=0.1, batch_size=20)
LOGISTIC = LogisticSpec()


def privacy_of(**options: Any) -> ob.Privacy:
    return ob.Privacy(clip=0.5, least=3, secure=ob.Secure(helpers=HELPERS, colluding=1), **options)


def seed_of(task: int) -> bytes:
    return shake_256(b"rounding of task" + task.to_bytes(8, "big")).digest(32)


@contextmanager
def injected_rounding(deltas: dict[int, torch.Tensor]) -> Iterator[None]:
    """Rounding follows from the task; what a site masks is kept here in clear."""
    submission = Masking.submission

    def recorded(self: Masking, a: Any, steps: int, result: LocalResult, factor: float) -> Any:
        deltas[a.task] = result.delta.clone()
        return submission(self, a, steps, result, factor)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Masking, "rounding", lambda self, task: seed_of(task))
        patched.setattr(Masking, "submission", recorded)
        yield


@contextmanager
def noted_seeds(noises: dict[int, bytes]) -> Iterator[None]:
    """The seeds of the noise, which nobody else ever knows, by release."""
    draw = FreshSeeds.noise

    def noted(self: FreshSeeds, release: Aggregate) -> bytes:
        noises[release.version] = draw(self, release)
        return noises[release.version]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FreshSeeds, "noise", noted)
        yield


async def federation(
    directory: Path,
    algorithm: Algorithm,
    privacy: ob.Privacy,
    *,
    sites: int = 4,
    tasks: int = 24,
    helpers: tuple[str, ...] = HELPERS,
    options: Mapping[str, Any] = {},
    connect: Callable[[MemoryNetwork, str], Any] = MemoryNetwork.connect,
    later: Callable[[MemoryNetwork, dict[str, "asyncio.Task[str]"]], Any] | None = None,
) -> str | None:
    """A whole run; returns why it ended."""
    data, test = shares_of_digits(sites, samples=60 * sites, test_samples=60)
    network = MemoryNetwork()
    wanted = terms_of(clients=sites, until=ob.Until(tasks=tasks), **options)
    server = asyncio.create_task(
        serve(
            algorithm, LogisticSpec(), TRAINING, directory / "run", network.listen,
            options=wanted, test=test, seed=3, privacy=privacy, linger=0.2,
        )
    )  # fmt: skip
    helping = {
        name: asyncio.create_task(help_run(network.connect(name), name, directory / name)) for name in helpers
    }
    joined = [asyncio.create_task(join(connect(network, f"site-{i}"), d)) for i, d in enumerate(data)]
    extra = None if later is None else asyncio.create_task(later(network, helping))
    reason = await asyncio.wait_for(server, 300)
    for task in (*helping.values(), *joined, *filter(None, [extra])):
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 5)
    return reason


def in_clear(
    record: RunRecord,
    algorithm: Algorithm,
    deltas: dict[int, torch.Tensor],
    noises: Mapping[int, bytes] = {},
    model: LogisticSpec | MLPSpec = LOGISTIC,
) -> Model:
    """The final model that the journal's events give where the updates are summed in clear, as simulated."""
    plan = ReleasePlan.read(record.meta["privacy"])
    _, test = shares_of_digits(4, samples=240, test_samples=60)
    learner = server_learner(model, TRAINING, test, None, None)
    seeds = ReleaseSeeds(lambda release: noises[release.version], lambda task, release: seed_of(task.id))
    tensors = GlobalModel(algorithm, learner.initial(3), release=SummedUpdates(plan, seeds))
    engine = Engine(with_privacy(algorithm, plan.privacy).schedule, record.seed, lambda row: None, tensors)
    for row in record.rows("event"):
        if row.name in ("releasing", "released"):  # nothing is masked here
            continue
        event = event_of(row)
        result = None
        if isinstance(event, Arrived):
            base = tensors.bases[event.task][1]
            result = LocalResult(deltas[event.task], base.integers, {}, 0.1)
        engine.apply(row.t, event, result)
    return tensors.model


@pytest.mark.parametrize(
    ("name", "bands"),
    [("weighted", 3), *thorough(("weighted", 0), ("fedbuff", 0), ("fedbuff", 1), ("fedcompass", 0))],
)
def test_the_sums_are_those_of_the_updates_in_clear(
    name: str, bands: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, for the same rounding and noise; the journal replays; no update is in two manifests."""
    hurry(monkeypatch)
    algorithms = {
        "fedbuff": ob.fedbuff(size=3, steps=2, staleness=ConstantWeight()),
        "weighted": ob.fedbuff(size=3, steps=2),
        "fedcompass": ob.fedcompass(q_min=1, q_max=4),
    }
    algorithm, deltas, noises = algorithms[name], dict[int, torch.Tensor](), dict[int, bytes]()
    privacy = privacy_of(noise=ob.Noise(multiplier=4, bands=bands)) if bands else privacy_of()
    with torch_left_alone(), injected_rounding(deltas), noted_seeds(noises):
        assert asyncio.run(federation(tmp_path, algorithm, privacy)) == "reached 24 client tasks"
    for helper in HELPERS:
        left = list(sent_lines(tmp_path / helper))
        assert {"run", "register", "unmask_share"} <= {line["kind"] for line in left}
        assert all(line["release"] >= 0 for line in left if line["kind"] == "unmask_share")
    record = read_run(tmp_path / "run")
    rows = list(record.rows())
    names = [row.name for row in rows]
    releases = [row.data or {} for row in rows if row.name == "releasing"]
    assert names.count("aggregate") == names.count("releasing") == names.count("released") > 3
    assert names.count("committee") == 1
    summed = [task for row in releases for task in row["tasks"]]
    assert len(set(summed)) == len(summed)
    assert all(not row.data["reason"] for row in rows if row.name == "released" and row.data)
    assert all(len(row["tasks"]) >= 3 and not row["left_out"] for row in releases)
    assert len(set(noises.values())) == (len(releases) if bands else 0)
    final = in_clear(record, algorithm, deltas, noises)
    saved = read_model(tmp_path / "run" / "model.safetensors", final.layout)
    assert saved.values.numpy().tobytes() == final.values.numpy().tobytes()
    assert np.abs(saved.values.numpy()).max() > 0
    assert replay(record, algorithm).difference is None
    if name != "fedcompass":  # whose timers fire late on a real clock
        assert check_journal(rows).summed == set(summed)
    told = snapshot_of(record).helpers
    assert told is not None
    assert told.text == "helpers: anna, bert, cleo, dora"


def test_masked_updates_and_shares_go_on_over_links_that_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection of a site or a helper is reset after 150 kB; one vector has 600 kB."""
    hurry(monkeypatch)
    model, names = MLPSpec(hidden=(2000,)), HELPERS[:3]
    algorithm, deltas = ob.fedbuff(size=3, steps=2), dict[int, torch.Tensor]()
    privacy = ob.Privacy(clip=0.5, least=3, secure=ob.Secure(helpers=names))
    data, test = shares_of_digits(3, samples=180, test_samples=60)
    experiment = ob.Experiment(
        algorithm, server_learner(model, TRAINING, test), 3, until=ob.Until(tasks=9), privacy=privacy
    )

    async def story() -> Relay:
        async with (
            serve_run(
                experiment, tmp_path / "run", "127.0.0.1:0", options=ServerOptions(clients=3)
            ) as server,
            relay(server.port, up=150_000) as way,
        ):
            address = f"127.0.0.1:{way.port}"
            joined = [
                *(asyncio.create_task(help_run(address, name, tmp_path / name)) for name in names),
                *(asyncio.create_task(join(address, d, name=f"site-{i}")) for i, d in enumerate(data)),
            ]
            assert await server.ended() == "reached 9 client tasks"
            for task in joined:
                task.cancel()
            await asyncio.gather(*joined, return_exceptions=True)
        return way

    with torch_left_alone(), injected_rounding(deltas):
        way = asyncio.run(story())
    record = read_run(tmp_path / "run")
    assert way.connections > 6 + 9
    released = record.entries("released")
    assert len(released) == 3
    assert all(not row["reason"] for row in released)
    final = in_clear(record, algorithm, deltas, model=model)
    saved = read_model(tmp_path / "run" / "model.safetensors", final.layout)
    assert saved.values.numpy().tobytes() == final.values.numpy().tobytes()
    assert replay(record, algorithm).difference is None


@pytest.mark.parametrize(
    ("helpers", "colluding", "box"),
    [(3, 1, 160), *thorough((2, 1, 80), (5, 2, 480), (3, 2, 80), (4, 1, 240), (5, 4, 80), (7, 3, 1600))],
)
def test_a_committee_of_any_size(
    helpers: int, colluding: int, box: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many helpers as may be away go once there are updates; a release has the answers of the others."""
    hurry(monkeypatch)
    names = tuple(f"helper-{number}" for number in range(helpers))
    away = names[: tolerated(helpers, colluding)]
    privacy = ob.Privacy(clip=0.5, least=3, secure=ob.Secure(helpers=names, colluding=colluding))
    algorithm, deltas, boxes = ob.fedbuff(size=3, steps=2), dict[int, torch.Tensor](), list[bytes]()
    submission = Masking.submission

    def noted(self: Masking, *given: Any) -> UpdateSubmission:
        update = submission(self, *given)
        boxes.extend(update.boxes)
        return update

    async def lose_helpers(_: MemoryNetwork, helping: dict[str, "asyncio.Task[str]"]) -> None:
        while len(deltas) < 6:
            await asyncio.sleep(0.01)
        for name in away:
            helping[name].cancel()

    monkeypatch.setattr(Masking, "submission", noted)
    with torch_left_alone(), injected_rounding(deltas):
        run = federation(tmp_path, algorithm, privacy, helpers=names, later=lose_helpers)
        assert asyncio.run(run) == "reached 24 client tasks"
    record = read_run(tmp_path / "run")
    releases = record.entries("released")
    assert len(releases) > 3
    assert all(not row["reason"] and len(row["helpers"]) >= helpers - len(away) for row in releases)
    assert not set(away) & set(releases[-1]["helpers"])
    assert {len(own) for own in boxes} == {box}
    assert len(boxes) == helpers * len(deltas)
    final = in_clear(record, algorithm, deltas)
    saved = read_model(tmp_path / "run" / "model.safetensors", final.layout)
    assert saved.values.numpy().tobytes() == final.values.numpy().tobytes()
    assert replay(record, algorithm).difference is None


def test_a_run_that_ends_while_its_releases_fail_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory is that of a run that has ended, without a version; `status` names the helper."""
    hurry(monkeypatch)
    answer = Helper.answer

    def refusing(self: Helper, request: UnmaskRequest) -> UnmaskShare | UnmaskRefused:
        return UnmaskRefused(request.release, "no") if self.name == "bert" else answer(self, request)

    monkeypatch.setattr(Helper, "answer", refusing)
    names = ("anna", "bert")
    privacy = ob.Privacy(clip=0.5, least=3, secure=ob.Secure(helpers=names))
    options = {"unmasking": UnmaskingTimes(give_up=0.1)}
    algorithm = ob.fedbuff(size=3, steps=2)
    run = federation(tmp_path, algorithm, privacy, helpers=names, tasks=18, options=options)
    with torch_left_alone(), pytest.raises(RunError) as error:
        asyncio.run(run)
    assert str(error.value).startswith("the run has ended: reached 18 client tasks; but ")
    assert "helper bert refuses it (no)" in str(error.value)
    record = read_run(tmp_path / "run")
    assert record.stop_reason == "reached 18 client tasks"
    assert record.summary is not None
    assert record.summary.versions == 0
    assert "helper bert refuses it (no)" in snapshot_of(record).alarms[-1]


def test_nothing_leaves_a_site_that_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masked vectors, boxes and public numbers; a training that fails is an update; a helper may be away."""
    hurry(monkeypatch)
    said: list[FromSite] = []

    def connect(network: MemoryNetwork, name: str) -> Any:
        return recording(network.connect(name), said)

    async def lose_a_helper(network: MemoryNetwork, helping: dict[str, "asyncio.Task[str]"]) -> None:
        while not any(isinstance(message, UpdateSubmission) for message in said):
            await asyncio.sleep(0.01)
        helping["bert"].cancel()

    with torch_left_alone():
        monkeypatch.setattr("offbeat.local.torch_learner.TorchLearner.train", failing(ob.TorchLearner.train))
        run = federation(
            tmp_path,
            ob.fedbuff(size=3, steps=2),
            privacy_of(),
            tasks=15,
            connect=connect,
            later=lose_a_helper,
        )  # fmt: skip
        assert asyncio.run(run) == "reached 15 client tasks"
    assert {type(message) for message in said} == {Register, UpdateSubmission, Leave}
    updates = [message for message in said if isinstance(message, UpdateSubmission)]
    for update in updates:
        assert isinstance(update.delta, torch.Tensor)
        assert update.delta.dtype == torch.int32
        assert [len(box) for box in update.boxes] == [240] * 4
        assert len(update.committee) == 32
        assert (update.metrics, update.lr, update.shared, len(update.integers)) == ({}, 0.0, None, 0)
    assert all(not message.labels for message in said if isinstance(message, Register))
    assert "Ann" not in repr(said)
    words = np.concatenate([update.delta.numpy().view(np.uint8) for update in updates])  # type: ignore[union-attr]
    counts = np.bincount(words, minlength=256)
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 400  # of 256 bins; an update in clear: 1e5
    released = read_run(tmp_path / "run").entries("released")
    assert all(not row["reason"] for row in released)
    assert released[-1]["helpers"] == ["anna", "cleo", "dora"]


def test_a_site_leaves_a_committee_that_it_does_not_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is masked: the policy of each site names another key for a helper."""
    hurry(monkeypatch)
    policy = SitePolicy(helpers=dict.fromkeys(HELPERS, "0" * 64))

    async def run() -> list[Any]:
        data, test = shares_of_digits(3, samples=180, test_samples=60)
        network = MemoryNetwork()
        server = asyncio.create_task(
            serve(
                ob.fedbuff(size=3, steps=2), LogisticSpec(), TRAINING, tmp_path / "run", network.listen,
                options=terms_of(clients=3), test=test, privacy=privacy_of(), linger=0.1,
            )
        )  # fmt: skip
        helpers = [
            asyncio.create_task(help_run(network.connect(name), name, tmp_path / name)) for name in HELPERS
        ]
        sites = [join(network.connect(f"site-{i}"), d, policy=policy) for i, d in enumerate(data)]
        found = await asyncio.wait_for(asyncio.gather(*sites, return_exceptions=True), 300)
        for task in (*helpers, server):
            task.cancel()
        await asyncio.gather(*helpers, server, return_exceptions=True)
        return found

    with torch_left_alone():
        for error in asyncio.run(run()):
            assert isinstance(error, UsageError)
            assert str(error) == "the key of helper anna is not the one in the policy file"
    with pytest.raises(UsageError, match=r"refuses a run that is not secure: it allows helpers anna"):
        policy.check_plan(ob.fedbuff().objective, ())


def test_a_pending_masked_update_is_sent_again_as_it_was(tmp_path: Path) -> None:
    """A site's process that comes back masks nothing a second time."""
    store, none = SiteStore(tmp_path / "site"), torch.zeros(0, dtype=torch.int64)
    store.begin("run")
    vector = torch.arange(-5, 5, dtype=torch.int32)
    update = UpdateSubmission(7, 5, vector, none, {}, 0.1, None, b"c" * 32, (b"1" * 112, b"\xff" * 112))
    store.save(PendingUpdate(update))
    store.close()
    again = SiteStore(tmp_path / "site").pending
    assert again is not None
    assert torch.equal(again.update.delta, vector)  # type: ignore[arg-type]
    assert (again.update.committee, again.update.boxes) == (update.committee, update.boxes)
    assert (again.update.lr, again.update.steps) == (0.1, 5)
