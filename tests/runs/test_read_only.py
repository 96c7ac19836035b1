"""Runs in directories that the reader may not write: they are read whole, and nothing is left there."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from offbeat.core.errors import UsageError
from offbeat.recipes.build import recorded_algorithm, resume_run
from offbeat.report import write_html
from offbeat.runs.database import open_database
from offbeat.runs.lock import lock
from offbeat.runs.record import find_runs, read_run
from offbeat.runs.schema import FORMAT
from offbeat.runs.verify import verify
from offbeat.sim.replay import replay
from tests.corpus.archive import unpack
from tests.permission_bits import unwritable

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs permission bits")


def closed(path: Path) -> None:
    """Leave a database as a writer does that closes it: in the mode WAL, without a log."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
    assert not Path(f"{path}-wal").exists()


def killed(path: Path) -> None:
    """Leave a database as a writer does that is killed: with its last change in a log."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("UPDATE meta SET value = '\"in the log\"' WHERE key = 'label'")
        database.commit()
        for suffix in ("", "-wal", "-shm"):
            shutil.copy(f"{path}{suffix}", f"{path}{suffix}.left")
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}.left").replace(f"{path}{suffix}")


def copied(path: Path) -> None:
    """Leave a database as `killed`, copied without its shared memory."""
    killed(path)
    Path(f"{path}-shm").unlink()


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The directory of a run that was interrupted."""
    return unpack(FORMAT, "fedbuff-stopped", tmp_path) / "run"


def label(path: Path) -> str:
    with closing(open_database(path)) as database:
        return str(database.execute("SELECT value FROM meta WHERE key = 'label'").fetchone()[0])


@pytest.mark.parametrize(
    ("left", "wanted"), [(closed, '"fedbuff"'), (killed, '"in the log"'), (copied, '"in the log"')]
)
def test_a_database_is_read_as_its_writer_left_it(
    left: Callable[[Path], None], wanted: str, stopped: Path
) -> None:
    path = stopped / "run.db"
    left(path)
    names = sorted(stopped.iterdir())
    with unwritable(stopped):
        assert label(path) == wanted
        with closing(open_database(path)) as database, pytest.raises(sqlite3.OperationalError):
            database.execute("CREATE TABLE t(a)")
    assert sorted(stopped.iterdir()) == names


def test_a_copy_of_a_database_is_of_nobody_elses(stopped: Path, tmp_path: Path, monkeypatch) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    copied(stopped / "run.db")
    with unwritable(stopped):
        assert label(stopped / "run.db") == '"in the log"'
    assert list(place.iterdir()) == []


def test_a_transaction_that_was_not_committed_is_undone_in_a_copy(tmp_path: Path) -> None:
    path, left = tmp_path / "run.db", tmp_path / "left" / "run.db"
    left.parent.mkdir()
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE t(a)")
        database.execute("INSERT INTO t VALUES (zeroblob(100000))")
        database.commit()
        database.execute("PRAGMA cache_size = 1")
        database.execute("UPDATE t SET a = zeroblob(200000)")
        for suffix in ("", "-journal"):
            shutil.copy(f"{path}{suffix}", f"{left}{suffix}")
    with unwritable(left.parent), closing(open_database(left)) as database:
        assert database.execute("SELECT length(a) FROM t").fetchall() == [(100000,)]


def test_a_run_that_is_written_is_not_read_past_its_writer(stopped: Path) -> None:
    """Without the writer's shared memory, a reader cannot know what of the file is whole."""
    closed(stopped / "run.db")
    with lock(stopped), unwritable(stopped), pytest.raises(sqlite3.OperationalError):
        label(stopped / "run.db")


def test_an_interrupted_run_is_shown_replayed_and_verified(stopped: Path, tmp_path: Path) -> None:
    with unwritable(stopped):
        record = read_run(stopped)
        assert (record.status, record.length) == ("interrupted", 38)
        assert replay(record, recorded_algorithm(record)).difference is None
        page = write_html(find_runs(stopped), tmp_path / "page.html")
        assert "fedbuff" in page.read_text(encoding="utf-8")
        assert not verify(stopped).problems


def test_it_goes_on_elsewhere(stopped: Path, tmp_path: Path) -> None:
    """To go on with it needs write permission, or a copy."""
    told = f"^this user cannot write to {stopped}: to write this run, ask .*, or copy the directory"
    with unwritable(stopped):
        with pytest.raises(UsageError, match=told):
            resume_run(stopped)
        shutil.copytree(stopped, tmp_path / "own")
    (tmp_path / "own").chmod(0o755)
    for path in (tmp_path / "own").iterdir():
        path.chmod(0o644)
    resume_run(tmp_path / "own")
    assert read_run(tmp_path / "own").status == "finished"


def test_its_owner_goes_on_with_it_in_spite_of_a_lock_that_is_not_his(stopped: Path) -> None:
    (stopped / "lock").touch()
    with unwritable(stopped):
        stopped.chmod(0o755)
        with pytest.raises(UsageError, match=f"^this user cannot write {stopped}/lock: to write this run"):
            resume_run(stopped)


@pytest.mark.parametrize(("directory", "files"), [(0o000, 0o644), (0o555, 0o000)])
def test_what_may_not_be_read_is_told_as_such(directory: int, files: int, stopped: Path) -> None:
    with unwritable(stopped, files):
        stopped.chmod(directory)
        with pytest.raises(UsageError, match=r"ask its owner for read permission, or for a copy$"):
            read_run(stopped)
