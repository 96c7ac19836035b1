"""The state directory of a deployed run: a run's directory whose every update is durable.

One transaction holds an update and the journal's rows of its arrival and of all it caused, so that one fsync
is enough; a large update is written to a file beside (`state_files`) and fsynced before. The model is
written now and then only: after a crash it is the last checkpoint's, with the updates that arrived since
taken in once more, in the order of the journal.
"""

import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offbeat.core.buffers import Finalizer, unchanged
from offbeat.core.errors import DamageError, RunError, UsageError, reason_of
from offbeat.core.events import TaskId, Version
from offbeat.core.global_model import GlobalModel
from offbeat.core.good_version import GoodVersion
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model, Tensors
from offbeat.net.audit import INSERT, SERVER, TABLE, AuditLog
from offbeat.net.audit_record import open_audit
from offbeat.net.monitor.snapshot import MirrorView
from offbeat.net.server import recovery_snapshot, stored_updates
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.driver import Hold
from offbeat.net.server.effects import Effects, LoggedUpdate, SiteRow
from offbeat.net.server.mirror import MIRROR, Act, Mirror, NoMirror
from offbeat.net.server.recovery import recover
from offbeat.net.server.recovery_snapshot import RecoverySnapshots
from offbeat.net.server.state_files import MIRROR_OF, Commit, StateFiles
from offbeat.runs.best import BestModel
from offbeat.runs.cached_vectors import CachedVectors
from offbeat.runs.checkpoint_tensors import read_version
from offbeat.runs.checksums import Key
from offbeat.runs.durable_files import make_directory
from offbeat.runs.extension import limits_meta
from offbeat.runs.packing import pack_tensors
from offbeat.runs.record import read_run
from offbeat.runs.schema import Metric
from offbeat.runs.store import RunStore, Statement

log = logging.getLogger(__name__)
CHECKPOINT_SECONDS = 30.0
MOST_LOGGED = 2**30  # bytes of updates between two checkpoints
SMALL = 2**18  # bytes of an update up to which the database takes it faster than the file
# Bytes of small updates between two checkpoints. The database keeps the space that they took.
MOST_SMALL = 2**25
MOST_ROWS = 10_000  # journal rows between two checkpoints
_TABLES = (
    "CREATE TABLE IF NOT EXISTS sites(name TEXT PRIMARY KEY, client INTEGER NOT NULL UNIQUE, labels TEXT)",
    *stored_updates.TABLES,
    recovery_snapshot.TABLE,
)


