"""Blocks of old journal rows, compressed, in the database of their run.

A block has the rows of 4,096 numbers, as zlib of lines: each is the columns of a row, as a JSON list. It has
a checksum in the table `checksums`, as rows have. What reads the journal reads the blocks first, and sees no
difference.
"""

import json
import sqlite3
import zlib
from collections.abc import Iterator
from io import BytesIO
from itertools import pairwise
from typing import Any

from msgspec import MsgspecError
from msgspec.json import Decoder

from offbeat.runs.checksums import has_table, read_table, seal
from offbeat.runs.database import MOST_BYTES
from offbeat.unpacking import unpacked

ROWS = 4096
"""Numbers of journal rows in a block: a multiple of those that share a checksum in the journal."""
TABLE = """CREATE TABLE IF NOT EXISTS journal_archive(
    first INTEGER PRIMARY KEY, last INTEGER NOT NULL, rows BLOB NOT NULL
)"""

_Number = int | None
_Columns = tuple[
    int, float, str, str, _Number, _Number, _Number, _Number, _Number, _Number, str | None
]  # of the table journal
_decode = Decoder(_Columns).decode


def read_journal(database: sqlite3.Connection, first: int) -> Iterator[tuple[Any, ...]]:
    """Iterate over the rows of a journal, archived or not, as columns.

    Args:
        database: A connection without a transaction of its own.
        first: Number of the first row that is needed; there can be earlier ones.

    Raises:
        ValueError: A block, or a row, is not as it was written.
    """
    # Archived rows and others are read as of one moment.
    database.execute("BEGIN")
    if has_table(database, "journal_archive"):
        for begin, last, packed in read_table(database, "journal_archive", first // ROWS * ROWS):
            yield from _unpack(begin, last, packed)
    yield from read_table(database, "journal", first)


def archive_rows(database: sqlite3.Connection, limit: int) -> int:
    """Move whole blocks of the rows before a number into the archive, in the transaction at hand.

    Args:
        database: A connection in a transaction.
        limit: Number of a row; it and those after it stay.

    Returns:
        The number of rows that were moved.
    """
    database.execute(TABLE)
    (earliest,) = database.execute("SELECT coalesce(min(seq), 0) FROM journal").fetchone()
    moved = 0
    for first in range(earliest // ROWS * ROWS, limit // ROWS * ROWS, ROWS):
        last = first + ROWS - 1
        query = "SELECT * FROM journal WHERE seq BETWEEN ? AND ? ORDER BY seq"
        rows = database.execute(query, (first, last)).fetchall()
        if not rows:
            continue
        text = "\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
        packed = zlib.compress(text.encode(), 9)
        database.execute("INSERT INTO journal_archive VALUES (?, ?, ?)", (first, last, packed))
        database.execute("DELETE FROM journal WHERE seq BETWEEN ? AND ?", (first, last))
        seal(database, "journal_archive", [first])
        seal(database, "journal", [row[0] for row in rows])
        moved += len(rows)
    return moved


def _unpack(first: int, last: int, packed: bytes) -> list[tuple[Any, ...]]:
    """The rows of a block. Raises `ValueError` for one that is none, or is larger than one may be."""
    block = f"block {first} of its table journal_archive"
    try:
        text = b"".join(unpacked(BytesIO(packed), MOST_BYTES))
        # Rows are counted before they are made, which takes many times the memory of their text.
        if (count := text.count(b"\n") + 1) > ROWS:
            raise ValueError(f"it has {count} rows: {ROWS} are allowed")
        rows = [_decode(line) for line in text.split(b"\n")]
    except (ValueError, TypeError, MsgspecError, RecursionError) as error:
        raise ValueError(f"{block} is damaged ({error})") from None
    numbers = [first - 1, *(row[0] for row in rows), last + 1]
    if any(after <= before for before, after in pairwise(numbers)):
        raise ValueError(f"{block} has rows of another block, or out of order")
    return rows
