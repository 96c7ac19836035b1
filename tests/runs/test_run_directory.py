"""A run's directory: its database as documented, read while it is written, and refused when it is not one."""

import json
import os
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import offbeat as ob
from offbeat.core.global_model import GlobalModel
from offbeat.core.journal import Row
from offbeat.runs import checksums
from offbeat.runs.client_states import ClientStates
from offbeat.runs.schema import FORMAT, SCHEMA, ClientMetric, Metric
from offbeat.runs.store import RunStore
from tests.forks import Fork

META = {"label": "mine", "algorithm": {"name": "fedavg"}, "seed": 3, "clients": 2, "recipe": None}
CLIENTS = [(0, 10, "[4, 6]"), (1, 20, None)]
UNTIL = ob.Until(tasks=12)
WORLD = ob.World(seconds_per_step=[1.0, 2.0])


def start(directory: Path) -> RunStore:
    return RunStore.create(directory, META, CLIENTS)


def tensors(version: int = 0) -> GlobalModel:
    return GlobalModel(ob.fedavg(), ob.NoTraining(2, parameters=3).initial(0), version)


def finished(directory: Path, seed: int = 0) -> ob.Run:
    learner = ob.NoTraining(2, parameters=3)
    return ob.simulate(ob.fedavg(steps=2), WORLD, learner, seed=seed, until=UNTIL, out=directory)


def columns(database: sqlite3.Connection) -> dict[str, list[str]]:
    tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {t: [c[1] for c in database.execute(f"PRAGMA table_info({t})")] for t in tables}


def test_the_tables_are_the_documented_ones(tmp_path: Path) -> None:
    finished(tmp_path)
    documented = sqlite3.connect(":memory:")
    documented.executescript(SCHEMA + checksums.SCHEMA)
    database = sqlite3.connect(tmp_path / "run.db")
    assert columns(database) == columns(documented)
    assert columns(database)["journal"] == list(Row.__struct_fields__)
    assert columns(database)["metrics"] == list(Metric._fields)
    assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)  # one file, once it is whole
    documented.close()
    database.close()


def test_a_run_in_progress_has_a_write_ahead_log(tmp_path: Path) -> None:
    store = start(tmp_path)
    database = sqlite3.connect(tmp_path / "run.db")
    assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    database.close()
    store.close()


def test_every_value_of_meta_and_data_is_json(tmp_path: Path) -> None:
    run = finished(tmp_path)
    database = sqlite3.connect(tmp_path / "run.db")
    meta = {k: json.loads(v) for k, v in database.execute("SELECT key, value FROM meta")}
    for table in ("journal", "metrics"):
        for (data,) in database.execute(f"SELECT data FROM {table} WHERE data IS NOT NULL"):
            assert isinstance(json.loads(data), dict)
    found = database.execute("SELECT count(*), max(seq) + 1 FROM journal").fetchone()
    session = database.execute("SELECT started, wall_seconds, events FROM sessions").fetchall()
    database.close()
    assert found == (len(run.journal) - 1, len(run.journal))  # one row says that both clients are there
    assert meta["status"] == "finished"
    assert meta["format"] == FORMAT == 1
    assert meta["algorithm"] == {"name": "fedavg", "steps": 2, "epochs": None, "clients_per_round": None}
    assert meta["offbeat"] == ob.__version__
    assert meta["summary"]["tasks"] == 12
    assert len(session) == 1
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", session[0][0])
    assert session[0][2] == len(run.journal)


def test_a_record_says_what_the_run_says(tmp_path: Path) -> None:
    run = finished(tmp_path, seed=5)
    record = ob.read_run(tmp_path)
    assert record.journal == run.journal
    assert record.metrics == run.metrics
    assert [e["kind"] for e in map(Row.flat, record.rows("event"))] == ["event"] * sum(
        e["kind"] == "event" for e in run.journal
    )
    assert (record.label, record.algorithm, record.seed, record.clients) == ("fedavg", "fedavg", 5, 2)
    assert (record.status, record.stop_reason) == ("finished", "reached 12 client tasks")
    assert record.duration == run.summary.seconds
    assert record.client_samples() == {0: 1, 1: 1}
    assert (ended := record.checkpoint()) is not None
    assert ended.journal == record.length
    assert record.recipe is None
    assert torch.equal(load_file(tmp_path / "model.safetensors")["w"], torch.zeros(3))


def test_memory_and_directory_give_the_same(tmp_path: Path) -> None:
    learner = ob.NoTraining(2, parameters=3)
    kept = ob.simulate(ob.fedavg(steps=2), WORLD, learner, until=UNTIL)
    written = finished(tmp_path)
    assert kept.journal == written.journal
    assert kept.metrics == written.metrics
    assert kept.summary == written.summary


