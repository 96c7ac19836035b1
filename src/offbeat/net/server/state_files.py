"""The files of a state directory, as one process writes them: database, large updates, secrets, best version.

A server writes one such directory, and another one if it has a mirror. What is to be written is plain data,
so that both get the same.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from offbeat.core.errors import RunError, reason_of
from offbeat.core.events import TaskId
from offbeat.core.global_model import GlobalModel
from offbeat.core.good_version import GoodVersion
from offbeat.core.journal import Row
from offbeat.core.model import Model, Tensors
from offbeat.core.release import Release
from offbeat.net.secure.release_seeds import ReleaseSeed, ReleaseSum, open_secrets
from offbeat.net.server.stored_updates import NEWEST, UPDATES
from offbeat.runs.checksums import Key
from offbeat.runs.client_states import ClientStates
from offbeat.runs.durable_files import sync_directory, write_pieces
from offbeat.runs.own_files import open_own
from offbeat.runs.packing import packed_pieces, signed
from offbeat.runs.schema import ClientMetric, Metric
from offbeat.runs.store import RunStore, Statement

Logged = tuple[TaskId, bytes | None, int | None, int | None]
"""An update's row: its tensors if it is small, else where the file has them and how many bytes."""
MIRROR_OF = "mirror_of"
"""The entry of the table `meta` in a mirror: the rows that both directories have."""


# `fdatasync` is enough, but not every system has it.
_sync = getattr(os, "fdatasync", os.fsync)


class Commit(Struct, frozen=True):
    """What is made durable at once.

    Attributes:
        updates: Each update: packed if it is small; None means that `StateFiles.log` has written it.
        best: Evaluations that were better than all before, with their versions, complete.
        good: Versions that a rollback goes back to.
        statements: Other statements of the transaction.
        changed: Keys of the rows that these have changed, as of `RunStore.flush`.
    """

    rows: list[Row]
    metrics: list[tuple[Metric, list[ClientMetric]]]
    best: list[tuple[Metric, Model]]
    good: list[GoodVersion]
    seeds: list[ReleaseSeed]
    sums: list[ReleaseSum]
    updates: dict[TaskId, bytes | None]
    statements: list[Statement]
    meta: dict[str, Any]
    changed: dict[str, list[Key]] = field(default_factory=dict)


