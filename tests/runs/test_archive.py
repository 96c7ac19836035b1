"""Archived journal rows are read as before, by everything that reads a run."""

import sqlite3
import tracemalloc
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import offbeat as ob
from offbeat.core.errors import DamageError, UsageError
from offbeat.core.journal import Row
from offbeat.runs import journal_archive
from offbeat.runs.archive import archive
from offbeat.runs.lock import lock
from offbeat.runs.record import read_run
from offbeat.runs.verify import verify
from offbeat.sim.replay import replay

CLIENTS = 40  # present from the start, in one row


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run, and blocks of few rows."""
    monkeypatch.setattr(journal_archive, "ROWS", 64)
    world = ob.World(ob.laws.Exponential(1.0, minimum=0.05), jitter=0.05)
    ob.simulate(
        ob.fedbuff(2, steps=1, concurrency=5), world, ob.NoTraining(CLIENTS, 3),
        until=ob.Until(tasks=200), evaluate=None, out=tmp_path / "run",
    )  # fmt: skip
    return tmp_path / "run"


def count(directory: Path, table: str) -> int:
    with closing(sqlite3.connect(directory / "run.db")) as database:
        return int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def all_rows(directory: Path) -> list[Row]:
    return list(read_run(directory).rows())


def test_what_reads_the_journal_sees_no_difference(run: Path) -> None:
    before, stored = all_rows(run), count(run, "journal")
    found = archive(run, 0.0)
    assert found.rows > 300
    assert count(run, "journal") == stored - found.rows
    assert count(run, "journal_archive") > 4
    record = read_run(run)
    assert all_rows(run) == before
    assert record.length == len(before)
    for after in (-1, 0, 20, 39, 40, 63, 64, 65, 127, 130, len(before) - 3):
        assert list(record.rows(after=after)) == before[after + 1 :]
    assert (
        list(record.rows("event", after=50, limit=9))
        == [row for row in before[51:] if row.kind == "event"][:9]
    )
    assert replay(record, ob.fedbuff(2, steps=1, concurrency=5)).difference is None
    assert verify(run).problems == []


def test_archiving_goes_on_where_it_was(run: Path) -> None:
    before = all_rows(run)
    end = read_run(run).duration
    first = archive(run, end / 2)
    assert 0 < first.rows < len(before) - 64
    assert archive(run, end / 2).rows == 0
    assert archive(run, 0.0).rows > 0
    assert all_rows(run) == before
    kept = [row.t for row in before[-count(run, "journal") :]]
    assert len(kept) <= 2 * 64


def test_rows_after_the_checkpoint_and_the_last_row_stay(run: Path) -> None:
    with closing(sqlite3.connect(run / "run.db")) as database, database:
        database.execute("UPDATE checkpoints SET journal = 130")
        database.execute("DELETE FROM checksums WHERE part = 'checkpoints'")
    before = all_rows(run)
    archive(run, 0.0)
    with closing(sqlite3.connect(run / "run.db")) as database:
        assert database.execute("SELECT max(last) FROM journal_archive").fetchone() == (127,)
    assert all_rows(run) == before


def flip(database: sqlite3.Connection) -> None:
    (packed,) = database.execute("SELECT rows FROM journal_archive WHERE first = 64").fetchone()
    flipped = packed[:40] + bytes([packed[40] ^ 1]) + packed[41:]
    database.execute("UPDATE journal_archive SET rows = ? WHERE first = 64", (flipped,))


DAMAGES: dict[str, Any] = {
    "flipped": (flip, "first 64, does not match its checksum"),
    "deleted": ("DELETE FROM journal_archive WHERE first = 64", "first 64, is missing"),
    "other rows": ("UPDATE journal_archive SET first = 4096 WHERE first = 64", "block 4096|first 64"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_block_is_an_error(run: Path, damage: str) -> None:
    archive(run, 0.0)
    done, words = DAMAGES[damage]
    with closing(sqlite3.connect(run / "run.db")) as database, database:
        done(database) if callable(done) else database.execute(done)
    with pytest.raises(DamageError, match=words):
        all_rows(run)
    assert len(verify(run).problems) == 1


def packed(*rows: str) -> bytes:
    return zlib.compress("\n".join(rows).encode(), 9)


ROW = '[{},0.0,"event","lost",0,0,0,0,0,0,null]'
ANOTHERS = {
    "empty": b"",
    "no zlib": b"x",
    "zeros": b"\x00" * 100,
    "cut off": packed(ROW.format(64))[:-4],
    "twice the number": packed(ROW.format(64), ROW.format(64)),
    "falling numbers": packed(ROW.format(65), ROW.format(64)),
    "of another block": packed(ROW.format(128)),
    "millions of rows": packed(*["[64]"] * 2**20),
    "millions of lists": packed("[" + "[]," * 2**20 + "[]]"),
    "a number of many digits": packed(ROW.format("6" * 2**20)),
    "nested": packed("[" * 2**20),
    "other types": packed(ROW.format("null")),
}


@pytest.mark.parametrize("content", ANOTHERS.values(), ids=ANOTHERS)
def test_a_block_of_anothers_making_is_an_error(run: Path, content: bytes) -> None:
    """Without a checksum, as somebody may write it by hand."""
    archive(run, 0.0)
    with closing(sqlite3.connect(run / "run.db")) as database, database:
        database.execute("UPDATE journal_archive SET rows = ? WHERE first = 64", (content,))
        database.execute("DELETE FROM checksums WHERE part = 'journal_archive'")
    tracemalloc.start()
    try:
        with pytest.raises(DamageError, match="block 64 of its table journal_archive"):
            all_rows(run)
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()


def test_damaged_rows_are_not_archived(run: Path) -> None:
    with closing(sqlite3.connect(run / "run.db")) as database, database:
        database.execute("UPDATE journal SET t = t + 1 WHERE seq = 100")
    with pytest.raises(DamageError):
        archive(run, 0.0)
    with closing(sqlite3.connect(run / "run.db")) as database:
        tables = database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'journal_archive'")
        assert tables.fetchone() == (0,)


def test_all_or_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails in the middle leaves every row where it was."""
    before, stored = all_rows(run), count(run, "journal")

    def full(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(journal_archive, "seal", full)
    with pytest.raises(ob.OffbeatError, match="full"):
        archive(run, 0.0)
    assert (all_rows(run), count(run, "journal")) == (before, stored)


def test_a_run_that_is_written_is_left_alone(run: Path) -> None:
    held = lock(run)
    try:
        with pytest.raises(UsageError, match="another process is writing"):
            archive(run, 0.0)
    finally:
        held.release()