def test_only_what_is_checkpointed_is_there(tmp_path: Path) -> None:
    store = start(tmp_path)
    store.row(Row(0, 1.0, "event", "begin", data={"a": [1, 2]}))
    store.metric(Metric(0, 1.0, 0, 0, 0, 0, 0.5, None, {"f1": 0.25}))
    assert list(ob.read_run(tmp_path).rows()) == []
    store.checkpoint(tensors(), ClientStates(), 1.0)
    store.row(Row(1, 2.0, "event", "begin"))
    store.close()
    record = ob.read_run(tmp_path)
    assert list(record.rows()) == [Row(0, 1.0, "event", "begin", data={"a": [1, 2]})]
    assert record.evaluations() == [Metric(0, 1.0, 0, 0, 0, 0, 0.5, None, {"f1": 0.25})]
    assert record.metrics[0]["f1"] == 0.25
    assert (record.status, record.duration) == ("running", 1.0)
    saved = record.checkpoint()
    assert saved is not None
    assert (saved.journal, saved.metrics, saved.version, saved.state) == (1, 1, 0, "state-1.safetensors")
    again = RunStore.reopen(tmp_path)
    again.row(Row(1, 3.0, "event", "begin"))
    again.checkpoint(tensors(), ClientStates(), 3.0)
    again.close()
    assert [r.t for r in record.rows()] == [1.0, 3.0]


READER = """
import sys, pathlib, offbeat.runs.record as r
for line in sys.stdin:
    record = r.read_run(pathlib.Path(sys.argv[1]))
    saved = record.checkpoint()
    print(len(list(record.rows())), saved.journal if saved else 0, record.duration, flush=True)
"""


def test_another_process_reads_while_the_run_is_written(tmp_path: Path) -> None:
    store = start(tmp_path)
    script = tmp_path / "reader.py"
    script.write_text(READER)
    (asked, asks), (told, tells) = os.pipe(), os.pipe()
    with os.fdopen(asked) as into, os.fdopen(tells, "w") as out:
        reader = Fork(script, tmp_path, into=into, out=out)
    with os.fdopen(asks, "w") as ask, os.fdopen(told) as tell:
        for i in range(5):
            store.row(Row(2 * i, i, "event", "begin"))
            store.row(Row(2 * i + 1, i, "event", "begin"))
            ask.write("look\n")
            ask.flush()
            assert tell.readline().split() == [str(2 * i), str(2 * i), f"{float(max(i - 1, 0))}"]
            store.checkpoint(tensors(), ClientStates(), float(i))
    assert (reader.wait(), *reader.communicate()) == (0, "", "")
    store.close()


def test_a_reader_in_the_middle_sees_one_moment(tmp_path: Path) -> None:
    """A journal being read does not stop the writer, nor does it change under the reader's feet."""
    store = start(tmp_path)
    for i in range(10):
        store.row(Row(i, i, "event", "begin"))
    store.checkpoint(tensors(), ClientStates(), 1.0)
    rows = ob.read_run(tmp_path).rows()
    first = next(rows)
    store.row(Row(10, 10, "event", "begin"))
    store.checkpoint(tensors(), ClientStates(), 2.0)
    assert [first, *rows][-1].seq == 9
    assert len(list(ob.read_run(tmp_path).rows())) == 11
    store.close()


def test_a_directory_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    finished(tmp_path)
    before = (tmp_path / "run.db").read_bytes()
    with pytest.raises(ob.UsageError, match="holds a run already"):
        finished(tmp_path)
    assert (tmp_path / "run.db").read_bytes() == before


def test_a_running_run_is_locked(tmp_path: Path) -> None:
    store = start(tmp_path)
    for again in (start, RunStore.reopen):
        with pytest.raises(ob.UsageError, match="another process is writing this run"):
            again(tmp_path)
    store.close()
    RunStore.reopen(tmp_path).close()


@pytest.mark.parametrize("where", ["file", "file/below", "/proc/x", "/dev/null"])
def test_unwritable_places_are_refused(where: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ob.UsageError, match="cannot write a run to") as caught:
        finished(tmp_path / where)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("strange", ["what?", "a#b", "100%41", "späß 数", "a b&mode=rw"])
def test_directories_of_any_name(strange: str, tmp_path: Path) -> None:
    run = finished(tmp_path / strange)
    assert ob.read_run(tmp_path / strange).journal == run.journal
    assert [p.name for p in tmp_path.iterdir()] == [strange]


