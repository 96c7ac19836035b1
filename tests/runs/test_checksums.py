"""Checksums of rows: what was changed behind SQLite's back is not read, and what has none is."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import offbeat as ob
from offbeat.runs.checksums import SCHEMA, read_table, seal


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as opened:
        opened.executescript(f"{SCHEMA} CREATE TABLE journal(seq INTEGER PRIMARY KEY, data TEXT);")
        opened.executemany("INSERT INTO journal VALUES (?, ?)", [(i, f"row {i}") for i in range(100)])
        seal(opened, "journal", range(100))
        opened.commit()
        yield opened


def read(database: sqlite3.Connection, first: int | None = None) -> list[int]:
    found = [seq for seq, _ in read_table(database, "journal", first)]
    database.rollback()
    return found


def test_rows_are_read_from_the_block_of_the_first_that_is_wanted(database: sqlite3.Connection) -> None:
    assert read(database) == list(range(100))
    assert read(database, 70) == list(range(64, 100))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("UPDATE journal SET data = 'row 41' WHERE seq = 40", "table journal, seq 32 to 63, does not match"),
        ("UPDATE journal SET data = CAST(data AS BLOB) WHERE seq = 40", "seq 32 to 63, does not match"),
        ("DELETE FROM journal WHERE seq = 99", "seq 96 to 127, does not match"),
        ("DELETE FROM journal WHERE seq >= 96", "seq 96 to 127, is missing"),
        ("INSERT INTO journal VALUES (100, 'one more')", "seq 96 to 127, does not match"),
    ],
)
def test_a_change_is_noticed_before_a_row_of_its_block_is_given(
    change: str, told: str, database: sqlite3.Connection
) -> None:
    database.execute(change)
    database.commit()
    with pytest.raises(ValueError, match=told):
        read(database)


def test_a_block_without_a_checksum_is_read_until_it_is_written_again(database: sqlite3.Connection) -> None:
    database.execute("DELETE FROM checksums")
    database.execute("UPDATE journal SET data = 'another' WHERE seq = 40")
    database.commit()
    assert read(database) == list(range(100))
    database.execute("DELETE FROM journal WHERE seq >= 96")
    seal(database, "journal", [99])
    assert not list(database.execute("SELECT * FROM checksums"))


@pytest.mark.parametrize("table", ["meta", "clients", "journal", "metrics"])
def test_every_row_of_a_run_has_one(table: str, tmp_path: Path) -> None:
    ob.simulate(ob.fedbuff(2, steps=3), ob.World([1.0, 1.5]), until=ob.Until(tasks=20), out=tmp_path)
    readers = {
        "meta": lambda: ob.read_run(tmp_path).label,
        "clients": lambda: ob.read_run(tmp_path).client_samples(),
        "journal": lambda: ob.read_run(tmp_path).journal,
        "metrics": lambda: ob.read_run(tmp_path).metrics,
    }
    for rowid in range(1, 4):
        with closing(sqlite3.connect(tmp_path / "run.db")) as database, database:
            row = database.execute(f"SELECT * FROM {table} LIMIT 1 OFFSET ?", (rowid - 1,)).fetchone()
            key = {"meta": "key", "clients": "client"}.get(table, "seq")
            database.execute(f"DELETE FROM {table} WHERE {key} = ?", row[:1]) if row else None
        if row is not None:
            with pytest.raises(ob.DamageError, match=rf"table {table}, .* lost: what the run has recorded"):
                readers[table]()
            with closing(sqlite3.connect(tmp_path / "run.db")) as database, database:
                database.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})", row)
            assert readers[table]()
