"""Directories of an adversary: each command ends soon, in one line, and nothing of theirs runs."""

import json
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from offbeat.runs.record import find_runs
from offbeat.runs.schema import FORMAT
from tests.corpus.archive import unpack
from tests.corpus.command_line import offbeat
from tests.hostile import RUNS_CODE, spoil
from tests.sampling import mostly_thorough

COMMANDS = ("verify", "replay", "status", "replay --print", "export", "report", "resume")
pytestmark = pytest.mark.usefixtures("one_thread")


def commands(
    run: Path, place: Path, what: str, spoil_copy: Callable[[Path], object] = lambda folder: None
) -> list[int]:
    """Use a directory with every command that reads one, a spoilt copy each; returns their exit codes."""
    codes = []
    for command in COMMANDS:
        folder = place / "copy"
        shutil.copytree(run, folder)
        spoil_copy(folder)
        options = ("-o", place / f"of-{command}") if command in ("export", "report") else ()
        code, printed = offbeat(*command.split(), folder, *options)
        shutil.rmtree(folder)
        told = f"{what}: {command}: exit code {code}: {printed[-2000:]}"
        assert code in (0, 1, 2), told
        assert "Traceback" not in printed, told
        if code == 2:
            assert printed.count("\n") == 1, told
        assert len(printed) < 10_000 or command in ("replay --print", "verify"), told
        codes.append(code)
    return codes


def one_run(name: str, place: Path) -> Path:
    (run,) = find_runs(unpack(FORMAT, name, place))
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


def link_to(target: Path, folder: Path, name: str) -> None:
    """Put a link in the place of a file."""
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target)


def pipe(folder: Path, name: str) -> None:
    """Put a named pipe in the place of a file."""
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)


UNFINISHED = (
    "model",
    "best",
    "best.new",
    *(f"{kind}-{n}" for n in range(200) for kind in ("state", "version")),
)
LINKS = {
    "unfinished": tuple(f"{name}.part" for name in (*UNFINISHED, "run")),
    "table": ("metrics.csv", "metrics.csv.part"),
    "database": ("run.db-wal", "run.db-shm"),
    "journal": ("run.db-journal",),
    "updates": ("updates.log",),
    "secrets": ("secrets.db", "secrets.db-journal"),
    "models": ("model.safetensors", "best.safetensors", "best.new.safetensors"),
}


@pytest.mark.parametrize("name", ["fedbuff-stopped", "served-killed", "noise-stopped"])
@pytest.mark.parametrize("kind", LINKS)
def test_nothing_is_written_through_a_link(kind: str, name: str, tmp_path: Path) -> None:
    run, precious = one_run(name, tmp_path), tmp_path / "precious"
    precious.write_text("precious")
    with closing(sqlite3.connect(run / "run.db")) as database, database:
        database.execute("DELETE FROM checksums")
        database.execute(
            "UPDATE meta SET value = json_set(value, '$.callbacks', json('[\"csv\"]')) WHERE key = 'recipe'"
        )

    def put_links(folder: Path) -> None:
        for each in LINKS[kind]:
            link_to(precious, folder, each)

    commands(run, tmp_path, kind, put_links)
    assert precious.read_text() == "precious"


def recorded_callbacks(run: Path, callbacks: list[object]) -> None:
    """Change the callbacks in the record of a run."""
    with closing(sqlite3.connect(run / "run.db")) as database, database:
        database.execute("DELETE FROM checksums")
        database.execute(
            "UPDATE meta SET value = json_set(value, '$.callbacks', json(?)) WHERE key = 'recipe'",
            [json.dumps(callbacks)],
        )


