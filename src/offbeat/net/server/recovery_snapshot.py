"""Snapshot of a run's state as plain data, with which its server starts without repeating the journal.

A snapshot is written in the transaction of each checkpoint, so that both are of one moment. The journal
stays the source of truth: a snapshot about which there is any doubt is ignored, and the journal is repeated
instead. So its form is no part of a run's format. Nothing in it is code: it is MessagePack of declared types.
"""

import json
import logging
from hashlib import sha256

from msgspec import convert, msgpack
from xxhash import xxh3_128_hexdigest

from offbeat.core.saved_state import describe_types, state_type
from offbeat.core.schedule import Schedule
from offbeat.core.wrapper import Wrapper
from offbeat.net.server.coordinator import Coordinator, SavedRun
from offbeat.runs.record import Checkpoint, RunRecord
from offbeat.runs.store import Statement
from offbeat.version import __version__

log = logging.getLogger(__name__)
TABLE = """CREATE TABLE IF NOT EXISTS snapshot(
    id INTEGER PRIMARY KEY CHECK (id = 1), rows INTEGER NOT NULL, code TEXT NOT NULL, data BLOB NOT NULL,
    checksum TEXT NOT NULL
)"""
DELETE: Statement = ("DELETE FROM snapshot", [()])
_encode, _decode = msgpack.Encoder().encode, msgpack.Decoder(SavedRun).decode


