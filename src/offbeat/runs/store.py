"""Writer of a run's directory: journal and metrics in SQLite, tensors in safetensors files.

Everything up to a checkpoint becomes durable at once: first the tensor files are written and
fsynced, then one SQLite transaction adds the rows and names the files, then files without a name in the
database are deleted. Whenever the process dies, the directory holds the last checkpoint, whole.
"""

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from filelock import BaseFileLock
from msgspec.structs import astuple
from torch import Tensor

from offbeat.core.client_cache import ClientCache
from offbeat.core.errors import RunError, UsageError, reason_of
from offbeat.core.global_model import GlobalModel
from offbeat.core.good_version import GoodVersion
from offbeat.core.journal import Row
from offbeat.core.metric_names import finite
from offbeat.core.model import Model, Tensors
from offbeat.runs import checksums
from offbeat.runs.best import BestModel
from offbeat.runs.cached_vectors import VECTOR
from offbeat.runs.checksums import Key, seal, seal_single_rows
from offbeat.runs.client_states import ClientStates
from offbeat.runs.columns import check_depth, check_meta
from offbeat.runs.damage import damage, database_error
from offbeat.runs.database import open_database
from offbeat.runs.durable_files import sync_directory
from offbeat.runs.files import ON_DEVICE, write_tensors
from offbeat.runs.lock import lock
from offbeat.runs.own_files import make_new
from offbeat.runs.processor import processor_name
from offbeat.runs.record import holds_run
from offbeat.runs.schema import (
    BEST,
    DATABASE,
    FORMAT,
    MODEL,
    SCHEMA,
    ClientMetric,
    Metric,
    cached_file,
    update_file,
    version_file,
)

_NEVER = object()
Statement = tuple[str, Iterable[tuple[Any, ...]]]
"""A query, and the rows of values to execute it with."""


