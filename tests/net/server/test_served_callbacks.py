"""Callbacks, early stopping and the best model of a served run, also of one that is killed."""

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import offbeat as ob
from offbeat.runs.files import read_file
from tests.forks import Fork
from tests.net.server import served_callbacks
from tests.net.server.served_callbacks import Told, reason_in, served

pytestmark = pytest.mark.usefixtures("here")


def check_best(directory: Path) -> None:
    """The best of what was recorded, the first where several are."""
    rows = [row for row in ob.read_run(directory).metrics if "clients.score" in row]
    best = max(rows, key=lambda row: row["clients.score"])
    tensors, metadata = read_file(directory / "best.safetensors")
    assert metadata == {
        "metric": "clients.score", "value": str(best["clients.score"]), "version": str(best["version"]),
        "t": str(best["t"]),
    }  # fmt: skip
    assert torch.equal(tensors["weight"], torch.full((2, 2), float(best["version"])))


def test_callbacks_are_told_in_order_of_what_is_durable(tmp_path: Path) -> None:
    threads: set[str] = set()
    told = Told(lambda run, metrics: threads.add(threading.current_thread().name))
    reason = asyncio.run(served(tmp_path, [told]))
    evaluations = ob.read_run(tmp_path).evaluations()
    start, *heard, end = told.heard
    assert start == ("start", ())
    assert heard == evaluations
    assert told.models == [metrics.version for metrics in evaluations]
    assert all({"loss", "clients.score"} <= metrics.found.keys() for metrics in evaluations)
    assert end == ("end", reason, ob.read_run(tmp_path).meta["summary"]["versions"])
    assert reason is not None
    assert reason.startswith("no better clients.score in 4 evaluations (best 0.")
    assert reason == reason_in(evaluations) or reason == reason_in(evaluations[:-1])
    assert len(threads) == 1
    assert threads.pop().startswith("offbeat-callbacks")
    check_best(tmp_path)


def test_a_callback_ends_the_run(tmp_path: Path) -> None:
    def stop(run: ob.LiveRun, metrics: Any) -> None:
        if metrics.version >= 2:
            run.stop("seen enough")

    told = Told(stop)
    assert asyncio.run(served(tmp_path, [told], ob.Until(), ob.Every(versions=1))) == "seen enough"
    assert told.heard[-1][:2] == ("end", "seen enough")
    assert (tmp_path / "model.safetensors").exists()
    assert not (tmp_path / "best.safetensors").exists()


def test_a_callback_that_fails_is_logged_once_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(run: ob.LiveRun, metrics: Any) -> None:
        raise ValueError("no such place")

    told = Told()
    with caplog.at_level(logging.ERROR):
        reason = asyncio.run(served(tmp_path, [Told(fail), told], ob.Until(versions=5)))
    assert reason == "reached 5 versions"
    assert told.heard[1:-1] == ob.read_run(tmp_path).evaluations()
    (record,) = [record for record in caplog.records if "has failed" in record.getMessage()]
    words = "the callback Told.on_evaluation has failed: ValueError: no such place"
    assert record.getMessage().startswith(words)
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1].__cause__ if record.exc_info[1] else None, ValueError)


def test_a_server_that_leaves_its_run_tells_so_and_goes_on_with_the_past(tmp_path: Path) -> None:
    services: list[Any] = []

    def leave(run: ob.LiveRun, metrics: Any) -> None:
        if metrics.version >= 2:
            services[0]._loop.call_soon_threadsafe(services[0].detach)

    first, second = Told(leave), Told()
    assert asyncio.run(served(tmp_path, [first], started=services.append)) is None
    assert first.heard[-1] == ("exception", "KeyboardInterrupt")
    reason = asyncio.run(served(tmp_path, [second]))
    _, past = second.heard[0]
    assert list(past) == first.heard[1:-1]
    assert [*past, *second.heard[1:-1]] == ob.read_run(tmp_path).evaluations()
    assert second.heard[-1][:2] == ("end", reason)
    check_best(tmp_path)
    again = Told()
    assert asyncio.run(served(tmp_path, [again])) == reason
    assert again.heard == []


@pytest.mark.parametrize("when", ["2", "end"])
def test_a_server_that_is_killed_stops_where_its_evaluations_say(when: str, tmp_path: Path) -> None:
    script = Fork(Path(served_callbacks.__file__), tmp_path, when)
    assert script.wait(300) == -9, script.communicate()
    script.communicate()
    record = ob.read_run(tmp_path)
    past, finished = record.evaluations(), record.status == "finished"  # its callbacks are in another thread
    versions = sum(row.name == "aggregate" for row in record.rows())  # evaluations may lag behind them
    assert past
    assert when == "end" or not finished
    told = Told()
    reason = asyncio.run(served(tmp_path, [told]))
    evaluations = ob.read_run(tmp_path).evaluations()
    assert evaluations[: len(past)] == past
    assert told.heard == [] if finished else list(told.heard[0][1]) == past
    ends = next(n for n in range(1, len(evaluations) + 1) if reason_in(evaluations[:n]))
    assert reason == reason_in(evaluations[:ends])
    assert len(evaluations) - ends <= 1  # the last version
    if when == "end":
        assert len(past) - ends in (0, 1)  # the last version may have been measured when it died
        assert ob.read_run(tmp_path).meta["summary"]["versions"] <= versions + 1  # it ends at once
    check_best(tmp_path)


def test_without_callbacks_there_is_no_thread_of_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offbeat.net.server.service.CallbackThread", pytest.fail)
    assert asyncio.run(served(tmp_path, [], ob.Until(versions=2))) == "reached 2 versions"


def test_what_is_not_evaluated_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for every, words in (
        (ob.Every(versions=1, keep_best="auc"), r"^evaluate.keep_best = 'auc': there is no metric 'auc'"),
        (ob.Every(versions=1, keep_best="clients.score"), r"needs evaluations at clients"),
        (ob.Every(keep_best="loss"), r"^evaluate.keep_best = 'loss' needs evaluations: give test data"),
    ):
        with pytest.raises(ob.UsageError, match=words):
            asyncio.run(served(tmp_path / "run", [], ob.Until(versions=2), every))
    assert not (tmp_path / "run").exists()
