"""A recorded run's events give its commands again; a changed record is found out."""

import json
import math
import re
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

import offbeat as ob
from offbeat.core.learner import LocalResult, LocalTask
from offbeat.sim.replay import replay
from tests.options import EVERY_FEATURE
from tests.sampling import mostly_thorough, thorough
from tests.sim.sim_worlds import CALM, WORLDS, Wrapped, digits, make

LEARNER = ob.NoTraining(5, parameters=3, samples_per_client=40, batches=4)

SOME = pytest.mark.parametrize("name", mostly_thorough(ob.ALGORITHMS, EVERY_FEATURE))


def record(name: str, directory: Path, where: str = "hard") -> ob.RunRecord:
    ob.simulate(make(name), WORLDS[where], LEARNER, seed=6, until=ob.Until(tasks=80), out=directory)
    return ob.read_run(directory)


def tamper(directory: Path, statement: str, values: tuple[Any, ...] = ()) -> ob.RunRecord:
    database = sqlite3.connect(directory / "run.db")
    with database:
        database.execute("DELETE FROM checksums")  # which would tell
        assert database.execute(statement, values).rowcount > 0
    database.close()
    return ob.read_run(directory)


@pytest.mark.parametrize("where", ["hard", *thorough("calm")])
@pytest.mark.parametrize("name", ob.ALGORITHMS)
def test_identical(name: str, where: str, tmp_path: Path) -> None:
    run = record(name, tmp_path, where)
    rows = list(run.rows())
    result = replay(run, make(name))
    assert result.difference is None
    assert result.events == sum(r.kind == "event" for r in rows)
    assert result.commands == sum(r.kind == "command" for r in rows)
    assert result.events + result.commands == len(rows) > 150


@SOME
def test_changed_steps_are_found(name: str, tmp_path: Path) -> None:
    run = record(name, tmp_path)
    row = [r for r in run.rows("command") if r.name == "train"][30]
    assert row.steps is not None
    run = tamper(tmp_path, "UPDATE journal SET steps = steps + 1 WHERE seq = ?", (row.seq,))
    result = replay(run, make(name))
    assert result.difference is not None
    assert result.difference.startswith(f"row {row.seq}: the replay gives train(")
    assert re.findall(r"steps=(\d+)", result.difference) == [str(row.steps), str(row.steps + 1)]
    assert "\n" not in result.difference


@SOME
def test_a_deleted_command_is_found(name: str, tmp_path: Path) -> None:
    run = record(name, tmp_path)
    rows = list(run.rows())
    row = [r for r in rows if r.name == "aggregate"][3]
    run = tamper(tmp_path, "DELETE FROM journal WHERE seq = ?", (row.seq,))
    result = replay(run, make(name))
    assert result.difference is not None
    assert result.difference.startswith(f"row {row.seq}: the replay gives aggregate(")
    following = rows[row.seq + 1]
    assert f"the journal has {following.name}(" in result.difference


@SOME
def test_the_last_command_deleted(name: str, tmp_path: Path) -> None:
    run = record(name, tmp_path)
    last = list(run.rows("command"))[-1]
    run = tamper(tmp_path, "DELETE FROM journal WHERE seq >= ?", (last.seq,))
    assert "the journal ends" in str(replay(run, make(name)).difference)


@pytest.mark.parametrize("name", ob.ALGORITHMS)
def test_an_inserted_event_is_found(name: str, tmp_path: Path) -> None:
    """A client that joins between two events: the state machine notices, or sends it to work."""
    run = record(name, tmp_path)
    row = [r for r in run.rows("event") if r.name == "arrived"][30]
    tamper(tmp_path, "UPDATE journal SET seq = seq + 100001 WHERE seq >= ?", (row.seq,))
    tamper(tmp_path, "UPDATE journal SET seq = seq - 100000 WHERE seq > 100000")
    run = tamper(
        tmp_path,
        "INSERT INTO journal VALUES (?, ?, 'event', 'joined', 77, NULL, NULL, ?, NULL, NULL, ?)",
        (row.seq, row.t, row.version, json.dumps({"samples": 40, "steps_per_epoch": 4})),
    )
    result = replay(run, make(name))
    assert result.difference is not None
    assert int(result.difference.split(":")[0].removeprefix("row ")) >= row.seq


def test_an_inserted_event_that_cannot_be_is_found(tmp_path: Path) -> None:
    run = record("fedavg", tmp_path)
    last = list(run.rows())[-1]
    run = tamper(
        tmp_path,
        "INSERT INTO journal VALUES (?, ?, 'event', 'arrived', 0, 9999, 0, ?, 0, 4, '{\"seconds\": 1}')",
        (last.seq + 1, last.t, last.version),
    )
    difference = replay(run, make("fedavg")).difference
    assert difference is not None
    assert difference.startswith(f"row {last.seq + 1}:")
    assert "not training task 9999" in difference


def test_other_hyper_parameters_are_found(tmp_path: Path) -> None:
    run = record("fedcompass", tmp_path)
    assert replay(run, ob.fedcompass(3, 9)).difference is not None
    assert replay(run, ob.fedcompass(2, 9, latest=1.3)).difference is not None
    assert replay(run, ob.fedcompass(2, 9, staleness=ob.constant())).difference is None  # no tensors here


def test_a_diverged_run_is_identical_too(tmp_path: Path) -> None:
    """NaN is not equal to itself."""

    class Diverged(Wrapped):
        def before(self, task: LocalTask) -> None:
            pass

        def train(self, *arguments: Any) -> LocalResult:
            result = super().train(*arguments)
            return msgspec.structs.replace(result, metrics={**result.metrics, "loss": math.nan})

    ob.simulate(make("fedavg"), CALM, Diverged(digits()), until=ob.Until(tasks=20), out=tmp_path)
    run = ob.read_run(tmp_path)
    assert any(e.get("loss") != e.get("loss") for e in run.journal if e["kind"] == "event")
    assert replay(run, make("fedavg")).difference is None
