"""A server that dies at any moment: books and model come back from the state directory, bit for bit."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import offbeat as ob
from offbeat.core.commands import Aggregate
from offbeat.core.errors import RunError
from offbeat.core.global_model import GlobalModel
from offbeat.core.journal import Row
from offbeat.core.learner import DAMAGED, LocalResult
from offbeat.core.root import train_root
from offbeat.core.schedule import Task
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.durable_store import DurableStore
from offbeat.net.server.effects import Effects
from offbeat.net.server.stored_updates import UPDATES, damaged_updates
from offbeat.sim.replay import replay
from tests.conformance.settings import OPTIONS, SEED, SPEEDS
from tests.ended import ended_files
from tests.net.replay_player import Play, coordinator_of, rows_of
from tests.sampling import examples

ROBUST = {
    "centered clip": ob.robust.CenteredClip(tau=0.1),
    "aflguard": ob.robust.AFLGuard(steps=2, every=3),
}
NAMES = ("fedbuff", "fedasmu", "scaffold", "port", "fedfa", "feddyn", "fedadam", "fedat", "first_of",
         "fadas", "ringmaster", "rennala", "ringleader", "ca2fl")  # fmt: skip
TASKS = 30
META = {"label": "x", "algorithm": {"name": "x"}, "seed": SEED, "clients": 5}
pytestmark = pytest.mark.usefixtures("one_thread")


def make(name: str) -> ob.Algorithm:
    if name in ROBUST:
        return ob.compose(ob.fedbuff(2, steps=4), aggregator=ROBUST[name], buffers="recompute")
    return ob.ALGORITHMS[name](**OPTIONS.get(name, {}))


def module() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))


class Runs:
    """Finished runs by name, with a short repr."""

    def __init__(self, made: dict[str, ob.Run]) -> None:
        self._made = made

    def __getitem__(self, name: str) -> ob.Run:
        return self._made[name]


@pytest.fixture(scope="module")
def learner() -> ob.TorchLearner:
    source = ob.load("digits", samples=100, test_samples=20)
    root = source.train.subset(np.arange(40))
    data = ob.federate(source, None, np.array_split(np.arange(100), 5), root=root)
    return ob.TorchLearner(module, data, ob.Training(lr=0.1, batch_size=20))


@pytest.fixture(scope="module")
def runs(learner: ob.TorchLearner) -> Runs:
    threads = torch.get_num_threads()
    world = ob.World(
        seconds_per_step=SPEEDS, jitter=0.1, availability=ob.Availability(dropout=0.1, period=60, present=0.8)
    )
    made = {
        n: ob.simulate(make(n), world, learner, seed=SEED, until=ob.Until(tasks=TASKS), evaluate=None)
        for n in (*NAMES, *ROBUST)
    }
    torch.set_num_threads(threads)
    return Runs(made)


def new(name: str, learner: ob.TorchLearner, rows: list[Row], other: bool = False) -> Coordinator:
    there, algorithm = next(row.seq for row in rows if row.name == "begin"), make(name)
    root = train_root(name, algorithm.aggregator.root_training, learner, SEED)
    return coordinator_of(
        algorithm, learner.initial(SEED + other), max(1, there), SEED, root, until=ob.Until(tasks=TASKS)
    )


def state(c: Coordinator) -> Any:
    """Everything a coordinator knows, but for who is connected and when they were seen."""
    server, engine, registry = c.server, c.driver.engine, c.registry
    sites = [
        (
            s.name, s.client, s.samples, s.steps_per_epoch, s.labels, s.present, s.speed, s.staleness,
            s.updates, s.tasks,
        )
        for s in registry.sites.values()
    ]  # fmt: skip
    return (
        sites, registry.assigned, registry.gone,
        engine.rows, engine.staleness_sum, engine.bits_up,
        server.version, server.tasks, server.held, server.lost, server.timers, server.counts,
        server.dispatched, server.schedule.save(server.state), server.fleet.idle(), server.now, c.stopped,
    )  # fmt: skip


def tensors(c: Coordinator) -> dict[str, torch.Tensor]:
    t = c.tensors
    named = {"values": t.model.values, "integers": t.model.integers, "shared": t.model.shared, **t.memory}
    for i, memory in enumerate(t.step_memories):
        named |= {f"{i}.{k}": v for k, v in memory.items()}
    for kind, models in (("base", t.bases), ("fresh", t.fresh)):
        for task, (version, model) in models.items():
            named[f"{kind}.{task}.{version}"] = model.values
            named[f"{kind}.{task}.shared"] = model.shared
    for task, update in t.updates.items():
        named |= {f"delta.{task}": update.delta, f"from.{task}": update.base.values}
        named[f"lr.{task}"] = torch.tensor(update.lr, dtype=torch.float64)
        if update.fresh is not None:
            named[f"merged.{task}"] = update.fresh.values
        if update.shared is not None:
            named[f"reported.{task}"] = update.shared
    return named


def same(a: Coordinator, b: Coordinator) -> None:
    assert state(a) == state(b)
    mine, yours = tensors(a), tensors(b)
    assert mine.keys() == yours.keys()
    for key, tensor in mine.items():
        assert torch.equal(tensor, yours[key]), key


@examples(40)
@given(
    name=st.sampled_from(NAMES),
    room=st.sampled_from((0, 9000, 2**25)),
    deaths=st.dictionaries(st.integers(0, 90), st.sampled_from(("before", "after")), max_size=4),
    checkpoints=st.sets(st.integers(0, 90), max_size=10),
)
def test_killed_at_any_moment_and_brought_back(
    name: str,
    room: int,
    deaths: dict[int, str],
    checkpoints: set[int],
    learner: ob.TorchLearner,
    runs: Runs,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """With checkpoints at any time, deaths before and after a commit, updates in the database or in files."""
    directory = tmp_path_factory.mktemp("state") / "d"
    with room_for(room):
        kill_and_bring_back(name, deaths, checkpoints, learner, runs[name], directory)
    assert {p.name for p in directory.glob("*.safetensors")} == ended_files(directory)
    assert updates_in_database(directory) == 0
    assert not (directory / UPDATES).exists()


@contextmanager
def room_for(nbytes: int) -> Iterator[None]:
    """So many bytes of small updates go into the database."""
    with patch("offbeat.net.server.durable_store.MOST_SMALL", nbytes):
        yield


def updates_in_database(directory: Path) -> int:
    database = sqlite3.connect(directory / "run.db")
    try:
        return int(database.execute("SELECT count(*) FROM updates").fetchone()[0])
    finally:
        database.close()


def kill_and_bring_back(
    name: str,
    deaths: dict[int, str],
    checkpoints: set[int],
    learner: ob.TorchLearner,
    run: ob.Run,
    directory: Path,
) -> None:
    rows = rows_of(run)
    coordinator = new(name, learner, rows)
    play = Play(make(name), learner, coordinator)
    state = DurableStore(directory, coordinator, META)
    try:
        for i, row in enumerate(row for row in rows if row.kind == "event"):
            outcome = play.event(row)
            if deaths.get(i) != "before":
                state.commit(outcome)
                play.deliver(outcome)
            if i in checkpoints and i not in deaths:
                state.checkpoint(coordinator)
            if i in deaths:
                state.close()
                back = new(name, learner, rows, other=True)  # whose initial model is another one
                state = DurableStore(directory, back)
                if deaths[i] == "after":
                    same(coordinator, back)
                play.coordinator = coordinator = back
            if deaths.get(i) == "before":  # nobody has heard of it: it comes again
                outcome = play.event(row)
                state.commit(outcome)
                play.deliver(outcome)
        assert play.rows == rows
        model, layout = coordinator.tensors.model, run.model.layout
        d = layout.parameters if name in ROBUST else layout.values  # a run's last model has estimated buffers
        assert torch.equal(model.values[:d], run.model.values[:d])
        state.finish(coordinator, {})
    finally:
        state.close()


def test_several_events_share_a_transaction(learner: ob.TorchLearner, runs: Runs, tmp_path: Path) -> None:
    """Four sites answer before anything is written: one commit, and it comes back whole."""
    rows = rows_of(runs["feddyn"])
    coordinator = new("feddyn", learner, rows)
    play = Play(make("feddyn"), learner, coordinator)
    state = DurableStore(tmp_path / "d", coordinator, META)
    events = [row for row in rows if row.kind == "event"]
    first = next(i for i, row in enumerate(events) if row.name == "arrived")
    for row in events[: first - 1]:
        outcome = play.event(row)
        state.commit(outcome)
        play.deliver(outcome)
    take, coordinator.take = coordinator.take, Effects  # type: ignore[method-assign]
    together = [row for row in events[first:] if row.name == "arrived"][:2]
    for row in together:
        play.event(row)
    outcome = take()
    assert len(outcome.updates) == 2
    state.commit(outcome)
    state.close()
    back = new("feddyn", learner, rows, other=True)
    DurableStore(tmp_path / "d", back).close()
    same(coordinator, back)


@pytest.mark.parametrize("name", ["fedbuff", "feddyn"])
def test_an_update_right_after_a_checkpoint_is_taken_in_again(
    name: str, learner: ob.TorchLearner, runs: Runs, tmp_path: Path
) -> None:
    """The journal's first event that is not in the checkpoint's tensors is the one that follows it."""
    rows = rows_of(runs[name])
    coordinator = new(name, learner, rows)
    play = Play(make(name), learner, coordinator)
    state = DurableStore(tmp_path / "d", coordinator, META)
    for row in (row for row in rows if row.kind == "event"):
        if row.name == "arrived":
            state.checkpoint(coordinator)
        outcome = play.event(row)
        state.commit(outcome)
        play.deliver(outcome)
        if row.name == "arrived":
            break
    state.close()
    back = new(name, learner, rows, other=True)
    DurableStore(tmp_path / "d", back).close()
    same(coordinator, back)


def first_update(name: str, learner: ob.TorchLearner, runs: Runs, directory: Path) -> list[Row]:
    """A state directory whose last event is the first update that arrived; returns all of the run's rows."""
    rows = rows_of(runs[name])
    coordinator = new(name, learner, rows)
    play = Play(make(name), learner, coordinator)
    state = DurableStore(directory, coordinator, META)
    for row in (row for row in rows if row.kind == "event"):
        outcome = play.event(row)
        state.commit(outcome)
        play.deliver(outcome)
        if outcome.updates:
            break
    state.close()
    return rows


