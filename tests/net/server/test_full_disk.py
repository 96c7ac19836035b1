"""A state directory on a disk that is really full: no file may have more than so many bytes."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.core.errors import RunError
from offbeat.core.journal import Row
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.durable_store import DurableStore
from tests.digits import equal_digits
from tests.ended import ended_files
from tests.net.replay_player import Play, coordinator_of, rows_of

META = {"label": "x", "algorithm": {"name": "x"}, "seed": 1, "clients": 4}
TASKS = 12
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def learner() -> ob.TorchLearner:
    data = equal_digits(4, samples=80, test_samples=10)
    module = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10))  # noqa: E731
    return ob.TorchLearner(module, data, ob.Training(lr=0.1, batch_size=20))


@pytest.fixture(scope="module")
def rows(learner: ob.TorchLearner) -> list[Row]:
    threads = torch.get_num_threads()
    run = ob.simulate(
        algorithm(), ob.World(seconds_per_step=[1.0, 1.5, 2.0, 3.0]), learner,
        seed=1, until=ob.Until(tasks=TASKS), evaluate=None,
    )  # fmt: skip
    torch.set_num_threads(threads)
    return rows_of(run)


def algorithm() -> ob.Algorithm:
    return ob.fedbuff(steps=2, size=2)


def new(learner: ob.TorchLearner) -> Coordinator:
    return coordinator_of(algorithm(), learner.initial(1), 4, 1, until=ob.Until(tasks=TASKS))


@contextmanager
def room(size: int | None) -> Iterator[None]:
    """No file of this process may grow beyond so many bytes meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft if size is None else size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 1000, 3000, 5000, 20_000, 33_000, 50_000, 70_000])
def test_it_says_so_and_goes_on_later_with_all_that_was_said(
    size: int, learner: ob.TorchLearner, rows: list[Row], tmp_path: Path
) -> None:
    """What is committed before is there; what could not be is as if it had not happened."""
    events = [row for row in rows if row.kind == "event"]
    directory = tmp_path / "run"
    coordinator = new(learner)
    play = Play(algorithm(), learner, coordinator)
    state = DurableStore(directory, coordinator, META)
    failed = 0
    for i, event in enumerate(events):
        full = i % 5 == 4
        outcome = play.event(event)
        try:
            with room(size if full else None):
                state.commit(outcome)
                if i % 2:
                    state.checkpoint(coordinator)
        except RunError:
            failed += 1
            with room(size):
                state.abandon("failed")
            with room(size), suppress(RunError):  # still
                DurableStore(directory, new(learner)).close()
            play.coordinator = coordinator = new(learner)
            state = DurableStore(directory, coordinator)
            if coordinator.driver.engine.rows == len(
                play.rows
            ):  # the transaction was undone: the event comes again
                outcome = play.event(event)
                state.commit(outcome)
        play.deliver(outcome)
        assert coordinator.driver.engine.rows == len(play.rows)
    state.finish(coordinator, {})
    assert play.rows == rows
    assert failed or size >= 50_000
    assert {p.name for p in directory.glob("*.safetensors")} == ended_files(directory)


def test_a_file_that_cannot_be_deleted_is_when_the_next_checkpoint_is_written(
    learner: ob.TorchLearner, rows: list[Row], tmp_path: Path
) -> None:
    coordinator = new(learner)
    play = Play(algorithm(), learner, coordinator)
    state = DurableStore(tmp_path / "run", coordinator, META)
    events = [row for row in rows if row.kind == "event"]
    for i, event in enumerate(events[:6]):
        outcome = play.event(event)
        state.commit(outcome)
        play.deliver(outcome)
        with patch.object(Path, "unlink", side_effect=OSError("no")) if i < 3 else nullcontext():
            state.checkpoint(coordinator)
        assert len(list((tmp_path / "run").glob("state-*"))) == (i + 2 if i < 3 else 1)
    state.close()
