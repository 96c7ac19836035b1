"""A run's model without the updates of one site: its journal is repeated with the updates of the others.

The site's tasks count as if their updates had been lost on the way: each aggregation is made of what else it
had, and a version of which nothing is left equals the one before. What other sites have learnt from versions
that held the site's data stays: only a training without the site could tell what they would have learnt.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from offbeat.core.errors import UsageError
from offbeat.core.events import Arrived, ClientId, TaskId, Version
from offbeat.core.journal import Row
from offbeat.core.learner import DAMAGED, LocalResult
from offbeat.core.model import Model
from offbeat.core.validation import did_you_mean
from offbeat.experiment import PreparedRun
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.handlers import RunInfo
from offbeat.net.server.read_updates import recorded_update
from offbeat.net.server.server_options import ServerOptions
from offbeat.net.server.stored_updates import StoredUpdates
from offbeat.runs.checkpoint_tensors import restore_model
from offbeat.runs.record import Checkpoint, RunRecord

log = logging.getLogger(__name__)
_ALL_REMEMBERED = 2**31


@dataclass(frozen=True)
class Contribution:
    """What a site has had a part in.

    Attributes:
        site: Its name.
        client: Its number in the run.
        updates: Number of its updates that the server has accepted.
        of: Number of the updates of all sites.
        versions: The versions that were made with an update of its own, in order.
        last: The run's last version.
    """

    site: str
    client: ClientId
    updates: int
    of: int
    versions: tuple[Version, ...]
    last: Version


@dataclass(frozen=True)
class WithoutSite:
    """A model without the updates of a site.

    Attributes:
        model: The model.
        version: Its number in the run.
        start: The version from which the journal was repeated, 0 for the initial model.
    """

    model: Model
    version: Version
    start: Version


def contribution(record: RunRecord, site: str) -> Contribution:
    """What a site has had a part in.

    Raises:
        UsageError: The run is no deployed one, or has no such site.
    """
    if not record.served:
        raise UsageError(
            f"{record.path} holds a simulated run, of which no update is stored: simulate it with other data"
        )
    clients = {name: client for name, client, _ in record.sites()}
    if site not in clients:
        raise UsageError(f"{record.path} has no site {site}{did_you_mean(site, clients)}")
    client, tasks, versions, last = clients[site], set[TaskId](), list[Version](), 0
    arrived = 0
    for row in record.rows():
        last = row.version or last
        if row.name == "arrived":
            arrived += 1
            tasks |= {row.task} if row.client == client and row.task is not None else set()
        elif row.name == "aggregate" and row.version is not None and tasks & set((row.data or {})["tasks"]):
            versions.append(row.version)
    return Contribution(site, client, len(tasks), arrived, tuple(versions), last)


def replay_without(record: RunRecord, prepared: PreparedRun, client: ClientId) -> WithoutSite:
    """Repeat a run without the updates of one of its sites.

    Args:
        record: The run.
        prepared: The run as a server prepares it, with the algorithm by the recorded rules.
        client: The site's number in the run.

    Raises:
        UsageError: The run has privacy, or the updates that this needs are not kept.
        DamageError: A file is missing or damaged.
        ReplayError: The run is not the recorded one.
    """
    if "privacy" in record.meta:
        raise UsageError(
            f"{record.path} has privacy: a release without one of its updates would tell of that update. "
            "With noise, ε bounds what the published models tell of the site, and stays spent"
        )
    prepared.check_initial(record)
    rows = list(_arrivals(record))
    stored, checkpoint = StoredUpdates(record), record.checkpoint()
    start: Checkpoint | None = None
    if not {row.task for row in rows} <= stored.tasks():
        start = _checkpoint_without(record, checkpoint, rows, client)
    coordinator = _coordinator(record, prepared)
    tensors, damaged = coordinator.tensors, list[TaskId]()

    def on_damage(task: TaskId, error: Exception) -> None:
        damaged.append(task)
        log.warning("the stored update of task %d is damaged (%s): it is left out too", task, error)

    def load(event: Arrived) -> LocalResult:
        if event.client == client:
            return DAMAGED
        return recorded_update(record, stored.find(event.task), on_damage, event)

    after = -1
    if start is not None:
        after = start.journal - 1
        coordinator.replay(record.rows(limit=start.journal), None)
        restore_model(tensors, coordinator.server, record.path, start, on_damage)
    begun = tensors.version
    kept = _Versions(coordinator, record, after)
    coordinator.replay(kept.watched(), load, kept.contents.__getitem__)
    return WithoutSite(tensors.model, tensors.version, begun)


def _arrivals(record: RunRecord) -> Iterator[Row]:
    return (row for row in record.rows("event") if row.name == "arrived")


def _checkpoint_without(
    record: RunRecord, checkpoint: Checkpoint | None, arrivals: list[Row], client: ClientId
) -> Checkpoint:
    """The last checkpoint, if it has nothing of the site."""
    site_rows = [row for row in arrivals if row.client == client]
    if checkpoint is not None and not any(row.seq < checkpoint.journal for row in site_rows):
        return checkpoint
    version = 0 if checkpoint is None else checkpoint.version
    raise UsageError(
        f"{record.path} keeps no updates from before version {version}, which holds updates of this site "
        f"since version {site_rows[0].version or 0}: it cannot be taken out of this directory. Serve a copy "
        "from before that version again, with the site's credential revoked. A run that is served with --set "
        "server.keep_updates=true from its beginning keeps what this needs"
    )


def _coordinator(record: RunRecord, prepared: PreparedRun) -> Coordinator:
    """A coordinator before the run's first event, which forgets no task that a site may bring back."""
    options = ServerOptions(clients=prepared.clients, remembered=_ALL_REMEMBERED)
    coordinator = Coordinator(prepared, options, RunInfo(str(record.meta.get("run", "")), {}))
    for name, client, _ in record.sites():
        coordinator.registry.add(name, client)
    return coordinator


class _Versions:
    """The versions to which a run goes back later, with the content that they have in its repetition."""

    def __init__(self, coordinator: Coordinator, record: RunRecord, after: int) -> None:
        self._tensors, self._record, self._after = coordinator.tensors, record, after
        rollbacks = (row for row in record.rows("event", after=after) if row.name == "rolled_back")
        self._wanted = {int(row.flat()["to"]) for row in rollbacks}
        self.contents: dict[Version, Model] = {}

    def watched(self) -> Iterator[Row]:
        """The rows to repeat; between two of them the version is noted."""
        for row in self._record.rows(after=self._after):
            version = self._tensors.version
            if version in self._wanted:
                self.contents.setdefault(version, self._tensors.model)
            yield row
