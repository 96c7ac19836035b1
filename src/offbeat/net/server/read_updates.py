"""The tensors of stored updates, as they are aggregated."""

from collections.abc import Callable
from io import BufferedIOBase, BytesIO
from pathlib import Path

from offbeat.core.events import Arrived, TaskId
from offbeat.core.learner import DAMAGED, LocalResult
from offbeat.core.model import Tensors
from offbeat.net.server.stored_updates import Stored, UpdateDamageError, no_update, opened_update
from offbeat.runs.packing import read_packed
from offbeat.runs.record import RunRecord


def read_update(directory: Path, begin: int, size: int) -> Tensors:
    """Read a large update, each tensor into memory of its own.

    Args:
        directory: The state directory.
        begin: Where it begins, as `append` returned it.
        size: Its number of bytes.

    Raises:
        DamageError: The file does not reach so far, as in a copy made while the server was writing.
        UpdateDamageError: What is there is no update, or does not match its checksum.
    """
    with opened_update(directory, begin, size) as file:
        return _read(file, size)


def _read(file: BufferedIOBase, size: int) -> Tensors:
    try:
        return read_packed(file, size)
    except ValueError as error:
        raise UpdateDamageError(str(error)) from None


def read_stored(record: RunRecord, stored: Stored) -> Tensors:
    """The tensors of an update. Raises `DamageError` or `UpdateDamageError` for a damaged one."""
    data, begin, size = stored
    return read_update(record.path, begin, size) if data is None else _read(BytesIO(data), len(data))


def recorded_update(
    record: RunRecord, stored: Stored | None, on_damage: Callable[[TaskId, Exception], None], event: Arrived
) -> LocalResult:
    """The update that arrived; `DAMAGED` where its tensors are, which `on_damage` is told.

    Raises `DamageError` where the run has no such update.
    """
    if stored is not None:
        try:
            saved = read_stored(record, stored)
        except UpdateDamageError as error:
            on_damage(event.task, error)
            return DAMAGED
        if int(saved["task"]) == event.task:
            lr, shared = float(saved["lr"][0]), saved.get("shared")
            return LocalResult(saved["delta"], saved["integers"], event.metrics, lr, shared)
    raise no_update(record, event.task)
