"""A database whose writer was killed in the middle of a transaction."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from offbeat.runs.database import open_database

MAGIC = bytes.fromhex("d9d505f920a163d7")


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A database, and the journal of a transaction that has changed it and was not committed."""
    path, left = tmp_path / "run.db", tmp_path / "left.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE t(a)")
        database.execute("INSERT INTO t VALUES (zeroblob(100000))")
        database.commit()
        database.execute("PRAGMA cache_size = 1")
        database.execute("UPDATE t SET a = zeroblob(200000)")
        shutil.copy(path, left)
        shutil.copy(f"{path}-journal", f"{left}-journal")
    return left


def test_it_is_read_as_it_was_before(killed: Path) -> None:
    with closing(open_database(killed)) as database:
        assert database.execute("SELECT length(a) FROM t").fetchall() == [(100000,)]


def test_a_journal_that_names_another_file_is_left_alone(killed: Path, tmp_path: Path) -> None:
    """SQLite would delete that file."""
    other = tmp_path / "precious"
    other.write_bytes(b"\0")
    journal, name = Path(f"{killed}-journal"), str(other).encode()
    total = sum(byte - 256 if byte > 127 else byte for byte in name) & 0xFFFFFFFF
    page = (2**30 // 4096 + 1).to_bytes(4, "big")
    tail = page + name + len(name).to_bytes(4, "big") + total.to_bytes(4, "big") + MAGIC
    journal.write_bytes(journal.read_bytes() + tail)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        open_database(killed)
    assert other.exists()
    with closing(open_database(killed, write=True)):
        pass
    assert not other.exists(), "the journal is not one that does harm"


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_a_file_beside_it_that_is_a_link_or_a_pipe_is_refused(
    suffix: str, write: bool, killed: Path, tmp_path: Path
) -> None:
    beside, other = Path(f"{killed}{suffix}"), tmp_path / "precious"
    other.write_bytes(Path(f"{killed}-journal").read_bytes())
    before = other.read_bytes()
    for make in (lambda: beside.symlink_to(other), lambda: os.mkfifo(beside)):
        beside.unlink(missing_ok=True)
        make()
        with pytest.raises(OSError, match="is a link, a folder, a pipe or a device"):
            open_database(killed, write=write)
    assert other.read_bytes() == before


def test_a_database_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.db")
    for write in (False, True):
        with pytest.raises(OSError, match="is a link, a folder, a pipe or a device"):
            open_database(tmp_path / "pipe.db", write=write)


def test_a_database_that_is_a_link_is_read_and_not_written(tmp_path: Path) -> None:
    with closing(open_database(tmp_path / "a.db", write=True)) as database, database:
        database.execute("CREATE TABLE a(b)")
    (tmp_path / "link.db").symlink_to(tmp_path / "a.db")
    with closing(open_database(tmp_path / "link.db")) as database:
        assert database.execute("SELECT count(*) FROM a").fetchone() == (0,)
    with pytest.raises(OSError, match="is a link"):
        open_database(tmp_path / "link.db", write=True)