def test_a_missing_update_is_an_error_that_names_it(
    learner: ob.TorchLearner, runs: Runs, tmp_path: Path
) -> None:
    with room_for(0):
        rows = first_update("fedbuff", learner, runs, tmp_path / "d")
    file = tmp_path / "d" / UPDATES
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(RunError, match=rf"{file.name} does not have what run.db says"):
        DurableStore(tmp_path / "d", new("fedbuff", learner, rows))
    file.unlink()
    with pytest.raises(RunError, match=rf"{file.name} does not have what run.db says"):
        DurableStore(tmp_path / "d", new("fedbuff", learner, rows))


@pytest.mark.parametrize("room", [0, 2**25])
def test_a_damaged_update_is_not_aggregated(
    room: int, learner: ob.TorchLearner, runs: Runs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the file and in the database: the run goes on without it, and knows so after a checkpoint too."""
    with room_for(room):
        rows = first_update("fedbuff", learner, runs, tmp_path / "d")
    arrived = next(row for row in rows if row.name == "arrived")
    with closing(sqlite3.connect(tmp_path / "d" / "run.db")) as database, database:
        if room:
            (stored,) = database.execute("SELECT tensors FROM updates").fetchone()
            database.execute("UPDATE updates SET tensors = ?", (flipped(stored),))
    if not room:
        (tmp_path / "d" / UPDATES).write_bytes(flipped((tmp_path / "d" / UPDATES).read_bytes()))
    lines = list(damaged_updates(ob.read_run(tmp_path / "d")))
    assert [f"has a damaged update of task {arrived.task} (" in line for line in lines] == [True]
    for again in range(2):
        caplog.clear()
        back = new("fedbuff", learner, rows)
        store = DurableStore(tmp_path / "d", back)
        assert (set(back.server.held), set(back.tensors.updates)) == ({arrived.task}, set())
        told = [f"the stored update of task {arrived.task} is damaged" in text for text in caplog.messages]
        assert sum(told) == 1 - again
        assert back.rejected["damaged"] == (1 - again)
        store.close()
    assert replay(ob.read_run(tmp_path / "d"), make("fedbuff")).difference is None


def test_an_aggregation_does_without_damaged_updates(learner: ob.TorchLearner) -> None:
    """With one of two it is as if that had been the only one; with none the model stays, as a new version."""
    initial = learner.initial(SEED)

    def aggregated(tasks: tuple[int, ...], damaged: tuple[int, ...] = ()) -> torch.Tensor:
        tensors = GlobalModel(make("fedbuff"), initial)
        for number in tasks:
            tensors.dispatch(number)
            delta = torch.full_like(initial.values, float(number))
            result = DAMAGED if number in damaged else LocalResult(delta, initial.integers, lr=0.1)
            tensors.arrive(
                Task(number, number, 0, 4, 0.0, staleness=0, samples=9, share=0.2, population=5), result
            )
        tensors.aggregate(Aggregate(tasks, version=1, clients=tasks))
        assert (tensors.version, tensors.updates) == (1, {})
        return tensors.model.values

    assert torch.equal(aggregated((1, 2), damaged=(1,)), aggregated((2,)))
    assert not torch.equal(aggregated((1, 2)), aggregated((2,)))
    assert torch.equal(aggregated((1, 2), damaged=(1, 2)), initial.values)


def flipped(data: bytes) -> bytes:
    """The bytes with a bit of the last tensor flipped."""
    return data[:-20] + bytes([data[-20] ^ 16]) + data[-19:]


def test_what_is_written_over_after_a_checkpoint_is_not_needed(
    learner: ob.TorchLearner, runs: Runs, tmp_path: Path
) -> None:
    """A server that dies while it writes over the updates of before the checkpoint."""
    with room_for(0):
        rows = first_update("fedbuff", learner, runs, tmp_path / "d")
    DurableStore(tmp_path / "d", new("fedbuff", learner, rows)).close()  # which is a checkpoint
    file = tmp_path / "d" / UPDATES
    file.write_bytes(b"x" * (file.stat().st_size // 2))
    back = new("fedbuff", learner, rows)
    DurableStore(tmp_path / "d", back).close()
    assert back.server.counts["arrived"] == 1


def test_the_file_of_updates_does_not_grow_from_checkpoint_to_checkpoint(
    learner: ob.TorchLearner, runs: Runs, tmp_path: Path
) -> None:
    rows = rows_of(runs["fedbuff"])
    coordinator = new("fedbuff", learner, rows)
    play = Play(make("fedbuff"), learner, coordinator)
    state = DurableStore(tmp_path / "d", coordinator, META)
    sizes = []
    with room_for(0):
        for row in (row for row in rows if row.kind == "event"):
            outcome = play.event(row)
            state.commit(outcome)
            play.deliver(outcome)
            if outcome.updates:
                sizes.append((tmp_path / "d" / UPDATES).stat().st_size)
                state.checkpoint(coordinator)
    state.close()
    assert len(sizes) > 5
    assert set(sizes) == {sizes[0]}


def test_a_small_update_is_in_the_database_and_a_large_one_in_the_file(
    learner: ob.TorchLearner, runs: Runs, tmp_path: Path
) -> None:
    first_update("fedbuff", learner, runs, tmp_path / "small")
    assert updates_in_database(tmp_path / "small") == 1
    assert (tmp_path / "small" / UPDATES).stat().st_size == 0
    with patch("offbeat.net.server.durable_store.SMALL", 2000):
        first_update("fedbuff", learner, runs, tmp_path / "large")
    assert updates_in_database(tmp_path / "large") == 1
    assert (tmp_path / "large" / UPDATES).stat().st_size > 2000


FULL = {
    "file": "offbeat.net.server.state_files.UpdateLog.append",
    "file's end": "offbeat.net.server.state_files.UpdateLog.sync",
    "database": "offbeat.runs.store._put_meta",
}


@pytest.mark.parametrize("where", FULL)
def test_a_full_disk_stops_before_anything_is_said(
    where: str, learner: ob.TorchLearner, runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(runs["fedbuff"])
    coordinator = new("fedbuff", learner, rows)
    play = Play(make("fedbuff"), learner, coordinator)
    state = DurableStore(tmp_path / "d", coordinator, META)

    def full(*_: Any) -> None:
        raise sqlite3.OperationalError("full") if where == "database" else OSError(28, "No space left")

    for row in (row for row in rows if row.kind == "event"):
        if row.name == "arrived":
            with monkeypatch.context() as broken, room_for(2**25 if where == "database" else 0):
                broken.setattr(FULL[where], full)
                with pytest.raises(
                    RunError, match=r"cannot write .*No acknowledged update is lost"
                ) as failed:
                    state.commit(play.event(row))
                assert "Errno" not in str(failed.value)
            break
        outcome = play.event(row)
        state.commit(outcome)
        play.deliver(outcome)
    state.abandon("failed")
    assert updates_in_database(tmp_path / "d") == 0
    back = new("fedbuff", learner, rows)
    DurableStore(tmp_path / "d", back).close()
    assert back.server.counts["arrived"] == 0
    assert back.driver.engine.rows == len(play.rows)


def test_a_file_that_cannot_be_made_is_told_in_words(
    learner: ob.TorchLearner, runs: Runs, tmp_path: Path
) -> None:
    (tmp_path / "d" / UPDATES).mkdir(parents=True)
    with pytest.raises(RunError, match=rf"cannot write to {tmp_path / 'd'}: updates.log is a link, a folder"):
        DurableStore(tmp_path / "d", new("fedbuff", learner, rows_of(runs["fedbuff"])), META)


@pytest.mark.parametrize("name", ROBUST)
def test_what_a_robust_aggregator_remembers_comes_back(
    name: str, learner: ob.TorchLearner, runs: Runs, tmp_path: Path
) -> None:
    kill_and_bring_back(name, {14: "after", 40: "before"}, {20}, learner, runs[name], tmp_path / "d")
