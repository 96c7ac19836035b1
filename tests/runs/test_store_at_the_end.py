"""The end of a run, when something outside is in the way."""

import sqlite3
from pathlib import Path

import pytest

import offbeat as ob
from offbeat.core.global_model import GlobalModel
from offbeat.core.learner import NoTraining
from offbeat.runs.schema import DATABASE
from offbeat.runs.store import RunStore


def store(directory: Path) -> tuple[RunStore, GlobalModel]:
    algorithm = ob.fedavg(steps=1)
    meta = {"label": "x", "algorithm": {"name": "fedavg"}, "seed": 0, "clients": 1, "recipe": None}
    made = RunStore.create(directory, meta, [(0, 1, None)])
    return made, GlobalModel(algorithm, NoTraining(1, 3).initial(0))


def test_a_run_finishes_while_somebody_reads_it(tmp_path: Path) -> None:
    made, tensors = store(tmp_path)
    reader = sqlite3.connect(f"file:{tmp_path / DATABASE}?mode=ro", uri=True)
    rows = reader.execute("SELECT * FROM meta")
    assert rows.fetchone() is not None  # and more to come: the reader holds the database
    made.finish(tensors.model, 1.0, "done", {})
    made.close()
    reader.close()
    assert ob.read_run(tmp_path).status == "finished"


def test_an_undisturbed_run_leaves_no_side_files(tmp_path: Path) -> None:
    made, tensors = store(tmp_path)
    made.finish(tensors.model, 1.0, "done", {})
    made.close()
    assert ob.read_run(tmp_path).journal == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lock", "model.safetensors", "run.db"]


def test_what_a_killed_process_was_writing_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    made, tensors = store(tmp_path)
    others = (".tmpa1B2c3", "a.tmpa1B2c3")
    for name in ("version-1.part", *others):
        (tmp_path / name).write_bytes(b"half")
    made.finish(tensors.model, 1.0, "done", {})
    made.close()
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "model.safetensors", "run.db", *others}


def test_abandoning_a_broken_database_does_not_hide_the_error_before(tmp_path: Path) -> None:
    made, _ = store(tmp_path)
    made.set_meta({"status": "running"})
    with sqlite3.connect(tmp_path / DATABASE) as other:
        other.execute("DROP TABLE meta")
    other.close()
    made.abandon("failed")


def test_a_final_model_that_cannot_be_written_is_a_failed_run(tmp_path: Path) -> None:
    made, tensors = store(tmp_path)
    (tmp_path / "model.part").mkdir()
    with pytest.raises(ob.RunError, match="cannot write the final model"):
        made.finish(tensors.model, 1.0, "done", {})
    made.close()
