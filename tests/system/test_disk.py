"""The simulated disk: what a power failure leaves of files, of databases and of names."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("apsw")
pytest.importorskip("greenlet")

from offbeat.runs.durable_files import make_directory, sync_directory
from tests.system.disk import Disk, watching

TRIES = 30


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[Disk]]:
    made = []
    for i in range(TRIES):
        root = tmp_path / str(i)
        root.mkdir()
        made.append(Disk(root, Random(i), lambda _: None))
    with watching(made):
        yield made


def write(path: Path, data: bytes, *, sync: bool) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(descriptor, data)
    if sync:
        os.fsync(descriptor)
    os.close(descriptor)


def test_a_file_survives_if_it_and_its_name_are_synced(disks: list[Disk]) -> None:
    data = bytes(range(256)) * 8
    for disk in disks:
        write(disk.root / "a", data, sync=True)
        sync_directory(disk.root)
        write(disk.root / "b", data, sync=False)
        disk.restart(power_failed=True)
        assert (disk.root / "a").read_bytes() == data
    left = [(disk.root / "b").read_bytes() if (disk.root / "b").exists() else None for disk in disks]
    assert None in left
    assert data in left
    assert any(found not in (None, b"", data) for found in left), "nothing is torn"


def test_all_survives_the_death_of_a_process(disks: list[Disk]) -> None:
    for disk in disks[:3]:
        write(disk.root / "a", b"abc", sync=False)
        disk.restart(power_failed=False)
        assert (disk.root / "a").read_bytes() == b"abc"


def rows_after_power_failure(disk: Disk, synchronous: str) -> int:
    """Rows of 20 transactions of one row each, after a power failure; -1 without the database."""
    path = disk.root / "a.db"
    with closing(sqlite3.connect(path)) as database:
        database.executescript("PRAGMA journal_mode = WAL; CREATE TABLE t(a);")
    sync_directory(disk.root)
    database = sqlite3.connect(path)
    database.executescript(f"PRAGMA synchronous = {synchronous}")
    for i in range(20):
        with database:
            database.execute("INSERT INTO t VALUES (?)", (i,))
    database.execute("BEGIN")
    database.execute("INSERT INTO t VALUES (99)")
    disk.restart(power_failed=True)
    with closing(sqlite3.connect(path)) as found:
        return len(list(found.execute("SELECT a FROM t")))


def test_a_committed_transaction_survives_if_sqlite_syncs(disks: list[Disk]) -> None:
    assert {rows_after_power_failure(disk, "FULL") for disk in disks[:10]} == {20}
    assert min(rows_after_power_failure(disk, "OFF") for disk in disks[10:]) < 20


def test_the_name_of_a_new_state_directory_is_durable(disks: list[Disk]) -> None:
    for disk in disks:
        make_directory(disk.root / "run")
        disk.restart(power_failed=True)
        assert (disk.root / "run").is_dir()
