"""The updates that a state directory has: where they are, and how they are read.

A small update is in the database. A large one is in the file `UPDATES`, and the database says where. A
checkpoint forgets the updates that are in its model, unless the server's options ask to keep them. With all
updates from the beginning on, the journal can be repeated from the initial model, such as without those of a
site that has withdrawn.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offbeat.core.errors import DamageError, OffbeatError
from offbeat.core.events import TaskId
from offbeat.runs.damage import damage, reading
from offbeat.runs.record import RunRecord
from offbeat.runs.schema import DATABASE
from offbeat.runs.tensor_format import TensorBytes, read_contents

if TYPE_CHECKING:
    from offbeat.runs.store import Statement

UPDATES = "updates.log"
"""Name of the file of large updates in a state directory."""
NEWEST, KEPT = "updates", "kept_updates"
"""The tables of the updates since the last checkpoint, and of those before it that are kept."""
TABLES = tuple(
    f"CREATE TABLE IF NOT EXISTS {name}(task INTEGER PRIMARY KEY, tensors BLOB, begin INT, bytes INT)"
    for name in (NEWEST, KEPT)
)
_KEEP: "Statement" = (f"INSERT OR REPLACE INTO {KEPT} SELECT * FROM {NEWEST}", [()])
_FORGET: "tuple[Statement, Statement]" = (f"DELETE FROM {NEWEST}", [()]), (f"DELETE FROM {KEPT}", [()])

Stored = tuple[Any, Any, Any]
"""An update's tensors if it is small, else where the file has them and how many bytes."""


class UpdateDamageError(OffbeatError):
    """Damage of an update's tensors, without which its run can go on."""


def at_checkpoint(keep: bool) -> "list[Statement]":
    """What becomes of the updates that are in the model of a checkpoint."""
    newest, kept = _FORGET
    return [_KEEP, newest] if keep else [newest, kept]


def has_kept_updates(record: RunRecord) -> bool:
    """Whether the file of large updates has some that are in the model of the checkpoint."""
    query = f"SELECT 1 FROM {KEPT} WHERE tensors IS NULL LIMIT 1"
    return record.has_table(KEPT) and next(record.select(query), None) is not None


class StoredUpdates:
    """The updates that a run has: those since its last checkpoint, and those that are kept.

    Args:
        record: The run.
    """

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._tables = [name for name in (NEWEST, KEPT) if record.has_table(name)]

    def tasks(self) -> set[TaskId]:
        """The tasks whose updates are there."""
        queries = [f"SELECT task FROM {name}" for name in self._tables]
        return {task for query in queries for (task,) in self._record.select(query)}

    def __iter__(self) -> Iterator[tuple[TaskId, Stored]]:
        for name in self._tables:
            query = f"SELECT task, tensors, begin, bytes FROM {name}"
            yield from ((task, (data, begin, size)) for task, data, begin, size in self._record.select(query))

    def find(self, task: TaskId) -> Stored | None:
        """Where the update of a task is; None where the run does not have it."""
        for name in self._tables:
            query = f"SELECT tensors, begin, bytes FROM {name} WHERE task = ?"
            if (found := next(self._record.select(query, (task,)), None)) is not None:
                return found[0], found[1], found[2]
        return None


def _contents(record: RunRecord, stored: Stored) -> TensorBytes:
    """What is stored of an update. Raises `DamageError` or `UpdateDamageError` for a damaged one."""
    data, begin, size = stored
    place = nullcontext(BytesIO(data)) if data is not None else opened_update(record.path, begin, size)
    with place as file:
        try:
            return read_contents(file, size if data is None else len(data))
        except ValueError as error:
            raise UpdateDamageError(str(error)) from None


@contextmanager
def opened_update(directory: Path, begin: int, size: int) -> Iterator[BufferedIOBase]:
    """Context with the file of large updates at the place of one.

    Args:
        directory: The state directory.
        begin: Where it begins.
        size: Its number of bytes.

    Raises:
        DamageError: The file does not reach so far, as in a copy made while the server was writing.
    """
    path = directory / UPDATES
    with reading(path), path.open("rb") as file:
        if not 0 <= begin <= begin + size <= os.fstat(file.fileno()).st_size:
            raise damage(path, "does not have what run.db says")
        file.seek(begin)
        yield file


def no_update(record: RunRecord, task: TaskId) -> DamageError:
    """The error of an update that is missing."""
    return damage(record.path / DATABASE, f"has no update of task {task}")


def damaged_updates(record: RunRecord) -> Iterator[str]:
    """A line for each stored update that is damaged or missing, with what to do."""
    if not record.has_table("updates"):
        return
    checkpoint = record.checkpoint()
    after = record.rows("event", after=checkpoint.journal - 1) if checkpoint is not None else ()
    missing = {row.task for row in after if row.name == "arrived"}
    for task, stored in StoredUpdates(record):
        missing.discard(task)
        path = record.path / (DATABASE if stored[0] is not None else UPDATES)
        try:
            saved = _contents(record, stored)
            if not saved.intact:
                raise ValueError("the tensors do not match their checksum")
            if (own := int.from_bytes(saved.data["task"], "little")) != task:
                raise ValueError(f"it is the one of task {own}")
        except DamageError as error:
            yield str(error)
        except (UpdateDamageError, ValueError, KeyError, TypeError, RuntimeError) as error:
            what = DamageError(
                path, f"has a damaged update of task {task} ({error})", "this update",
                "restore the directory from a copy, or serve it: the task is aggregated without it",
            )  # fmt: skip
            yield str(what)
    for task in sorted(task for task in missing if task is not None):
        yield str(no_update(record, task))