class RunStore:
    """Writer of a run's directory, which holds its lock until it is closed.

    Attributes:
        directory: The directory.
        best: The best version so far, written before the rows that say so. None means that none is kept.
    """

    best: BestModel | None = None

    def __init__(self, directory: Path, database: sqlite3.Connection, held: BaseFileLock) -> None:
        self.directory = directory
        self._database = database
        self._lock = held
        self._rows: list[Row] = []
        self._metrics: list[Metric] = []
        self._client_metrics: list[ClientMetric] = []
        # The entries of `meta` that the last `flush` wrote: those that stay are not written again.
        self._flushed: dict[str, Any] = {}
        self._started = time.monotonic()
        database.execute("PRAGMA synchronous = FULL")
        self._journal_length, self._metrics_length = database.execute(
            "SELECT (SELECT coalesce(max(seq), -1) + 1 FROM journal), "
            "(SELECT coalesce(max(seq), -1) + 1 FROM metrics)"
        ).fetchone()
        begun = datetime.now(UTC).isoformat(timespec="seconds")
        self._session = database.execute("INSERT INTO sessions VALUES (?, 0, 0)", (begun,)).lastrowid
        database.commit()

    @classmethod
    def create(
        cls, directory: Path, meta: Mapping[str, Any], clients: Iterable[tuple[int, int, str | None]]
    ) -> Self:
        """Create a new run's directory.

        Args:
            directory: The directory, which may exist.
            meta: Entries of the table `meta`.
            clients: (client, number of samples, labels as JSON or None) of each client.

        Raises:
            UsageError: The directory holds a run already or cannot be written, or an entry is too large.
        """
        _check_readable(meta)
        with ExitStack() as undo:
            try:
                directory.mkdir(parents=True, exist_ok=True)
                held = lock(directory)
                undo.callback(held.release)
                if (directory / DATABASE).exists():
                    raise UsageError(
                        f"{directory} holds a run already: resume it, or choose another directory"
                    )
                if holds_run(directory):
                    raise damage(directory / DATABASE, "is missing")
                # A best model that is left here belongs to no run that is here.
                (directory / BEST).unlink(missing_ok=True)
                _make_database(directory, meta, clients)
                database = _connect(directory / DATABASE)
                undo.callback(database.close)
                store = cls(directory, database, held)
            except (OSError, sqlite3.Error) as error:
                raise UsageError(
                    f"cannot write a run to {directory} ({reason_of(error)}): "
                    "give a directory that this user can write"
                ) from None
            undo.pop_all()
        return store

    @classmethod
    def reopen(cls, directory: Path) -> Self:
        """Reopen the directory of an interrupted run; raises `UsageError` or `RunError` where it cannot."""
        with ExitStack() as undo:
            try:
                # The lock comes first: no other process may be writing.
                held = lock(directory)
                undo.callback(held.release)
                database = _connect(directory / DATABASE)
                undo.callback(database.close)
                # A copy need not be in this mode, in which whoever reads does not hold up the writer.
                database.execute("PRAGMA journal_mode = WAL")
                store = cls(directory, database, held)
                store.add_processor(processor_name())
            except OSError as error:
                raise UsageError(f"cannot write to {directory}: {reason_of(error)}") from None
            except sqlite3.Error as error:
                raise database_error(directory / DATABASE, error, "write") from None
            undo.pop_all()
        return store

    def add_processor(self, name: str) -> None:
        """Record that a kind of processor makes the run from here on, where the run does not name it yet.

        Args:
            name: The kind of processor, or of GPU.
        """
        found = self._database.execute("SELECT value FROM meta WHERE key = 'processors'").fetchone()
        try:
            known = [] if found is None else json.loads(found[0])
        except ValueError:
            # A reader of the run reports it.
            return
        if known and isinstance(known, list) and name not in known:
            self.set_meta({"processors": [*known, name]})

    @property
    def _length(self) -> int:
        """Number of journal rows, including those that are not durable yet."""
        return self._rows[-1].seq + 1 if self._rows else self._journal_length

    def row(self, row: Row) -> None:
        """Add a journal row; durable with the next checkpoint."""
        self._rows.append(row)

    @property
    def length(self) -> int:
        """Number of the journal rows that are durable."""
        return int(self._journal_length)

    def metric(self, metric: Metric, clients: Iterable[ClientMetric] = ()) -> None:
        """Add an evaluation, with what the clients have found; durable with the next checkpoint."""
        self._metrics.append(metric)
        self._client_metrics.extend(clients)

    def set_meta(self, values: Mapping[str, Any]) -> None:
        """Set entries of `meta`, at once. Raises `RunError` where they cannot be written."""
        self._flushed.clear()
        with self._transaction() as database:
            _put_meta(database, values)

    def execute(self, statements: Iterable[Statement]) -> None:
        """Execute statements in a transaction of their own; rows that wait for `flush` still wait.

        Raises:
            RunError: The database cannot be written.
        """
        with self._transaction() as database:
            for query, values in statements:
                database.executemany(query, values)

    def flush(
        self,
        meta: Mapping[str, Any],
        statements: Iterable[Statement] = (),
        changed: Mapping[str, Iterable[Key]] = {},
    ) -> None:
        """Make the rows so far durable, with entries of `meta` and other statements, all in one transaction.

        Their tensors are not: the caller keeps the means to restore them from the last checkpoint.

        Args:
            meta: Entries of the table `meta`.
            statements: Statements of the same transaction.
            changed: Keys of the rows that the statements have changed, by table, for tables with checksums.

        Raises:
            RunError: The best version or the database cannot be written; no row has become durable.
        """
        if self.best is not None:
            self.best.write()
        journal, metrics = self._length, self._metrics_length + len(self._metrics)
        with self._transaction() as database:
            database.executemany("INSERT INTO journal VALUES (?,?,?,?,?,?,?,?,?,?,?)", map(_json, self._rows))
            database.executemany("INSERT INTO metrics VALUES (?,?,?,?,?,?,?,?,?)", map(_json, self._metrics))
            rows = map(_json, self._client_metrics)
            database.executemany("INSERT INTO client_metrics VALUES (?,?,?,?)", rows)
            for query, values in statements:
                database.executemany(query, values)
            written: Mapping[str, Iterable[Key]] = {
                "journal": [row.seq for row in self._rows],
                "metrics": [metric.seq for metric in self._metrics],
                "client_metrics": [metric.evaluation for metric in self._client_metrics],
                **changed,
            }
            for table, keys in written.items():
                seal(database, table, keys)
            _put_meta(database, {k: v for k, v in meta.items() if self._flushed.get(k, _NEVER) != v})
            database.execute(
                "UPDATE sessions SET wall_seconds = ?, events = events + ? WHERE rowid = ?",
                (time.monotonic() - self._started, journal - self._journal_length, self._session),
            )
        self._journal_length, self._metrics_length = journal, metrics
        self._flushed.update(meta)
        self._rows.clear()
        self._metrics.clear()
        self._client_metrics.clear()
        if self.best is not None:
            self.best.publish()

    def checkpoint(
        self,
        tensors: GlobalModel,
        clients: ClientStates,
        duration: float,
        statements: Iterable[Statement] = (),
    ) -> None:
        """Write a checkpoint: make everything so far durable, so that the run can be resumed from here.

        Args:
            tensors: Model, versions in flight, held updates and memories.
            clients: States of the clients.
            duration: Seconds of the run's clock.
            statements: Statements of the same transaction.

        Raises:
            RunError: The checkpoint cannot be written; the last one is still whole.
        """
        row, files = self._write_checkpoint(tensors, clients)
        self.flush({"duration": duration}, [row, *statements], {"checkpoints": [1]})
        self._delete_except(files)

    def go_on(self, meta: Mapping[str, Any], evaluations: int | None = None) -> None:
        """Let a run that has ended go on from the checkpoint of its end.

        Args:
            meta: Entries of the table `meta`.
            evaluations: Number of evaluations before the checkpoint: what was evaluated because the run ended
                is forgotten. None means that all stay.

        Raises:
            RunError: The database cannot be written; the run has still ended.
        """
        ended = ("summary", "model")
        with self._transaction() as database:
            _put_meta(database, {"status": "running", "stop_reason": None, **meta})
            database.executemany("DELETE FROM meta WHERE key = ?", [(key,) for key in ended])
            seal(database, "meta", ended)
            if evaluations is not None:
                forgotten = range(evaluations, self._metrics_length)
                database.execute("DELETE FROM metrics WHERE seq >= ?", (evaluations,))
                database.execute("DELETE FROM client_metrics WHERE evaluation >= ?", (evaluations,))
                database.execute("UPDATE checkpoints SET metrics = ?", (evaluations,))
                for table in ("metrics", "client_metrics"):
                    seal(database, table, forgotten)
                seal(database, "checkpoints", [1])
                self._metrics_length = evaluations
        with suppress(OSError):
            (self.directory / MODEL).unlink(missing_ok=True)

    def _write_checkpoint(self, tensors: GlobalModel, clients: ClientStates) -> tuple[Statement, set[str]]:
        """Write the files of a checkpoint; returns the statement that records it, and the names."""
        states = clients.save()
        names = self._write_files(tensors)
        bases = {task: version for task, (version, _) in tensors.bases.items()}
        updates = {task: (u.task.base, u.lr, dict(u.metrics)) for task, u in tensors.updates.items()}
        fresh = {task: version for task, (version, _) in tensors.fresh.items()}
        data = {
            "state": names[0], "bases": bases, "fresh": fresh, "updates": updates,
            "clients": states, "client_bytes": clients.sizes(),
            "guard": tensors.guard.save() if tensors.guard else None,
            "good": tensors.good.version if tensors.good else None, "number": tensors.down,
            "cached": {client: astuple(entry) for client, entry in tensors.release.cache.entries().items()},
        }  # fmt: skip
        row = (self._length, self._metrics_length + len(self._metrics), tensors.version, json.dumps(data))
        statement = ("INSERT OR REPLACE INTO checkpoints VALUES (1, ?, ?, ?, ?)", [row])
        return statement, {*names, *states.values()}

    def write_version(self, good: GoodVersion) -> None:
        """Write the content of a version, durably. Raises `OSError` where it cannot be written."""
        path = self.directory / version_file(good.version)
        if not path.exists():
            content = _model_tensors(good.load())
            write_tensors(path, content, _devices(content))
            sync_directory(self.directory)

    def finish(
        self,
        model: Model,
        duration: float,
        stop_reason: str,
        summary: Mapping[str, Any],
        statements: Iterable[Statement] = (),
        last: tuple[GlobalModel, ClientStates] | None = None,
    ) -> None:
        """End the run: write its last rows and its final model, and a checkpoint of its end or none.

        Args:
            model: The final model, written by tensor names.
            duration: Seconds of the run's clock.
            stop_reason: Why the run ended.
            summary: Entry `summary` of the table `meta`.
            statements: Statements of the same transaction.
            last: What the run goes on from where it is given other limits: the tensors, and the clients'
                states. None means that it cannot go on.

        Raises:
            RunError: The model or the database cannot be written.
        """
        try:
            checksum = write_tensors(self.directory / MODEL, model.state_dict())
            sync_directory(self.directory)
        except OSError as error:
            raise RunError(f"cannot write the final model to {self.directory}: {reason_of(error)}") from None
        meta = {
            "duration": duration, "status": "finished", "stop_reason": stop_reason,
            "summary": _finite(summary), "model": checksum,
        }  # fmt: skip
        kept: Statement = "DELETE FROM checkpoints", [()]
        files = set[str]()
        if last is not None:
            kept, files = self._write_checkpoint(*last)
        self.flush(meta, [kept, *statements], {"checkpoints": [1]})
        self._delete_except(files)
        # It fails while another process is reading the database.
        with suppress(sqlite3.OperationalError):
            self._database.execute("PRAGMA busy_timeout = 0")
            # A database in this mode can be read on a read-only file system.
            self._database.execute("PRAGMA journal_mode = DELETE")

    def abandon(self, status: str, reason: str | None = None) -> None:
        """Close the run at its last checkpoint with a status, "interrupted", "diverged" or "failed".

        Where the status cannot be written (a full disk), it stays "running": the run can still be resumed,
        and the first error is the one to report.
        """
        with suppress(RunError):
            self.set_meta({"status": status, "stop_reason": reason})
        self.close()

    def close(self) -> None:
        """Close the database and release the lock. Rows after the last checkpoint are lost."""
        self._database.close()
        self._lock.release()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._database:
                yield self._database
        except sqlite3.Error as error:
            raise database_error(self.directory / DATABASE, error, "write") from None

    def _write_files(self, tensors: GlobalModel) -> list[str]:
        """Write the files that do not exist yet; the first name is the state's."""
        state = _model_tensors(tensors.model)
        state.update({f"aggregator.{k}": v for k, v in tensors.memory.items()})
        for i, memory in enumerate(tensors.step_memories):
            state.update({f"step.{i}.{k}": v for k, v in memory.items()})
        state.update({f"noise.{k}": v for k, v in tensors.release.memory.items()})
        files = {f"state-{self._length}.safetensors": state}
        for version, base in tensors.versions().items():
            files[version_file(version, base.number)] = _model_tensors(base)
        for task, update in tensors.updates.items():
            files[update_file(task)] = {"delta": update.delta, "integers": update.integers}
            if update.shared is not None:
                files[update_file(task)]["shared"] = update.shared
        try:
            for name, content in files.items():
                if not (self.directory / name).exists():
                    write_tensors(self.directory / name, content, _devices(content))
            cached = self._write_cached(tensors.release.cache)
            sync_directory(self.directory)
            if tensors.good is not None:
                self.write_version(tensors.good)
        except OSError as error:
            raise RunError(f"cannot write a checkpoint to {self.directory}: {reason_of(error)}") from None
        good = [] if tensors.good is None else [version_file(tensors.good.version)]
        return [*files, *good, *cached]

    def _write_cached(self, cache: ClientCache) -> list[str]:
        """Write the entries of the cache that no file has; returns the names of all."""
        tasks = {client: cached_file(entry.task) for client, entry in cache.entries().items()}
        for client, name in tasks.items():
            if not (self.directory / name).exists():
                write_tensors(self.directory / name, {VECTOR: cache.peek(client)})
        return list(tasks.values())

    def _delete_except(self, names: set[str]) -> None:
        """Delete the files that no checkpoint names; one that cannot be deleted is at the next checkpoint."""
        kept = names | {MODEL, BEST}
        for path in self.directory.iterdir():
            if path.suffix in (".safetensors", ".part") and path.name not in kept:
                with suppress(OSError):
                    path.unlink()


