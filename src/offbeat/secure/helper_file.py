"""The durable file of a helper: its key, its committee, and which tasks it has helped to release.

All of it is read when the file is opened, against its checksums: a task that damage has taken out of the file
could be released again.

It is never restored from a copy: a copy lacks the newest rows, so that an update could be released with two
different sets. The instance number, raised with each release, tells the server of one.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from offbeat.core.errors import UsageError, reason_of
from offbeat.core.events import TaskId
from offbeat.runs import checksums
from offbeat.runs.checksums import read_table, seal
from offbeat.runs.damage import damage, database_error, reading
from offbeat.runs.database import check_files, check_schema
from offbeat.runs.durable_files import sync_directory
from offbeat.runs.own_files import PRIVATE, open_own
from offbeat.secure.committee import SEED_BYTES, Committee

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS
    helper(id INTEGER PRIMARY KEY, key BLOB NOT NULL, committee BLOB, instance INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS
    released(task INTEGER PRIMARY KEY, release INTEGER NOT NULL, manifest BLOB NOT NULL);
{checksums.SCHEMA}"""


class TaskRelease(NamedTuple):
    """The release that a task was in, and the digest of its manifest."""

    release: int
    manifest: bytes


class HelperFile:
    """`helper.db`, which its owner alone can read, and one process at a time.

    Args:
        path: The file; one that is not there is made, with a fresh key.

    Attributes:
        key: The private key, 32 bytes.
        committee: The committee that this helper serves; None before there is one.
        instance: Number of releases.

    Raises:
        UsageError: It cannot be made, or another process uses it.
        RunError: It is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path, self.key, self.instance = path, b"", 0
        try:
            os.close(open_own(path, PRIVATE))
            check_files(path, write=True)
            sync_directory(path.parent)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {reason_of(error)}") from None
        self._database = sqlite3.connect(
            path.absolute(), timeout=0, isolation_level=None, check_same_thread=False
        )
        try:
            self._open()
        except BaseException:
            self._database.close()
            raise

    def _open(self) -> None:
        with reading(self._path):
            try:
                # EXTRA makes a commit durable with the removal of its rollback journal.
                self._database.executescript("PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = EXTRA")
                with self._commit() as database:
                    check_schema(database)
                    for statement in _SCHEMA.split(";"):
                        database.execute(statement)
                    released = list(read_table(database, "released"))
                    rows = list(read_table(database, "helper"))
                    if not rows:
                        if released:
                            raise damage(self._path, "has no key")
                        rows = [(0, os.urandom(SEED_BYTES), None, 0)]
                        database.execute("INSERT INTO helper VALUES (?, ?, ?, ?)", rows[0])
                        seal(database, "helper", [0])
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                    raise UsageError(f"{self._path} is in use by another process: stop it first") from None
                raise
            serialized: bytes | None
            _, self.key, serialized, self.instance = rows[0]
            self.committee = None if serialized is None else msgspec.json.decode(serialized, type=Committee)

    def __enter__(self) -> Self:
        """This file."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Let another process use the file."""
        self._database.close()

    def released(self, tasks: Iterable[TaskId]) -> dict[TaskId, TaskRelease]:
        """The earlier releases of those of these tasks that were in one."""
        query, releases = "SELECT release, manifest FROM released WHERE task = ?", {}
        with reading(self._path):
            for task in tasks:
                row = self._database.execute(query, (task,)).fetchone()
                if row is not None:
                    releases[task] = TaskRelease(*row)
        return releases

    def adopt(self, committee: Committee) -> None:
        """Make the committee durable. Raises `RunError` where that fails."""
        with self._writing() as database:
            database.execute("UPDATE helper SET committee = ?", (msgspec.json.encode(committee),))
            seal(database, "helper", [0])
        self.committee = committee

    def add(self, tasks: Iterable[TaskId], released: TaskRelease) -> None:
        """Make a release durable, before its share is given away. Raises `RunError` where that fails."""
        rows = [(task, *released) for task in tasks]
        with self._writing() as database:
            database.executemany("INSERT INTO released VALUES (?, ?, ?)", rows)
            database.execute("UPDATE helper SET instance = instance + 1")
            seal(database, "released", [task for task, *_ in rows])
            seal(database, "helper", [0])
        self.instance += 1

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._commit() as database:
                yield database
        except sqlite3.Error as error:
            raise database_error(self._path, error, "write") from None

    @contextmanager
    def _commit(self) -> Iterator[sqlite3.Connection]:
        """A transaction, which is committed at the end or leaves nothing."""
        database = self._database
        database.execute("BEGIN EXCLUSIVE")
        try:
            yield database
            database.execute("COMMIT")
        finally:
            if database.in_transaction:
                database.execute("ROLLBACK")