def corrupt(directory: Path, how: str) -> None:
    path = directory / "run.db"
    if how == "text":
        path.write_text("hello " * 1000)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:5000])
    elif how == "scrambled":
        path.write_bytes(path.read_bytes()[:100] + b"\xff" * 9000)
    else:
        database = sqlite3.connect(path)
        with database:
            database.execute("DELETE FROM checksums")  # which would tell
            database.execute(how)
        database.close()


@pytest.mark.parametrize(
    "how",
    [
        "text",
        "empty",
        "cut",
        "scrambled",
        "DROP TABLE meta",
        "UPDATE meta SET value = '{broken' WHERE key = 'seed'",
    ],
)
def test_a_corrupted_database_is_refused(how: str, tmp_path: Path) -> None:
    finished(tmp_path / "run")
    corrupt(tmp_path / "run", how)
    for read in (ob.read_run, lambda d: list(ob.find_runs(d)[0].rows())):
        with pytest.raises(ob.DamageError, match=r"run\.db (cannot be read|is empty)") as caught:
            read(tmp_path / "run")
        assert "\n" not in str(caught.value)


def test_a_corrupted_journal_is_refused_when_it_is_read(tmp_path: Path) -> None:
    finished(tmp_path)
    corrupt(tmp_path, "DROP TABLE journal")
    with pytest.raises(ob.DamageError, match=r"run\.db cannot be read \(no such table: journal\)"):
        list(ob.read_run(tmp_path).rows())


@pytest.mark.parametrize("format_number", [0, 2, None, "1"])
def test_other_formats_are_refused(format_number: Any, tmp_path: Path) -> None:
    """In one line that names the file, its format and the one that is read."""
    finished(tmp_path)
    corrupt(tmp_path, f"UPDATE meta SET value = '{json.dumps(format_number)}' WHERE key = 'format'")
    with pytest.raises(ob.UsageError) as refused:
        ob.read_run(tmp_path)
    assert str(refused.value) == (
        f"{tmp_path / 'run.db'} has format {format_number!r}, and this version of Offbeat reads 1: use the "
        f"version that wrote it ({ob.__version__})"
    )


def test_find_runs_however_deep(tmp_path: Path) -> None:
    for i, place in enumerate(("b/seed-0", "a/x/y/seed-1", "b/seed-1")):
        finished(tmp_path / place, seed=i)
    found = ob.find_runs(tmp_path)
    assert [r.path.relative_to(tmp_path).as_posix() for r in found] == [
        "a/x/y/seed-1",
        "b/seed-0",
        "b/seed-1",
    ]
    assert [r.seed for r in found] == [1, 0, 2]
    assert [r.path for r in ob.find_runs(tmp_path / "b" / "seed-0")] == [tmp_path / "b" / "seed-0"]
    for nothing in (tmp_path / "a" / "nowhere", tmp_path / "b" / "seed-0" / "lock"):
        with pytest.raises(ob.UsageError, match="holds no run"):
            ob.find_runs(nothing)
    with pytest.raises(ob.UsageError, match=r"is not a run: it has no run\.db"):
        ob.read_run(tmp_path / "b")


def test_metrics_of_clients_are_read_by_their_evaluation(tmp_path: Path) -> None:
    finished(tmp_path)
    assert ob.read_run(tmp_path).client_metrics() == []
    store = RunStore.reopen(tmp_path)
    store.metric(
        Metric(99, 1.0, 5, 0, 0, 0, None, None), [ClientMetric(99, 2, 7, {"auroc": None, "loss": 0.5})]
    )
    store.flush({})
    store.close()
    row = {"evaluation": 99, "t": 1.0, "version": 5, "client": 2, "samples": 7, "auroc": None, "loss": 0.5}
    assert ob.read_run(tmp_path).client_metrics() == ob.read_run(tmp_path).client_metrics(99) == [row]
    assert ob.read_run(tmp_path).client_metrics(98) == []


def test_entries_that_stay_are_written_once(tmp_path: Path) -> None:
    """A server flushes the same entries with each update; what was set in between counts all the same."""
    store, written = start(tmp_path / "run"), []
    store._database.set_trace_callback(written.append)

    def flushed(duration: float) -> bool:
        written.clear()
        store.flush({"duration": duration, "rejected": {"norm": 1}})
        return any("INTO meta" in text and "rejected" in text for text in written)

    assert [flushed(1.0), flushed(2.0)] == [True, False]
    store.set_meta({"rejected": {}})
    assert flushed(3.0)
    store.close()
    meta = ob.read_run(tmp_path / "run").meta
    assert (meta["duration"], meta["rejected"]) == (3.0, {"norm": 1})
