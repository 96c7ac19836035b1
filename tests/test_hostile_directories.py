"""Directories of an adversary: each command ends soon, in one line, and nothing of theirs runs."""

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from offbeat.runs.record import find_runs
from tests.corpus.archive import unpack
from tests.corpus.command_line import offbeat
from tests.hostile import RUNS_CODE, spoil
from tests.sampling import mostly_thorough

COMMANDS = ("verify", "replay", "status", "journal", "export", "report", "resume")
pytestmark = pytest.mark.usefixtures("one_thread")


def commands(run: Path, place: Path, what: str) -> list[int]:
    """Use a directory with every command that reads one; returns their exit codes."""
    codes = []
    for command in COMMANDS:
        folder = place / "copy"
        shutil.copytree(run, folder)
        options = ("-o", place / f"of-{command}") if command in ("export", "report") else ()
        code, printed = offbeat(command, folder, *options)
        shutil.rmtree(folder)
        told = f"{what}: {command}: exit code {code}: {printed[-2000:]}"
        assert code in (0, 1, 2), told
        assert "Traceback" not in printed, told
        if code == 2:
            assert printed.count("\n") == 1, told
        assert len(printed) < 10_000 or command == "journal", told
        codes.append(code)
    return codes


def one_run(name: str, place: Path) -> Path:
    (run,) = find_runs(unpack(5, name, place))
    return run.path


@pytest.mark.parametrize(
    "statement", RUNS_CODE, ids=["view", "meta", "trigger", "column", "index", "default"]
)
def test_a_database_with_more_than_plain_tables_is_not_read(statement: str, tmp_path: Path) -> None:
    run = one_run("fedbuff", tmp_path)
    with closing(sqlite3.connect(run / "run.db")) as database:
        database.executescript(statement)
    assert 0 not in commands(run, tmp_path, statement)


@pytest.mark.parametrize("name", ["fedbuff-stopped", "served-killed", "wireless", "noise-stopped"])
@pytest.mark.parametrize("seed", mostly_thorough(range(300), range(3)))
def test_values_of_an_adversary_are_told_in_one_line(
    name: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = one_run(name, tmp_path)
    rng = random.Random(f"{name} {seed}")
    monkeypatch.chdir(tmp_path)
    done = "; ".join(spoil(run / "run.db", rng) for _ in range(rng.choice((1, 1, 1, 3))))
    commands(run, tmp_path, done)
    assert not (tmp_path / "made").exists()