class StateFiles:
    """The writing end of the files of a state directory, whose lock it holds.

    Args:
        store: The run's database and checkpoints.
        release: How the versions of its run are made.
        mirrors: The directory of which this one is a mirror. None means that it is none.
        keep: Whether the updates that are in the model of a checkpoint are kept.

    Attributes:
        store: The database and the checkpoints.
        directory: The directory.
        secrets: Seeds and sums of releases.
        keep: As given.

    Raises:
        UsageError: The files cannot be written.
        RunError: They are damaged.
    """

    def __init__(
        self, store: RunStore, release: Release, mirrors: Path | None = None, keep: bool = False
    ) -> None:
        self.store, self.directory, self.mirrors = store, store.directory, mirrors
        self.keep = keep
        # Where the large updates are that no commit has made durable yet.
        self._logged: dict[TaskId, tuple[int, int]] = {}
        with ExitStack() as on_error:
            try:
                self._log = UpdateLog(self.directory)
            except OSError as error:
                raise RunError(f"cannot write to {self.directory}: {reason_of(error)}") from None
            on_error.callback(self._log.close)
            self.secrets = open_secrets(self.directory, release)
            on_error.pop_all()

    def log(self, task: TaskId, update: Tensors) -> None:
        """Write a large update, which a commit makes durable. Any thread may call it while another commits.

        Raises `OSError`.
        """
        self._logged[task] = self._log.append(update)

    def commit(self, commit: Commit) -> None:
        """Make a commit durable. Raises `RunError` or `OSError`; then none of it is."""
        if self.store.best is not None:
            for metric, model in commit.best:
                self.store.best.keep(metric, model)
        for good in commit.good:
            self.store.write_version(good)
        self.secrets.add(commit.seeds, commit.sums)
        logged: Statement = (
            f"INSERT OR REPLACE INTO {NEWEST} VALUES (?, ?, ?, ?)", self._rows_of(commit.updates)
        )  # fmt: skip
        for row in commit.rows:
            self.store.row(row)
        for metric, clients in commit.metrics:
            self.store.metric(metric, clients)
        self.store.flush(commit.meta | self._told(), [logged, *commit.statements], commit.changed)
        for task in commit.updates:
            self._logged.pop(task, None)

    def _rows_of(self, updates: Mapping[TaskId, bytes | None]) -> list[Logged]:
        """The rows of updates, for the transaction; what the file has of them is durable then."""
        if any(update is None for update in updates.values()):
            self._log.sync()
        return [
            (task, None, *self._logged[task]) if update is None else (task, update, None, None)
            for task, update in updates.items()
        ]

    def _told(self) -> dict[str, Any]:
        """In a mirror, which rows were durable in both directories before this commit: all before it."""
        if self.mirrors is None:
            return {}
        return {MIRROR_OF: {"directory": str(self.mirrors), "rows": self.store.length}}

    def execute(self, statements: Iterable[Statement]) -> None:
        """Execute statements in a transaction of their own. Raises `RunError`."""
        self.store.execute(statements)

    def checkpoint(self, tensors: GlobalModel, duration: float, statements: Iterable[Statement]) -> None:
        """Write the tensors as they are now; forget what is not needed any more. Raises `RunError`."""
        self.store.checkpoint(tensors, ClientStates(self.directory), duration, statements)
        self.secrets.forget()
        if not self.keep:
            self._log.clear()  # now that nothing in it is named

    def finish(
        self,
        model: Model,
        duration: float,
        reason: str,
        summary: Mapping[str, Any],
        statements: Iterable[Statement],
        last: GlobalModel | None,
    ) -> None:
        """End the run, as `RunStore.finish` does. Raises `RunError`."""
        kept = None if last is None else (last, ClientStates(self.directory))
        self.store.finish(model, duration, reason, summary, statements, kept)
        if not self.keep:
            self._log.delete()
        self.secrets.delete()

    def abandon(self, status: str) -> None:
        """Leave the run as it is, "interrupted" or "failed"; it can go on."""
        self.secrets.close()
        self._log.close()
        self.store.abandon(status)

    def close(self) -> None:
        """Release the directory."""
        self.secrets.close()
        self._log.close()
        self.store.close()


class UpdateLog:
    """The writing end of the file of large updates. What it holds already is kept until it is cleared.

    The file is written from its start again after each checkpoint: blocks that a disk has given once are
    written several times faster than new ones. One fsync is enough for all updates of a batch. An update is a
    safetensors file within this one; what the database names is not written over.

    Args:
        directory: The state directory.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / UPDATES
        self._file = open_own(self._path)
        self._end = os.fstat(self._file).st_size
        sync_directory(directory)

    def append(self, tensors: Tensors) -> tuple[int, int]:
        """Write an update, which is durable after `sync`.

        Args:
            tensors: The update's tensors by name.

        Returns:
            Where it begins, and its number of bytes.

        Raises:
            OSError: It cannot be written, such as on a full disk; then nothing of it is in the file.
        """
        begin = os.lseek(self._file, self._end, os.SEEK_SET)
        write_pieces(self._file, packed_pieces(tensors, signed(tensors, {})))
        self._end = os.lseek(self._file, 0, os.SEEK_CUR)
        return begin, self._end - begin

    def sync(self) -> None:
        """Make durable what was written."""
        _sync(self._file)

    def clear(self) -> None:
        """Begin at the start again: the database names nothing in the file any more."""
        self._end = 0

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def delete(self) -> None:
        """Delete the file, at the end of the run."""
        self.close()
        self._path.unlink(missing_ok=True)
