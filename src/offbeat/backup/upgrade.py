"""Upgrade of a run's directory to the format of this version: a backup first, then one transaction.

There is little to do: every format can be read, and a server goes on with format 4 or later as it is.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from offbeat.backup.backup import backup, check_is_server, file_problems
from offbeat.core.errors import RunError, UsageError
from offbeat.runs import checksums
from offbeat.runs.checksums import seal
from offbeat.runs.damage import database_error, reading
from offbeat.runs.database import open_database
from offbeat.runs.lock import lock
from offbeat.runs.record import RunRecord, read_run
from offbeat.runs.schema import CLIENT_METRICS, DATABASE, FORMAT, SERVED
from offbeat.runs.verify import verify


@dataclass(frozen=True)
class Step:
    """What makes a format of the one before it."""

    what: str
    apply: Callable[[sqlite3.Connection], None]


def _add_client_metrics(database: sqlite3.Connection) -> None:
    for statement in (CLIENT_METRICS, checksums.SCHEMA):
        database.execute(statement)


STEPS = {4: Step("adds the tables client_metrics and checksums", _add_client_metrics)}
"""The step from each format to the next."""


@dataclass(frozen=True)
class Upgrade:
    """An upgrade.

    Attributes:
        before: The format that the run had.
        after: The format that it has then.
        steps: What is done, in order; empty where nothing is.
        copy: The copy that was made before. None where nothing was changed.
        exposed: One line about files that others can read or write. None means that there are none.
    """

    before: int
    after: int
    steps: tuple[str, ...]
    copy: Path | None = None
    exposed: str | None = None


def upgrade(directory: Path, copies: Path, *, dry_run: bool = False) -> Upgrade:
    """Upgrade a run that no process writes.

    Args:
        directory: The run's directory.
        copies: The folder for a copy of it as it is now.
        dry_run: Whether nothing is changed.

    Raises:
        UsageError: It is no run, or a process is writing it.
        DamageError: It is damaged.
        RunError: This version cannot go on with it, or it cannot be written.
    """
    check_is_server(directory)
    record = read_run(directory)
    try:
        lock(directory).release()
    except OSError as error:
        raise UsageError(f"{directory} cannot be written: {error.strerror}") from None
    before = int(record.meta["format"])
    _check_goes_on(record, before)
    wanted = range(before, FORMAT) if before in STEPS else range(0)
    verification = verify(directory)
    for problem in file_problems(verification):
        raise RunError(f"{problem}; nothing was changed")
    steps = tuple(STEPS[number].what for number in wanted)
    planned = Upgrade(before, max(before, wanted.stop), steps, exposed=verification.exposed)
    if dry_run or not wanted:
        return planned
    copy = backup(directory, copies).folder
    held, path = lock(directory), directory / DATABASE
    try:
        with reading(path), closing(open_database(path, write=True)) as database:
            _apply(path, database, wanted)
    finally:
        held.release()
    return replace(planned, copy=copy)


def _check_goes_on(record: RunRecord, number: int) -> None:
    if record.served and record.status != "finished" and number < SERVED:
        raise RunError(
            f"{record.path} is of format {number}, in which a run is described in other words: finish it "
            f"with the version of Offbeat that began it ({record.meta.get('offbeat')}). Nothing was changed"
        )


def _apply(path: Path, database: sqlite3.Connection, wanted: range) -> None:
    try:
        with database:
            database.execute("BEGIN IMMEDIATE")
            for number in wanted:
                STEPS[number].apply(database)
            database.execute("UPDATE meta SET value = ? WHERE key = 'format'", (str(wanted.stop),))
            seal(database, "meta", ["format"])
    except sqlite3.Error as error:
        raise database_error(path, error, "write") from None
