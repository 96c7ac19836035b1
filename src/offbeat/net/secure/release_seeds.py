"""Secrets of the releases of a served run: seeds of their noise, and sums of masked updates.

A seed is 32 fresh bytes, which nobody else ever knows.

A seed is in `secrets.db` before anything made of its release is durable, published or sent. So a server that
dies makes the same release again with the same noise: with fresh noise it would be released twice. A seed
goes with the updates it was drawn for, and is never used for others: the difference of two sums with the same
noise has none. It is forgotten once a checkpoint has the version that came of it. So are the sums, which
helpers tell once.
"""

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from hashlib import shake_256
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.json import Decoder

from offbeat.core.commands import Aggregate
from offbeat.core.errors import RunError, UsageError, reason_of
from offbeat.core.events import TaskId, Version
from offbeat.core.privacy.sums import Integers
from offbeat.core.release import EachUpdate, Release
from offbeat.core.schedule import Task
from offbeat.runs import checksums
from offbeat.runs.checksums import read_table, seal
from offbeat.runs.damage import database_error, reading
from offbeat.runs.database import open_database
from offbeat.runs.durable_files import sync_directory
from offbeat.runs.own_files import PRIVATE, open_own

SECRETS = "secrets.db"
SEED_BYTES = 32
_TABLES = (
    "CREATE TABLE IF NOT EXISTS seeds(version INTEGER PRIMARY KEY, tasks TEXT, seed BLOB);"
    "CREATE TABLE IF NOT EXISTS sums(version INTEGER PRIMARY KEY, tasks TEXT, total BLOB);" + checksums.SCHEMA
)


class ReleaseSeed(Struct, frozen=True):
    """The seed of a release: the version it makes, and the tasks whose updates it has."""

    version: Version
    tasks: tuple[TaskId, ...]
    seed: bytes

    def __repr__(self) -> str:
        """Without the seed."""
        return f"ReleaseSeed(version={self.version}, tasks={self.tasks})"


class ReleaseSum(Struct, frozen=True):
    """S of a release of masked updates: the version it makes, the tasks, and S in grid steps."""

    version: Version
    tasks: tuple[TaskId, ...]
    total: Integers

    def __repr__(self) -> str:
        """Without the sum."""
        return f"ReleaseSum(version={self.version}, tasks={self.tasks})"


class FreshSeeds:
    """Draws the seeds, and gives those of an earlier process where its releases are repeated.

    Args:
        draw: Draws a number of random bytes.

    Attributes:
        recorded: The seeds that an earlier process has recorded, by version.
        repeating: Whether recorded releases are being repeated: then nothing is drawn.
    """

    def __init__(self, draw: Callable[[int], bytes] = os.urandom) -> None:
        self._draw = draw
        self.recorded: dict[Version, ReleaseSeed] = {}
        self.repeating = False
        self._drawn: list[ReleaseSeed] = []
        self._current: ReleaseSeed | None = None

    def noise(self, release: Aggregate) -> bytes:
        """The seed of a release.

        Raises:
            RunError: The release is repeated, and its seed is not there, or is of other updates.
        """
        current, names = self._current, (release.version, release.tasks)
        if current is None or (current.version, current.tasks) != names:
            found = self.recorded.get(release.version)
            if self.repeating:
                current = self._recorded(release)
            elif found is not None and found.tasks == release.tasks:
                # The sum of an earlier attempt was not durable, or not used.
                current = found
            else:
                current = ReleaseSeed(release.version, release.tasks, self._draw(SEED_BYTES))
                self._drawn.append(current)
            self._current = current
        return current.seed

    def rounding(self, task: Task, release: Aggregate) -> bytes:
        """The seed of an update's rounding, which follows from that of its release."""
        return shake_256(b"offbeat/1/task" + self.noise(release) + task.id.to_bytes(8, "big")).digest(32)

    def take(self) -> list[ReleaseSeed]:
        """The seeds drawn since the last call."""
        drawn, self._drawn = self._drawn, []
        return drawn

    def _recorded(self, release: Aggregate) -> ReleaseSeed:
        record = self.recorded.get(release.version)
        if record is None or record.tasks != release.tasks:
            what = "is not there" if record is None else "is of other updates"
            raise RunError(
                f"release {release.version} cannot be made again: its seed in {SECRETS} {what}, and with "
                "other noise it would be released twice: restore the directory as a whole, or begin a new run"
            )
        return record