def _devices(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Metadata that names the tensors of a GPU; none where all are on the CPU."""
    there = sorted(name for name, tensor in tensors.items() if tensor.device.type != "cpu")
    return {ON_DEVICE: json.dumps(there)} if there else {}


def _model_tensors(model: Model) -> Tensors:
    return {"values": model.values, "integers": model.integers, "shared": model.shared}


def _make_database(
    directory: Path, meta: Mapping[str, Any], clients: Iterable[tuple[int, int, str | None]]
) -> None:
    """Create a new run's database atomically: made aside, then renamed."""
    part = directory / "run.part"
    for leftover in directory.glob("run.part*"):
        leftover.unlink()
    os.close(make_new(part))
    begun = {"format": FORMAT, "status": "running", "duration": 0.0, "stop_reason": None}
    values = {**begun, "processors": [processor_name()], **meta}
    # Closing the last connection moves the write-ahead log into the file.
    with closing(_connect(part)) as database:
        database.executescript(
            "PRAGMA synchronous = FULL; PRAGMA journal_mode = WAL;" + SCHEMA + checksums.SCHEMA
        )
        with database:
            database.executemany("INSERT INTO clients VALUES (?, ?, ?)", clients)
            seal(
                database, "clients", [client for (client,) in database.execute("SELECT client FROM clients")]
            )
            _put_meta(database, values)
    part.replace(directory / DATABASE)
    sync_directory(directory)


def _check_readable(meta: Mapping[str, Any]) -> None:
    """Check that what is written will be read. Raises `UsageError` for what is too long or too deep."""
    entries = json.loads(json.dumps(meta))
    try:
        check_meta(entries)
        for key, value in entries.items():
            check_depth(value, key)
    except ValueError as error:
        raise UsageError(f"the run cannot be recorded: {error}; give a shorter one") from None


def _put_meta(database: sqlite3.Connection, values: Mapping[str, Any]) -> None:
    rows = [(key, json.dumps(value)) for key, value in values.items()]
    database.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)
    seal_single_rows(database, "meta", rows)


def _connect(path: Path) -> sqlite3.Connection:
    try:
        return open_database(path, write=True)
    except ValueError as error:
        raise damage(path, f"cannot be read ({error})") from None


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers by name, with None for NaN and infinity, which JSON has not."""
    return {
        name: _finite(value) if isinstance(value, Mapping) else finite(value)
        for name, value in values.items()
    }


def _json(row: Row | Metric | ClientMetric) -> tuple[Any, ...]:
    *columns, data = astuple(row) if isinstance(row, Row) else row
    if isinstance(row, Metric) and data:
        data = _finite(data)
    return (*columns, json.dumps(data) if data else None)
