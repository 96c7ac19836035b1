"""Archiving of a run's old journal rows, while no process writes the run."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from offbeat.core.errors import RunError, UsageError, reason_of
from offbeat.runs.checksums import read_table
from offbeat.runs.damage import database_error, reading
from offbeat.runs.database import open_database
from offbeat.runs.journal_archive import archive_rows
from offbeat.runs.lock import lock
from offbeat.runs.record import read_run
from offbeat.runs.schema import DATABASE


class Archiving(NamedTuple):
    """What was archived: journal rows, and the bytes of the database before and after."""

    rows: int
    before: int
    after: int


def archive(directory: Path, seconds: float) -> Archiving:
    """Archive journal rows of a run that no process writes.

    Only rows before the last checkpoint are archived, in whole blocks; the last row always stays. It is one
    transaction: whenever the process dies, each row is in one place. Afterwards the file is made smaller.

    Args:
        directory: The run's directory.
        seconds: The rows of the last `seconds` of the run's clock stay.

    Raises:
        UsageError: It is no run, or a process is writing it.
        DamageError: Its database is damaged.
        RunError: It cannot be written.
    """
    record, path = read_run(directory), directory / DATABASE
    try:
        held = lock(directory)
    except OSError as error:
        raise UsageError(f"{directory} cannot be written: {reason_of(error)}") from None
    try:
        before = path.stat().st_size
        with reading(path), closing(open_database(path, write=True)) as database:
            checkpoint = record.checkpoint()
            # Each row is read once, since what is damaged is not archived.
            for _ in read_table(database, "journal"):
                pass
            database.rollback()
            query = "SELECT coalesce(max(seq), 0), (SELECT min(seq) FROM journal WHERE t > ?) FROM journal"
            last, kept = database.execute(query, (record.duration - seconds,)).fetchone()
            bounds = (last, kept, None if checkpoint is None else checkpoint.journal)
            limit = min(bound for bound in bounds if bound is not None)
            moved = _move(path, database, limit)
        return Archiving(moved, before, path.stat().st_size)
    finally:
        held.release()


def _move(path: Path, database: sqlite3.Connection, limit: int) -> int:
    """Move the rows in one transaction, then free the space that they took."""
    try:
        with database:
            database.execute("BEGIN IMMEDIATE")
            moved = archive_rows(database, limit)
            if not moved:
                database.rollback()
                return 0
    except sqlite3.Error as error:
        failed: RunError = database_error(path, error, "write")
        raise failed from None
    # Where there is no room for a copy, later rows use the space.
    with suppress(sqlite3.OperationalError):
        # VACUUM attaches the new file.
        database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 1)
        database.execute("VACUUM")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return moved
