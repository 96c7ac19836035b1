"""The state directory of a deployed run: a run's directory whose every update is durable.

One transaction holds an update and the journal's rows of its arrival and of all it caused, so that one fsync
is enough; a large update is written to a file beside (`update_log`) and fsynced before. The model is written
now and then only: after a crash it is the last checkpoint's, with the updates that arrived since taken in
once more, in the order of the journal.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import torch

from offbeat.core.buffers import Finalizer, unchanged
from offbeat.core.errors import RunError
from offbeat.core.events import TaskId
from offbeat.core.journal import Row
from offbeat.core.learner import LocalResult
from offbeat.core.model import Tensors
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.effects import Effects, SiteRow
from offbeat.net.server.update_log import UpdateLog, read_update
from offbeat.runs.client_states import ClientStates
from offbeat.runs.files import pack_tensors, unpack_tensors
from offbeat.runs.record import RunRecord, read_run
from offbeat.runs.restore import restore_model
from offbeat.runs.store import RunStore, Statement

CHECKPOINT_SECONDS = 30.0
MOST_LOGGED = 2**30  # bytes of updates between two checkpoints
SMALL = 2**18  # bytes of an update up to which the database takes it faster than the file
MOST_SMALL = 2**25  # bytes of small updates between two checkpoints: the database keeps the space they took
_TABLES = (
    "CREATE TABLE IF NOT EXISTS sites(name TEXT PRIMARY KEY, client INTEGER NOT NULL UNIQUE, labels TEXT)",
    "CREATE TABLE IF NOT EXISTS updates(task INTEGER PRIMARY KEY, tensors BLOB, begin INT, bytes INT)",
)
Logged = tuple[TaskId, bytes | None, int | None, int | None]
"""An update's row: its tensors if it is small, else where the file has them and how many bytes."""
_FORGET_UPDATES: Statement = ("DELETE FROM updates", [()])


class DurableStore:
    """The writing end of a state directory; one process at a time has it.

    `complete` makes of the last global model the final one.
    """

    def __init__(
        self, store: RunStore, pause: float = CHECKPOINT_SECONDS, complete: Finalizer = unchanged
    ) -> None:
        self.directory, self._complete = store.directory, complete
        self._store, self._pause = store, pause
        self._least_pause = pause
        self._logged, self._small, self._saved = 0, 0, time.monotonic()
        try:
            self._store.flush({}, [(table, [()]) for table in _TABLES])
            self._log = UpdateLog(self.directory)
        except BaseException as error:
            self._store.close()
            if isinstance(error, OSError):
                raise RunError(f"cannot write to {self.directory}: {error}") from None
            raise

    @classmethod
    def create(
        cls,
        directory: Path,
        meta: Mapping[str, Any],
        coordinator: Coordinator,
        pause: float = CHECKPOINT_SECONDS,
        complete: Finalizer = unchanged,
    ) -> Self:
        """Begin a state directory, with the initial model in it; refuses one that holds a run already."""
        state = cls(RunStore.create(directory, meta, []), pause, complete)
        try:
            state.checkpoint(coordinator)
        except BaseException:
            state.close()
            raise
        return state

    @classmethod
    def reopen(
        cls,
        directory: Path,
        coordinator: Coordinator,
        pause: float = CHECKPOINT_SECONDS,
        complete: Finalizer = unchanged,
    ) -> Self:
        """Go on with a state directory: brings the coordinator, which must be new, to where it was.

        Raises `RunError` where the journal cannot be repeated or a file is missing.
        """
        state = cls(RunStore.reopen(directory), pause, complete)  # first: nobody else may write from here on
        try:
            recover(read_run(directory), coordinator)
            state._store.set_meta({"status": "running"})
            state.checkpoint(coordinator)
        except BaseException:
            state.close()
            raise
        return state

    def commit(self, *outcomes: Effects) -> None:
        """Make outcomes durable, one after the other. Raises `RunError` where that fails: then none is."""
        for outcome in outcomes:
            for row in outcome.rows:
                self._store.row(row)
            for metric in outcome.metrics:
                self._store.metric(metric)
        updates = {task: update for outcome in outcomes for task, update in outcome.updates.items()}
        sites = [site for outcome in outcomes for site in outcome.sites.values()]
        try:
            log: Statement = (
                "INSERT OR REPLACE INTO updates VALUES (?, ?, ?, ?)",
                self._write_updates(updates),
            )
            self._store.flush(_meta(outcomes[-1]), [*_register(sites), log])
        except (OSError, RunError) as error:
            what = error if isinstance(error, RunError) else f"cannot write to {self.directory}: {error}"
            raise RunError(
                f"{what}. No acknowledged update is lost: free space, or repair it, and restart the server"
            ) from None

    def _write_updates(self, updates: Mapping[TaskId, LocalResult]) -> list[Logged]:
        """Write the large ones to the file; returns the rows of all, for the transaction."""
        rows: list[Logged] = []
        written = False
        for task, result in updates.items():
            tensors = _update_tensors(task, result)
            size = sum(tensor.nbytes for tensor in tensors.values())
            self._logged += size
            if size <= SMALL and self._small + size <= MOST_SMALL:
                self._small += size
                rows.append((task, pack_tensors(tensors), None, None))
            else:
                rows.append((task, None, *self._log.append(tensors)))
                written = True
        if written:
            self._log.sync()
        return rows

    def due(self, model_bytes: int) -> bool:
        """Is it time for a checkpoint?"""
        pause = time.monotonic() - self._saved
        return bool(self._logged) and (pause > self._pause or self._logged > MOST_LOGGED + 16 * model_bytes)

    def checkpoint(self, coordinator: Coordinator) -> None:
        """Write the tensors as they are now; forget the updates and files that are not needed any more."""
        begun = time.monotonic()
        states = ClientStates(self.directory)
        self._store.checkpoint(coordinator.tensors, states, coordinator.now, [_FORGET_UPDATES])
        self._log.clear()  # now that nothing in it is named
        self._logged, self._small, self._saved = 0, 0, time.monotonic()
        self._pause = max(self._least_pause, 20 * (self._saved - begun))  # at most 5 % of the time

    def finish(self, coordinator: Coordinator, summary: Mapping[str, Any]) -> None:
        """The run has ended: its final model, by tensor names."""
        model, reason = self._complete(coordinator.tensors.model), coordinator.stopped or ""
        self._store.finish(model, coordinator.now, reason, summary, [_FORGET_UPDATES])
        self._log.delete()
        self.close()

    def abandon(self, status: str) -> None:
        """Leave the run as it is, "interrupted" or "failed"; it can go on."""
        self._log.close()
        self._store.abandon(status)

    def close(self) -> None:
        """Let the directory go."""
        self._log.close()
        self._store.close()