@pytest.mark.parametrize(
    ("name", "option"), [("csv", "path"), ("tensorboard", "directory"), ("mlflow", "tracking_uri")]
)
def test_a_record_names_no_place_outside_of_its_run_without_a_word(
    name: str, option: str, tmp_path: Path
) -> None:
    run, precious = one_run("fedbuff-stopped", tmp_path), tmp_path / "precious"
    precious.write_text("precious")
    recorded_callbacks(run, [{"name": name, option: str(precious)}])
    for command in ("resume", "simulate-like"):
        code, printed = offbeat(command, run)
        assert (code, printed.count("\n")) == (2, 1)
        assert f"callbacks {name}: {option} = " in printed
        assert f"--allow {name}" in printed
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("name", [["csv"], {"csv": 1}, 1, None])
def test_a_recorded_callback_has_a_name_that_is_a_text(name: object, tmp_path: Path) -> None:
    run, precious = one_run("fedbuff-stopped", tmp_path), tmp_path / "precious"
    recorded_callbacks(run, [{"name": name, "path": str(precious)}])
    code, printed = offbeat("resume", run)
    assert (code, printed.count("\n")) == (2, 1)
    assert "give a name, or a mapping with name and options" in printed
    assert not precious.exists()


def test_with_a_word_a_recorded_place_is_written(tmp_path: Path) -> None:
    run, table = one_run("fedbuff-stopped", tmp_path), tmp_path / "table.csv"
    recorded_callbacks(run, [{"name": "csv", "path": str(table)}])
    assert offbeat("resume", run, "--allow", "csv")[0] == 0
    assert table.read_text().startswith("version,t,")


def test_no_folder_of_a_tracker_is_a_link(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run, other = one_run("fedbuff-stopped", tmp_path), tmp_path / "other"
    other.mkdir()
    events = other / "events.out.tfevents.1"
    events.write_text("precious")
    (run / "tensorboard").symlink_to(other)
    recorded_callbacks(run, ["tensorboard"])
    code, printed = offbeat("resume", run)
    assert code == 1
    assert "tensorboard is a link" in printed
    assert "Traceback" not in printed
    assert events.read_text() == "precious"
    assert [*other.iterdir()] == [events]


PIPES = (
    "run.db", "run.db-wal", "run.db-shm", "run.db-journal", "model.safetensors", "best.safetensors",
    "updates.log", "secrets.db", "tokens.json", "server.json", "lock", "client.safetensors",
)  # fmt: skip


@pytest.mark.parametrize("name", ["fedbuff", "served-killed"])
@pytest.mark.parametrize("file", PIPES)
def test_no_command_waits_for_a_pipe(file: str, name: str, tmp_path: Path) -> None:
    commands(one_run(name, tmp_path), tmp_path, file, lambda folder: pipe(folder, file))


SMALL_FILES = {
    "tokens.json": ("enrol", "a", "--state"),
    "tls/ca.pem": ("enrol", "--host", "a.example", "--state"),
    "tls/ca.key": ("enrol", "--host", "a.example", "--state"),
    "tls/server.key": ("enrol", "--host", "a.example", "--state"),
    "dashboard-token": ("enrol", "--dashboard", "--state"),
    "secrets.db": (),
}


@pytest.mark.parametrize("file", SMALL_FILES)
def test_no_command_waits_for_a_pipe_in_place_of_a_small_file(file: str, tmp_path: Path) -> None:
    run = one_run("served-killed", tmp_path)
    assert offbeat("enrol", "--host", "a.example", "--state", run)[0] == 0
    pipe(run, file)
    words = ("backup", run, tmp_path / "copies") if file == "secrets.db" else (*SMALL_FILES[file], run)
    code, printed = offbeat(*words)
    assert code in (1, 2)
    assert printed.count("\n") == 1
    assert file.rpartition("/")[2] in printed


@pytest.mark.parametrize(
    ("key", "path", "value", "command"),
    [
        ("learner", "$.model.name", "\x1b]0;title\x07", "export"),
        ("recipe", "$.until.versions", "\x1b]0;title\x07", "resume"),
    ],
)
def test_what_is_not_allowed_in_a_record_is_told_in_one_line(
    key: str, path: str, value: object, command: str, tmp_path: Path
) -> None:
    run = one_run("fedbuff-stopped" if command == "resume" else "fedbuff", tmp_path)
    with closing(sqlite3.connect(run / "run.db")) as database, database:
        database.execute("DELETE FROM checksums")
        statement = "UPDATE meta SET value = json_set(value, ?, ?) WHERE key = ?"
        assert database.execute(statement, (path, value, key)).rowcount == 1
    options = ("-o", tmp_path / "a.pt") if command == "export" else ()
    code, printed = offbeat(command, run, *options)
    assert code in (1, 2)
    assert printed.count("\n") == 1
    assert "\x1b" not in printed