class SecretsFile:
    """`secrets.db` of a state directory, which only its owner can read.

    Args:
        directory: The directory, which this process alone writes.

    Raises:
        UsageError: It cannot be written.
        RunError: It is damaged.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / SECRETS
        try:
            os.close(open_own(self._path, PRIVATE))
            sync_directory(directory)
        except OSError as error:
            raise UsageError(f"cannot write to {directory}: {reason_of(error)}") from None
        with reading(self._path):
            self._database = open_database(self._path, write=True)
        try:
            # EXTRA makes a commit durable with the removal of its rollback journal.
            self._database.executescript("PRAGMA synchronous = EXTRA; PRAGMA secure_delete = ON;" + _TABLES)
        except sqlite3.Error as error:
            self._database.close()
            raise database_error(self._path, error, "write") from None

    def read(self) -> dict[Version, ReleaseSeed]:
        """The seeds by version."""
        with reading(self._path):
            return {
                version: ReleaseSeed(version, _tasks(tasks), seed)
                for version, tasks, seed in self._read("seeds")
            }

    def read_sums(self) -> dict[Version, ReleaseSum]:
        """The sums by version."""
        with reading(self._path):
            return {
                version: ReleaseSum(version, _tasks(tasks), np.frombuffer(total, "<i4").astype(np.int64))
                for version, tasks, total in self._read("sums")
            }

    def _read(self, table: str) -> list[tuple[Any, ...]]:
        """The rows of a table, as they were written: with another seed a release would have two noises."""
        with reading(self._path):
            try:
                return list(read_table(self._database, table))
            finally:
                self._database.rollback()

    def add(self, seeds: Iterable[ReleaseSeed], sums: Iterable[ReleaseSum] = ()) -> None:
        """Make seeds and sums durable. Raises `RunError` where that fails, or a release has one already."""
        drawn = [(own.version, json.dumps(own.tasks), own.seed) for own in seeds]
        told = [(own.version, json.dumps(own.tasks), own.total.astype("<i4").tobytes()) for own in sums]
        if drawn or told:
            with self._writing() as database:
                for table, rows in (("seeds", drawn), ("sums", told)):
                    database.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", rows)
                    seal(database, table, [version for version, *_ in rows])

    def forget(self) -> None:
        """Delete all seeds and sums: a checkpoint has the versions made with them."""
        with self._writing() as database:
            for table in ("seeds", "sums", "checksums"):
                database.execute(f"DELETE FROM {table}")

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction of the database."""
        try:
            with self._database:
                yield self._database
        except sqlite3.Error as error:
            raise database_error(self._path, error, "write") from None

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def delete(self) -> None:
        """Delete the file of a run that has ended."""
        with closing(self._database):
            self.forget()
        delete_secrets(self._path.parent)


_tasks = Decoder(tuple[int, ...]).decode


class NoSecrets:
    """The secrets of a run without privacy: there are none."""

    def read(self) -> dict[Version, ReleaseSeed]:
        """No seed is recorded."""
        return {}

    def read_sums(self) -> dict[Version, ReleaseSum]:
        """No sum is recorded."""
        return {}

    def add(self, seeds: Iterable[ReleaseSeed], sums: Iterable[ReleaseSum] = ()) -> None:
        """Do nothing: such a run draws no seeds."""

    def forget(self) -> None:
        """Nothing is there."""

    def close(self) -> None:
        """Nothing is open."""

    def delete(self) -> None:
        """Nothing is there."""


def open_secrets(directory: Path, release: Release) -> SecretsFile | NoSecrets:
    """The secrets of a state directory.

    Args:
        directory: The directory, which this process alone writes.
        release: How the versions of its run are made.

    Raises:
        UsageError: They cannot be written.
        RunError: They are damaged.
    """
    return NoSecrets() if isinstance(release, EachUpdate) else SecretsFile(directory)


def delete_secrets(directory: Path) -> None:
    """Delete the remaining secrets of a run that has ended."""
    with suppress(OSError):
        (directory / SECRETS).unlink(missing_ok=True)