class RecoverySnapshots:
    """Writes and reads the snapshot of a run.

    Args:
        coordinator: The run's coordinator.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._code = _code(coordinator)
        # Whether the log says already why there is no snapshot.
        self._told = False

    def statements(self) -> list[Statement]:
        """The statements that record the state as it is now, or that there is no snapshot of it."""
        try:
            data = _encode(self._coordinator.save())
        except (TypeError, OverflowError) as error:
            if not self._told:
                log.info("no snapshots, a restarted server repeats the journal: %s", error)
            self._told = True
            return [DELETE]
        rows = self._coordinator.driver.engine.rows
        checksum = _checksum(rows, self._code, data)
        row = (rows, self._code, data, checksum)
        return [
            ("INSERT OR REPLACE INTO snapshot VALUES (1, ?, ?, ?, ?)", [row]),
            # Beside those of other tables: who changes a snapshot by itself is found out.
            ("INSERT OR REPLACE INTO checksums VALUES ('snapshot', 1, ?)", [(checksum,)]),
        ]

    def restore(self, record: RunRecord, checkpoint: Checkpoint) -> bool:
        """Bring the coordinator to where it was at a checkpoint, if there is a snapshot without a doubt.

        Args:
            record: The run.
            checkpoint: Its checkpoint.

        Returns:
            Whether it was restored; else the coordinator is as it was before.
        """
        coordinator = self._coordinator
        try:
            if (data := self._read(record, checkpoint)) is None:
                return False
            before = coordinator.save()
            try:
                saved = _decode(data)
                coordinator.restore(saved)
                if _encode(coordinator.save()) != data:
                    raise ValueError("its values do not come back as they were saved")
                _check(coordinator, record, checkpoint)
                # What has happened since must follow from it, which shows before a tensor is touched.
                coordinator.driver.replay(record.rows(after=checkpoint.journal - 1), None)
                coordinator.restore(saved)
            except Exception:
                coordinator.restore(before)
                raise
        except Exception as error:
            # What a forged one can raise, and a schedule of a user's own, has no end.
            log.warning("snapshot ignored, the journal is repeated: %s", str(error) or repr(error))
            return False
        log.info("started from a snapshot: rows %d", checkpoint.journal)
        return True

    def _read(self, record: RunRecord, checkpoint: Checkpoint) -> bytes | None:
        """The data of the snapshot; None where there is none. Raises `ValueError` where it is not whole."""
        if not record.has_table("snapshot"):
            return None
        found = next(record.select("SELECT rows, code, data, checksum FROM snapshot"), None)
        if found is None:
            return None
        rows, code, data, checksum = convert(found, tuple[int, str, bytes, str])
        recorded = next(record.select("SELECT checksum FROM checksums WHERE part = 'snapshot'"), (None,))
        if not checksum == _checksum(rows, code, data) == recorded[0]:
            raise ValueError("it does not match its checksum")
        if code != self._code:
            raise ValueError("it is of another version of the code, or of other options")
        if rows != checkpoint.journal:
            raise ValueError(f"it is of {rows} rows, and the checkpoint of {checkpoint.journal}")
        return data


def _check(coordinator: Coordinator, record: RunRecord, checkpoint: Checkpoint) -> None:
    """Raises `ValueError` where a state is not that of the checkpoint and of the last row before it."""
    engine, server, registry = coordinator.driver.engine, coordinator.server, coordinator.registry
    tasks = list(server.tasks.values())
    # A task that was lost with its site needs its versions, too.
    bases = {task.id: task.base for task in tasks} | {task: own[0] for task, own in registry.gone.items()}
    fresh = {task.id: task.fresh for task in tasks if task.fresh is not None}
    fresh |= {task: own[1] for task, own in registry.gone.items() if len(own) > 1}
    held = {task.id: task.base for task in server.held.values()}
    counts = server.counts
    last = next(record.rows(after=checkpoint.journal - 2, limit=1), None)
    present = {
        site.client: (site.samples, site.steps_per_epoch) for site in registry.sites.values() if site.present
    }
    fleet = {
        client: (server.fleet.samples(client), server.fleet.steps_per_epoch(client))
        for client in server.fleet
    }
    pairs: dict[str, tuple[object, object]] = {
        "rows": (engine.rows, checkpoint.journal),
        "time": (server.now, 0.0 if last is None else last.t),
        "version": (server.version, checkpoint.version),
        "evaluations": (coordinator.evaluations.count, checkpoint.metrics),
        "tasks in training": (bases, checkpoint.bases),
        "models sent": (fresh, checkpoint.fresh),
        "held updates": (held, held | {task: own[0] for task, own in checkpoint.updates.items()}),
        "assigned tasks": (registry.assigned.keys(), bases.keys()),
        "clients of tasks": (
            {task.id: task.client for task in tasks},
            {task.id: registry.assigned[task.id].command.client for task in tasks},
        ),
        "busy clients": ({task.client for task in tasks}, set(server.fleet) - set(server.fleet.idle())),
        "updates": (counts["arrived"], counts["aggregated"] + counts["dropped"] + len(held)),
        "clients": (present, fleet),
    }
    for name, (here, there) in pairs.items():
        if here != there:
            raise ValueError(f"its {name} are not those of the checkpoint: {here!s:.100} and {there!s:.100}")


def _checksum(rows: int, code: str, data: bytes) -> str:
    return xxh3_128_hexdigest(_encode((rows, code, data)))


def _code(coordinator: Coordinator) -> str:
    """A digest of all that the meaning of a snapshot depends on, beside the snapshot itself."""
    experiment, schedule = coordinator.experiment, coordinator.algorithm.schedule
    told = (
        __version__, json.dumps(coordinator.info.spec, sort_keys=True), coordinator.options.rollback,
        repr(experiment.until.early_stopping), describe_types(SavedRun), _described(schedule),
    )  # fmt: skip
    return sha256("\n".join(map(str, told)).encode()).hexdigest()


def _described(schedule: Schedule) -> str:
    """The types of the states of a schedule and those inside of it."""
    name = type(schedule).__qualname__
    try:
        own = f"{name}: {describe_types(state_type(type(schedule)))}"
    except (TypeError, NameError) as error:
        # The state of a user's own schedule may have no types: it has no snapshots then.
        own = f"{name}: {error}"
    return own if not isinstance(schedule, Wrapper) else f"{own} around {_described(schedule.inner)}"