def recover(record: RunRecord, coordinator: Coordinator) -> None:
    """Bring a new coordinator to where a run's record ends."""
    checkpoint = record.checkpoint()
    if checkpoint is None:
        raise RunError(f"{record.path} has no checkpoint: restore the directory from a copy")
    for name, client, labels in _sites(record):
        coordinator.registry.add(name, client).labels = tuple(json.loads(labels)) if labels else None
    restored = False
    for rows in _groups(record.rows()):
        if not restored and rows[0].seq >= checkpoint.journal:
            restore_model(coordinator.tensors, coordinator.server, record.path, checkpoint)
            restored = True
        coordinator.replay(rows, _loader(record, rows[0]) if restored else None)
    if not restored:
        restore_model(coordinator.tensors, coordinator.server, record.path, checkpoint)
    for metric in record.evaluations():
        coordinator.replay_evaluation(metric)
    coordinator.rejected.update(record.meta.get("rejected", {}))
    coordinator.end_replay(record.duration)


def _groups(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Each event with its commands."""
    group: list[Row] = []
    for row in rows:
        if row.kind == "event" and group:
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def _loader(record: RunRecord, row: Row) -> Callable[[TaskId], LocalResult]:
    def load(task: TaskId) -> LocalResult:
        saved = _saved_update(record, task)
        metrics = {k: v for k, v in (row.data or {}).items() if k != "seconds"}
        return LocalResult(
            saved["delta"], saved["integers"], metrics, float(saved["lr"][0]), saved.get("shared")
        )

    return load


def _saved_update(record: RunRecord, task: TaskId) -> Tensors:
    """An update's tensors: from the database if it was small, else from the file."""
    for data, begin, size in record.select(
        "SELECT tensors, begin, bytes FROM updates WHERE task = ?", (task,)
    ):
        saved = read_update(record.path, begin, size) if data is None else unpack_tensors(data)
        if int(saved["task"]) == task:
            return saved
    raise RunError(f"{record.path} lacks the update of task {task}: restore it from a copy made whole")


def _sites(record: RunRecord) -> list[tuple[str, int, str | None]]:
    return list(record.select("SELECT name, client, labels FROM sites ORDER BY client"))


def _register(sites: Iterable[SiteRow]) -> list[Statement]:
    """What keeps the sites that are new, or have other data than before."""
    rows = [(s.name, s.client, s.samples, json.dumps(s.labels) if s.labels else None) for s in sites]
    names = [(name, client, labels) for name, client, _, labels in rows]
    clients = [(client, samples, labels) for _, client, samples, labels in rows]
    return [
        ("INSERT OR REPLACE INTO sites VALUES (?, ?, ?)", names),
        ("INSERT OR REPLACE INTO clients VALUES (?, ?, ?)", clients),
    ]


def _meta(outcome: Effects) -> dict[str, Any]:
    return {"duration": outcome.now, "clients": outcome.clients, "rejected": dict(outcome.rejected)}


def _update_tensors(task: TaskId, result: LocalResult) -> Tensors:
    tensors = {
        "task": torch.tensor([task]),
        "delta": result.delta,
        "integers": result.integers,
        "lr": torch.tensor([result.lr], dtype=torch.float64),
    }
    return tensors if result.shared is None else {**tensors, "shared": result.shared}