class DurableStore:
    """The writing end of a state directory; one process at a time has it.

    Args:
        directory: The directory.
        coordinator: The run's coordinator, new. It is brought to where the directory's run was.
        meta: Entries of the table `meta` of a new run, which must be the directory's first; None means that
            the directory's run goes on.
        pause: Seconds between two checkpoints, at most.
        complete: Makes of a version the model that is written.
        audit: The run's audit, whose rows are made durable with all else. None means one that nobody adds to.
        mirror: The mirror, which gets all that the directory gets. None means none.

    Raises:
        UsageError: The directory cannot be written, holds a run already, or the best model by another metric.
        RunError: Its journal cannot be repeated, or a file is missing.
    """

    def __init__(
        self,
        directory: Path,
        coordinator: Coordinator,
        meta: Mapping[str, Any] | None = None,
        pause: float = CHECKPOINT_SECONDS,
        complete: Finalizer = unchanged,
        audit: AuditLog | None = None,
        mirror: Mirror | None = None,
    ) -> None:
        self.directory, self.complete = directory, complete
        self.audit = audit or AuditLog()
        self._pause = self._least_pause = pause
        self._logged = self._small = self._rows = 0
        self._keep = coordinator.options.keep_updates
        self._snapshots = RecoverySnapshots(coordinator)
        self._saved = time.monotonic()
        self.mirror: Mirror = mirror or NoMirror()
        self.mirror.check(directory)
        self._told: MirrorView | None = self.mirror.view  # as the directory has it
        with ExitStack() as on_error:
            try:
                make_directory(directory)
            except OSError as error:
                raise UsageError(f"{directory} cannot be made: {reason_of(error)}") from None
            if meta is None:
                store = RunStore.reopen(directory)
            else:
                store = RunStore.create(directory, meta, [])
            # Nobody else writes until the store is closed.
            on_error.callback(store.close)
            # Whatever this directory was until now, it is served by itself.
            not_mirrored: Statement = ("DELETE FROM meta WHERE key = ?", [(MIRROR,), (MIRROR_OF,)])
            tables: list[Statement] = [(table, [()]) for table in (*_TABLES, TABLE)]
            store.flush({}, [*tables, not_mirrored], {"meta": [MIRROR, MIRROR_OF]})
            begun = "run.start" if meta is not None else "run.resume"
            open_audit(self.audit, read_run(directory), coordinator.info.run, begun)
            self._files = StateFiles(store, coordinator.tensors.release, keep=self._keep)
            on_error.callback(self._files.close)
            coordinator.driver.seeds.recorded = self._files.secrets.read()
            if coordinator.helpers is not None:
                coordinator.helpers.recorded = self._files.secrets.read_sums()
            coordinator.tensors.release.cache.keep_in(
                CachedVectors(directory, coordinator.options.cache_memory)
            )
            if meta is None:
                record, until = read_run(directory), coordinator.experiment.until
                recover(record, coordinator, self._snapshots)
                limits = limits_meta(until, record.recipe)
                if record.status == "finished":
                    log.info("the run, which had ended (%s), goes on under other limits", record.stop_reason)
                    store.go_on(limits)
                store.set_meta({"status": "running", **limits})
            if (name := coordinator.experiment.evaluate.keep_best) is not None:
                named = coordinator.evaluations.named(name)
                store.best = BestModel(named, directory, _evaluated(directory))
            on_error.callback(self.mirror.end, StateFiles.close)
            self.checkpoint(coordinator)
            coordinator.driver.log_update = self._log_update
            on_error.pop_all()

    def commit(self, *batches: Effects) -> None:
        """Make the effects of batches durable, one after the other.

        Raises:
            RunError: They cannot be written; then none of them is durable.
        """
        with self._saying_what_to_do():
            self._on_both(_committing(self._commit_of(batches)))
            self.audit.written()

    def _log_update(self, task: TaskId, result: LocalResult) -> bytes | None:
        """Write an update, which the commit of its event makes durable; returns its bytes if it is small.

        Raises:
            RunError: It cannot be written.
        """
        tensors = _update_tensors(task, result)
        size = sum(tensor.nbytes for tensor in tensors.values())
        self._logged += size
        if size <= SMALL and self._small + size <= MOST_SMALL:
            self._small += size
            return pack_tensors(tensors)
        with self._saying_what_to_do():
            self._write_both(lambda files: files.log(task, tensors))
        return None

    @contextmanager
    def _saying_what_to_do(self) -> Iterator[None]:
        """Raise what cannot be written as a `RunError` for an operator."""
        try:
            yield
        except DamageError:
            raise
        except (OSError, RunError) as error:
            where = "" if isinstance(error, RunError) else f"cannot write to {self.directory}: "
            raise RunError(
                f"{where}{reason_of(error)}. No acknowledged update is lost: free space, or repair it, "
                f"and restart the server{self._or_its_mirror}"
            ) from None

    @property
    def _or_its_mirror(self) -> str:
        """What else an operator can do where the directory cannot be written."""
        view = self.mirror.view
        return "" if view is None or view.problem else f", or serve the mirror, with --state {view.directory}"

    def _write_both(self, act: Act) -> None:
        """Write to the directory and to its mirror at the same time; returns when both have it."""
        written = self.mirror.write(act)
        act(self._files)
        written()

    def _on_both(self, act: Act) -> None:
        """Write to both, and record what has become of the mirror."""
        self._write_both(act)
        self._tell_mirror()

    def _tell_mirror(self) -> None:
        """Record what has become of the mirror, in the directory and in the audit."""
        if (view := self.mirror.view) == self._told:
            return
        self._told = view
        assert view is not None
        self._files.store.set_meta({MIRROR: {"directory": view.directory, "problem": view.problem}})
        status = "completed" if view.problem is None else "failed"
        self.audit.record(SERVER, {"action": "mirror", "directory": view.directory}, status)

    def _commit_of(self, batches: tuple[Effects, ...]) -> Commit:
        """What makes the effects durable."""
        rows = [row for effects in batches for row in effects.rows]
        self._rows += len(rows)
        sites = [site for effects in batches for site in effects.sites.values()]
        clients: list[Key] = [site.client for site in sites]
        return Commit(
            rows=rows,
            metrics=[
                (metric, [c for c in effects.client_metrics if c.evaluation == metric.seq])
                for effects in batches
                for metric in effects.metrics
            ],
            best=[found for effects in batches for found in self._better(effects)],
            good=[effects.good for effects in batches if effects.good is not None],
            seeds=[seed for effects in batches for seed in effects.seeds],
            sums=[own for effects in batches for own in effects.sums],
            updates={task: _packed(own) for effects in batches for task, own in effects.updates.items()},
            statements=[*_register(sites), (INSERT, self.audit.take())],
            meta=batches[-1].meta,
            changed={"sites": clients, "clients": clients},
        )

    def _better(self, effects: Effects) -> Iterator[tuple[Metric, Model]]:
        """Evaluations that are better than all before, with their versions."""
        best = self._files.store.best
        for metric, model in zip(effects.metrics, effects.evaluated, strict=True):
            if best is not None and best.improves(metric):
                complete = self.complete(model)
                best.keep(metric, complete)
                yield metric, complete

    def write_audit(self) -> None:
        """Make the audit's rows durable, where no other commit does. Raises `RunError`."""
        if rows := self.audit.take():
            self._on_both(lambda files: files.execute([(INSERT, rows)]))
            self.audit.written()

    def due(self, model_bytes: int) -> bool:
        """Whether it is time for a checkpoint of a model of so many bytes."""
        pause = time.monotonic() - self._saved
        much = self._logged > MOST_LOGGED + 16 * model_bytes or self._rows > MOST_ROWS
        behind = self._told is not None and self._told.problem is not None
        return much or ((bool(self._logged) or behind) and pause > self._pause)

    def checkpoint(self, coordinator: Coordinator) -> None:
        """Write the tensors as they are now; forget the updates and files that are not needed any more.

        Not while a release waits for its sum: the version of the journal is not there yet.
        """
        if coordinator.driver.hold is Hold.RELEASE:
            return
        begun = time.monotonic()
        forget = stored_updates.at_checkpoint(self._keep)
        others = [*forget, (INSERT, self.audit.take()), *self._snapshots.statements()]
        self._on_both(lambda files: files.checkpoint(coordinator.tensors, coordinator.now, others))
        self.audit.written()
        self._leave_good_version(coordinator.tensors)
        coordinator.driver.seeds.recorded = {}
        if coordinator.helpers is not None:
            coordinator.helpers.recorded = {}
        self._logged, self._small, self._rows, self._saved = 0, 0, 0, time.monotonic()
        # Checkpoints take at most 5 % of the time.
        self._pause = max(self._least_pause, 20 * (self._saved - begun))
        self.mirror.renew(self._files, coordinator.tensors.release)
        self._tell_mirror()

    def _leave_good_version(self, tensors: GlobalModel) -> None:
        """Leave the content of the good version in its file, which the checkpoint has written or found.

        The file stays until a checkpoint names another version.
        """
        if tensors.good is not None:
            version = tensors.good.version
            load = partial(read_version, tensors.model.layout, self.directory, version)
            tensors.good = GoodVersion(version, load)

    def finish(self, coordinator: Coordinator, summary: Mapping[str, Any]) -> Model:
        """End the run: write its final model, by tensor names, and its summary; returns the model."""
        model, reason = self.complete(coordinator.tensors.model), coordinator.stopped or ""
        # The secrets of a run end with the run, so a secure one cannot go on under other limits.
        last = coordinator.tensors if coordinator.helpers is None else None
        self.audit.finish()
        forget = stored_updates.at_checkpoint(self._keep)
        others = [*forget, (INSERT, self.audit.take()), recovery_snapshot.DELETE]
        now = coordinator.now
        self._on_both(lambda files: files.finish(model, now, reason, summary, others, last))
        self.audit.written()
        self.audit.tell_head()
        self.audit.close()
        self.close()
        return model

    def abandon(self, status: str) -> None:
        """Leave the run as it is, "interrupted" or "failed"; it can go on."""
        self.audit.finish()
        with suppress(RunError):
            self.write_audit()
        self.audit.tell_head()
        self.audit.close()
        self._files.abandon(status)
        self.mirror.end(lambda files: files.abandon(status))

    def close(self) -> None:
        """Release the directory."""
        self._files.close()
        self.mirror.end(StateFiles.close)


