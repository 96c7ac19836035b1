"""Checksums of a database's rows, in its table `checksums`: what is not as it was written is not read.

SQLite notices damage of its own structures, not of the values in them. So whoever writes rows seals them in
the same transaction, in blocks of consecutive keys, and whoever reads a table through `read_table` gets
blocks that are whole. A block without a checksum is read as it is: who mends rows by hand deletes theirs.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from msgspec.msgpack import Encoder
from xxhash import xxh3_64_hexdigest

SCHEMA = """
CREATE TABLE IF NOT EXISTS checksums(
    part TEXT NOT NULL, block NOT NULL, checksum TEXT NOT NULL, PRIMARY KEY (part, block)
) WITHOUT ROWID;
"""
Key = int | str
_encode = Encoder().encode


class _Table(NamedTuple):
    """How a table's rows are sealed: by which column, its index, the rows' order, and keys of a block."""

    key: str
    column: int
    order: str
    rows: int


_TABLES = {
    "meta": _Table("key", 0, "key", 1),
    "clients": _Table("client", 0, "client", 100),
    "journal": _Table("seq", 0, "seq", 32),
    "journal_archive": _Table("first", 0, "first", 1),
    "metrics": _Table("seq", 0, "seq", 32),
    "client_metrics": _Table("evaluation", 0, "evaluation, client", 1),
    "checkpoints": _Table("id", 0, "id", 1),
    "sites": _Table("client", 1, "client", 1),
    "helper": _Table("id", 0, "id", 1),
    "released": _Table("task", 0, "task", 32),
    "seeds": _Table("version", 0, "version", 1),
    "sums": _Table("version", 0, "version", 1),
}
TABLES = tuple(_TABLES)
"""The tables that have checksums."""


def seal(database: sqlite3.Connection, table: str, keys: Iterable[Key]) -> None:
    """Record the checksums of a table's blocks with these keys, as they are in the transaction."""
    chosen = _TABLES[table]
    for block in {_block(chosen, key) for key in keys}:
        query = f"SELECT * FROM {table} WHERE {chosen.key} BETWEEN ? AND ? ORDER BY {chosen.order}"
        rows = database.execute(query, _bounds(chosen, block)).fetchall()
        if rows:
            values = (table, block, _checksum(rows))
            database.execute("INSERT OR REPLACE INTO checksums VALUES (?, ?, ?)", values)
        else:
            database.execute("DELETE FROM checksums WHERE part = ? AND block = ?", (table, block))


def seal_single_rows(database: sqlite3.Connection, table: str, rows: Iterable[tuple[Key, ...]]) -> None:
    """Record the checksums of new rows of a table with one row in each block, without reading them again.

    Args:
        database: The connection.
        table: The table, of which the key is the first column.
        rows: The rows, whose values have the types with which SQLite gives them back.
    """
    values = [(table, row[0], _checksum([row])) for row in rows]
    database.executemany("INSERT OR REPLACE INTO checksums VALUES (?, ?, ?)", values)


def read_table(database: sqlite3.Connection, table: str, first: Key | None = None) -> Iterator[Any]:
    """Iterate over the rows of a table, each block of which matches its checksum, if it has one.

    Args:
        database: A connection without a transaction of its own.
        table: One of `TABLES`.
        first: Blocks before the one of this key are not read. None means all.

    Raises:
        ValueError: A block does not match its checksum, or is not there.
    """
    layout, where = _TABLES[table], ""
    bounds: tuple[Key, ...] = ()
    if not database.in_transaction:
        # Rows and checksums are read as of one moment.
        database.execute("BEGIN")
    if first is not None:
        where, bounds = f"WHERE {layout.key} >= ?", _bounds(layout, _block(layout, first))[:1]
    query = "SELECT block, checksum FROM checksums WHERE part = ? AND block >= coalesce(?, block)"
    begin = None if first is None else _block(layout, first)
    checksums: dict[Key, str] = dict(database.execute(query, (table, begin)))
    rows = database.execute(f"SELECT * FROM {table} {where} ORDER BY {layout.order}", bounds)
    for block, group in groupby(rows, lambda row: _block(layout, row[layout.column])):
        whole = list(group)
        if checksums.pop(block, None) not in (None, _checksum(whole)):
            raise ValueError(f"{_named(table, layout, block)} does not match its checksum")
        yield from whole
    if checksums:
        raise ValueError(f"{_named(table, layout, next(iter(checksums)))} is missing")


def has_table(database: sqlite3.Connection, name: str) -> bool:
    """Whether the database has a table."""
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    return database.execute(query, (name,)).fetchone() is not None


def _block(table: _Table, key: Key) -> Key:
    return key // table.rows if isinstance(key, int) else key


def _bounds(table: _Table, block: Key) -> tuple[Key, ...]:
    """The first and the last key of a block."""
    return (block * table.rows, (block + 1) * table.rows - 1) if isinstance(block, int) else (block, block)


def _checksum(rows: list[Any]) -> str:
    return xxh3_64_hexdigest(_encode(rows))


def _named(name: str, table: _Table, block: Key) -> str:
    first, *_, last = _bounds(table, block)
    keys = first if first == last else f"{first} to {last}"
    return f"table {name}, {table.key} {keys},"
