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
from offbeat.algorithms.private import with_privacy
from offbeat.core.algorithm import Algorithm
from offbeat.core.engine import Engine
from offbeat.core.events import Arrived
from offbeat.core.global_model import GlobalModel
from offbeat.core.journal import event_of
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model
from offbeat.core.releases import ReleasePlan, Releases, ReleaseSeeds
from offbeat.core.staleness import ConstantWeight
from offbeat.models.registry import LogisticSpec
from offbeat.net import ServerOptions, join, serve
from offbeat.net.client.helping import help_run
from offbeat.net.client.masking import Masking
from offbeat.net.monitor.from_journal import snapshot_of
from offbeat.net.server.learner import server_learner
from offbeat.runs.files import read_model
from offbeat.runs.record import RunRecord, read_run
from offbeat.sim.replay import replay
from offbeat.testing.journal import check_journal
from offbeat.testing.network import MemoryNetwork
from tests.net.support import hurry, shares_of_digits, torch_left_alone

HELPERS = ("anna", "bert", "cleo")
TRAINING = ob.Training(lr=0.1, batch_size=20)


def privacy_of(**options: Any) -> ob.Privacy:
    return ob.Privacy(clip=0.5, least=3, secure=ob.Secure(helpers=HELPERS), **options)


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
    wanted = ServerOptions(clients=sites, until=ob.Until(tasks=tasks), **options)
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


def in_clear(record: RunRecord, algorithm: Algorithm, deltas: dict[int, torch.Tensor]) -> Model:
    """The final model that the journal's events give where the server sums the updates in clear."""
    plan = ReleasePlan.read(record.meta["privacy"])
    _, test = shares_of_digits(4, samples=240, test_samples=60)
    learner = server_learner(LogisticSpec(), TRAINING, test, None, None)
    seeds = ReleaseSeeds(lambda release: b"", lambda task, release: seed_of(task.id))
    tensors = GlobalModel(algorithm, learner.initial(3), releases=Releases(plan, seeds))
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


@pytest.mark.parametrize("name", ["fedbuff", "weighted", "fedcompass"])
def test_the_sums_are_those_of_the_updates_in_clear(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, for the same rounding; the journal replays; no update is in two manifests."""
    hurry(monkeypatch)
    algorithms = {
        "fedbuff": ob.fedbuff(size=3, steps=2, staleness=ConstantWeight()),
        "weighted": ob.fedbuff(size=3, steps=2),
        "fedcompass": ob.fedcompass(q_min=1, q_max=4),
    }
    algorithm, deltas = algorithms[name], dict[int, torch.Tensor]()
    with torch_left_alone(), injected_rounding(deltas):
        assert asyncio.run(federation(tmp_path, algorithm, privacy_of())) == "reached 24 client tasks"
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
    final = in_clear(record, algorithm, deltas)
    saved = read_model(tmp_path / "run" / "model.safetensors", final.layout)
    assert saved.values.numpy().tobytes() == final.values.numpy().tobytes()
    assert np.abs(saved.values.numpy()).max() > 0
    assert replay(record, algorithm).difference is None
    if name != "fedcompass":  # whose timers fire late on a real clock
        assert check_journal(rows).summed == set(summed)
    told = snapshot_of(record).helpers
    assert told is not None
    assert told.text == "helpers: anna, bert, cleo"