def _committing(commit: Commit) -> Act:
    return lambda files: files.commit(commit)


def _packed(update: LoggedUpdate) -> bytes | None:
    assert not isinstance(update, LocalResult), "the store logs the updates of its own coordinator"
    return update


def _evaluated(directory: Path) -> Iterator[tuple[Version, float]]:
    """Version and time of each evaluation that a run has recorded."""
    yield from ((metric.version, metric.t) for metric in read_run(directory).evaluations())


def _register(sites: Iterable[SiteRow]) -> list[Statement]:
    """The statements that record sites that are new, or have other data than before."""
    rows = [(s.name, s.client, s.samples, json.dumps(s.labels) if s.labels else None) for s in sites]
    names = [(name, client, labels) for name, client, _, labels in rows]
    clients = [(client, samples, labels) for _, client, samples, labels in rows]
    return [
        ("INSERT OR REPLACE INTO sites VALUES (?, ?, ?)", names),
        ("INSERT OR REPLACE INTO clients VALUES (?, ?, ?)", clients),
    ]


def _update_tensors(task: TaskId, result: LocalResult) -> Tensors:
    # Through NumPy, a tensor of one number takes a fifth of the time.
    tensors = {
        "task": torch.from_numpy(np.array([task], np.int64)),
        "delta": result.delta,
        "integers": result.integers,
        "lr": torch.from_numpy(np.array([result.lr], np.float64)),
    }
    return tensors if result.shared is None else {**tensors, "shared": result.shared}
