"""`offbeat verify`: nothing is said of what is whole, and one line of each thing that is not."""

import io
import json
import os
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

import offbeat as ob
from offbeat import cli
from offbeat.cli import console
from offbeat.core.layout import Layout
from offbeat.core.model import Model
from offbeat.net.client.store import SiteStore
from offbeat.runs.files import write_tensors
from offbeat.runs.lock import lock
from offbeat.runs.permissions import private_directory
from offbeat.runs.store import RunStore


def verify(directory: Path) -> tuple[int, list[str]]:
    said = io.StringIO()
    words = patch.object(sys, "argv", ["offbeat", "verify", str(directory)])
    with words, redirect_stdout(said), redirect_stderr(said), pytest.raises(SystemExit) as end:
        cli.main()
    assert isinstance(end.value.code, int)
    return end.value.code, said.getvalue().splitlines()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two finished runs, and a site's state."""
    monkeypatch.setattr(console.out, "width", 160)
    for seed in (0, 1):
        world, until = ob.World([1.0, 1.5, 4.0]), ob.Until(tasks=20)
        ob.simulate(ob.fedbuff(2, steps=3), world, seed=seed, until=until, out=tmp_path / f"seed-{seed}")
    store = SiteStore(tmp_path / "site")
    store.begin("a run")
    store.close()
    return tmp_path


def change(query: str) -> Callable[[Path], object]:
    def changed(run: Path) -> None:
        with closing(sqlite3.connect(run / "run.db")) as database, database:
            database.execute("DELETE FROM checksums")  # which would tell
            database.execute(query)

    return changed


def test_a_folder_that_is_whole(folder: Path) -> None:
    code, lines = verify(folder)
    assert code == 0
    assert len(lines) == 1
    files = len([*folder.rglob("*.safetensors"), *folder.rglob("run.db")])
    assert lines[0].startswith(f"problems 0; directories 3, files {files} (")
    rows = sum(ob.read_run(folder / f"seed-{seed}").length for seed in (0, 1))
    assert lines[0].endswith(f"journal rows replayed {rows}")
    assert verify(folder / "seed-1")[0] == verify(folder / "site")[0] == 0


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda run: (run / "model.safetensors").unlink(), "model.safetensors is missing; lost: the final"),
        (lambda run: (run / "run.db").unlink(), "run.db is missing; lost: what the run has recorded"),
        (
            lambda run: write_tensors(run / "model.safetensors", {"w": torch.zeros(1)}),
            "model.safetensors is not the model that the run has recorded; lost: the final model",
        ),
        (
            lambda run: (run / "client-3.safetensors").write_bytes(b"x" * 50),
            "client-3.safetensors cannot be read (",
        ),
        (change("DELETE FROM journal WHERE seq = 9"), "run.db lacks journal row 9; lost: "),
        (change("DELETE FROM meta WHERE key = 'seed'"), "run.db has no entry seed in its table meta; lost: "),
        (
            change("UPDATE journal SET steps = 4 WHERE name = 'train' AND seq > 20"),
            "the journal's replay differs at row ",
        ),
    ],
)
def test_each_problem_is_a_line(damage: Callable[[Path], object], told: str, folder: Path) -> None:
    damage(folder / "seed-0")
    code, lines = verify(folder)
    assert (code, len(lines)) == (1, 2), lines
    assert lines[0].startswith(f"{folder / 'seed-0'}")
    assert told in lines[0]
    assert lines[1].startswith("problems 1; ")


def test_a_state_directory_that_others_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console.out, "width", 160)
    private_directory(tmp_path / "state")
    named = {"label": "x", "algorithm": {"name": "fedbuff"}, "seed": 0, "clients": 2, "plan": {}}
    store = RunStore.create(tmp_path / "state", named, [])
    store.finish(Model.empty(Layout.flat(2)), 0.0, "done", {})
    store.close()
    (tmp_path / "state" / "tokens.json").write_text(json.dumps({"sites": {}}))
    os.chmod(tmp_path / "state" / "tokens.json", 0o644)  # noqa: PTH101
    code, lines = verify(tmp_path / "state")
    path = tmp_path / "state" / "tokens.json"
    assert (code, lines[0]) == (
        1, f"{path} can be read or written by others (mode 0644); lost: nothing; "
        f"chmod -R go= {tmp_path / 'state'}",
    )  # fmt: skip
    (tmp_path / "state").chmod(0o755)
    code, lines = verify(tmp_path / "state")
    assert lines[0].startswith(
        f"{tmp_path / 'state'} and 1 more can be read or written by others (mode 0755)"
    )
    assert lines[1].startswith("problems 1; ")
    path.chmod(0o600)
    (tmp_path / "state").chmod(0o700)
    assert verify(tmp_path / "state")[0] == 0
    path.write_text("{")
    assert "tokens.json: the file cannot be read" in verify(tmp_path / "state")[1][0]


def test_what_cannot_be_verified(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for nothing in (tmp_path / "empty", tmp_path / "nowhere"):
        code, lines = verify(nothing)
        assert code == 2
        assert "holds no run and no site's state" in lines[0]
    held = lock(folder / "seed-1")
    code, lines = verify(folder / "seed-1")
    held.release()
    assert code == 2
    assert "a process is writing it; stop that first, or verify a copy" in lines[0]
