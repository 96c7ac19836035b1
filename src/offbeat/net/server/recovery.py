"""Recovery: how a new coordinator gets to where the record of a run ends."""

import logging
from collections import deque
from collections.abc import Iterable
from functools import partial

import msgspec

from offbeat.core.events import Arrived, TaskId, Version
from offbeat.core.journal import Row
from offbeat.core.learner import LocalResult
from offbeat.net.server.collapse import CollapseDetector
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.read_updates import recorded_update
from offbeat.net.server.recovery_snapshot import RecoverySnapshots
from offbeat.net.server.stored_updates import NEWEST, Stored
from offbeat.runs.checkpoint_tensors import read_version, restore_model
from offbeat.runs.damage import damage, reading
from offbeat.runs.record import RunRecord
from offbeat.runs.schema import DATABASE, Metric

log = logging.getLogger(__name__)


def recover(record: RunRecord, coordinator: Coordinator, snapshots: RecoverySnapshots) -> None:
    """Bring a new coordinator to where a run's record ends.

    The state at the checkpoint is that of the snapshot, or else follows from the journal before it. Then the
    journal after it is repeated, with its updates.

    A task whose update is damaged is aggregated without it. The journal stays as it is: what sites were
    told stays true, and no other update is lost. The log says so, and the coordinator counts it. Not with
    privacy: the sums with and without the update would be released with the same noise.

    Args:
        record: The run.
        coordinator: A new one.
        snapshots: Reads the snapshot.

    Raises:
        DamageError: A file is missing, or damaged beyond single updates.
        ReplayError: The coordinator does not repeat the journal.
    """
    checkpoint = record.checkpoint()
    if checkpoint is None:
        raise damage(record.path / DATABASE, "has no checkpoint")
    with reading(record.path / DATABASE):
        for name, client, labels in record.sites():
            told = msgspec.json.decode(labels, type=tuple[int, ...]) if labels else None
            coordinator.registry.add(name, client).labels = told
    restored = snapshots.restore(record, checkpoint)
    if not restored:
        coordinator.replay(record.rows(limit=checkpoint.journal), None)
    damaged: list[TaskId] = []

    def without(task: TaskId, error: Exception) -> None:
        coordinator.tensors.release.excuse(task, error, record.path)
        damaged.append(task)
        log.error("the stored update of task %d is damaged (%s): it is aggregated without it", task, error)

    restore_model(coordinator.tensors, coordinator.server, record.path, checkpoint, without)
    load_version = partial(read_version, coordinator.tensors.model.layout, record.path)
    rows = record.rows(after=checkpoint.journal - 1)
    # The state that was restored has the evaluations before the checkpoint, and has judged them.
    evaluations = record.evaluations(after=checkpoint.metrics - 1 if restored else None)
    good = None
    if coordinator.options.rollback:
        since = checkpoint.journal - 1 if restored else None
        rollbacks = [row for row in record.rows("event", after=since) if row.name == "rolled_back"]
        first = coordinator.driver.rolled_back if restored else 0
        good = _judge_again(evaluations, rollbacks, coordinator.driver.collapse, first)
    stored = _updates_since_checkpoint(record)

    def load(event: Arrived) -> LocalResult:
        return recorded_update(record, stored.pop(event.task, None), without, event)

    coordinator.replay(rows, load, load_version, good)
    for metric in evaluations:
        coordinator.replay_evaluation(metric)
    coordinator.rejected.update(record.meta.get("rejected", {}))
    if damaged:
        coordinator.rejected["damaged"] += len(damaged)
    coordinator.end_replay(record.duration)


def _judge_again(
    evaluations: Iterable[Metric], rolled_back: Iterable[Row], collapse: CollapseDetector, first: Version
) -> Version | None:
    """Have evaluations judged as they were; the version to which a rollback goes, if one of them is good.

    Args:
        evaluations: Those that the rule has not judged yet.
        rolled_back: The rows of the rollbacks that it has not heard of yet.
        collapse: The rule.
        first: The version that the last rollback made of which it has heard; 0 before any.
    """
    rollbacks = deque((row.flat()["to"], row.flat()["version"]) for row in rolled_back)
    withdrawn = [range(to + 1, version) for to, version in rollbacks]
    good = None
    for metric in evaluations:
        # The guard has demanded these: the version that they made, or a later one, is evaluated here.
        while rollbacks and rollbacks[0][1] <= metric.version:
            collapse.withdraw()
            first = rollbacks.popleft()[1]
        if metric.version < first:
            continue
        collapsed = collapse.judge(metric.found) is not None
        if collapse.good and not any(metric.version in versions for versions in withdrawn):
            good = metric.version
        if rollbacks and collapsed:
            collapse.withdraw()
            first = rollbacks.popleft()[1]
    if rollbacks:
        collapse.withdraw()
    return good


def _updates_since_checkpoint(record: RunRecord) -> dict[TaskId, Stored]:
    """The updates since the checkpoint by task; `durable_store.MOST_SMALL` bounds the tensors among them."""
    found = record.select(f"SELECT task, tensors, begin, bytes FROM {NEWEST}")
    return {task: (data, begin, size) for task, data, begin, size in found}
