"""The engine under every driver: an event in; journal rows, tensors and counters; commands out.

A driver (the simulator, a coordinator on a network or in a Flower federation, a replay) brings the time and
the events, and carries the commands out. The consequences of an event that all drivers share are here, in
this order:

1. The server admits the event and the schedule reacts (`core.server`).
2. The event's row goes to the journal; the update of an `Arrived` is held.
3. The commands' rows go to the journal, and the tensors follow: a base version is kept, a new version is
   made, an update is dropped.

Where updates are masked, a version can be made only once the helpers have told the sum of the masks. An
`Aggregate` and the commands after it wait for the `Released` event then (`core.release`), and until it
nothing happens that a schedule sees.

`record` takes the rows: it writes them, or, while a recorded run is repeated, checks them
(`core.recorded.RecordedJournal`). Without `tensors` the same rows come of the same events, and no tensor is
touched: all but tensors follows from events.

Rules
-----
Between two calls of `apply` these hold for the fields of an engine and of its tensors:

1. `rows` is the number that the next journal row gets. It grows by one with each row; the one row of
   `join_all` counts once for each client.
2. Every row of an event is recorded before that of a command which follows from it, and every row of a
   command before the command changes a tensor.
3. `tensors.version` is `server.version`, unless commands are `waiting` for a release: then it is the version
   before the first of these.
4. `tensors.bases` has every task in training whose `Train` does not wait, with the version from which the
   task trains. A task leaves it when its update arrives, when it is lost or discarded, or when the driver
   calls `lose`. A driver whose clients may bring a task back calls `lose` once they cannot any more.
5. `tensors.updates` has updates of `server.held` only, and of tasks that a waiting command names. A held
   task may have none: its update was damaged, found absurd later, trained from a version that is withdrawn,
   or masked for a committee that is gone. Such a task is aggregated without its update.
6. `staleness_sum` and `bits_up` change with an `Arrived` alone, by what its row says. So they are the same
   after a repetition without tensors.
7. `exhausted` is about the last event that is none of `server.UNSEEN`; those leave it as it is.
"""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from offbeat.core.commands import Aggregate, Command, Discard, Drop, Send, Train
from offbeat.core.events import (
    Arrived,
    ClientId,
    CommitteeFormed,
    Event,
    Joined,
    Lost,
    Released,
    RolledBack,
    Skipped,
    TaskId,
)
from offbeat.core.fleet import Labels
from offbeat.core.global_model import GlobalModel
from offbeat.core.journal import Row, command_row, event_row, present_row
from offbeat.core.learner import LocalResult
from offbeat.core.limits import Until
from offbeat.core.privacy.ledger import PrivacyLedger, SavedLedger
from offbeat.core.schedule import Schedule
from offbeat.core.server import UNSEEN, SavedServer, Server


class SavedEngine(Struct, frozen=True):
    """The state of an engine, without tensors."""

    server: SavedServer
    rows: int
    staleness_sum: int
    bits_up: int
    exhausted: ClientId | None
    ledger: SavedLedger | None


class Engine:
    """One run's server, journal, tensors, counters and limits.

    Args:
        schedule: The algorithm's schedule.
        seed: The run's seed.
        record: Takes each journal row, in order.
        tensors: The global model and what is held around it; None means no tensor is touched.
        model_bytes: Bytes of one model as it is sent, for the counters.
        update_bytes: Bytes of one update as it is sent, where the client does not tell them.
        until: The run's limits.
        ledger: What clients have spent of their privacy budget. None means that no noise is added.

    Attributes:
        rows: Number of journal rows so far.
        staleness_sum: Sum of the staleness of all updates that arrived, in versions.
        bits_up: Bits of all updates that arrived, as their codec made them.
        failed: Number of releases that have failed: their versions do not count.
        exhausted: The client whose privacy budget the last event has left spent, or None. The driver then
            applies its `Left` with the ledger's `left_reason`, and lets it join no more.
    """

    def __init__(
        self,
        schedule: Schedule,
        seed: int,
        record: Callable[[Row], None],
        tensors: GlobalModel | None = None,
        model_bytes: int = 0,
        update_bytes: int = 0,
        until: Until = Until(),
        ledger: PrivacyLedger | None = None,
    ) -> None:
        self.server = Server(schedule, seed)
        self.record, self.tensors, self.until, self.ledger = record, tensors, until, ledger
        self.rows = 0
        self.staleness_sum = 0
        self.bits_up = 0
        self.failed = 0
        self.exhausted: ClientId | None = None
        self._model_bytes, self._update_bits = model_bytes, 8 * update_bytes

    def apply(self, now: float, event: Event, result: LocalResult | None = None) -> list[Command]:
        """Apply one event.

        Args:
            now: Time of the event, in seconds of the run's clock.
            event: What happened.
            result: The update of an `Arrived`, needed where there are tensors.

        Returns:
            The commands to carry out, in order; what they mean for the tensors is done. Those that wait for
            a release come with the event that ends it.

        Raises:
            AlgorithmError: The event or a command breaks the rules of the server; or a release waits.
            ReplayError: The rows are checked, and one is not the recorded one.
        """
        server, record, tensors = self.server, self.record, self.tensors
        version = server.version
        if tensors is not None:
            tensors.release.admit(event)
        commands = server.feed(now, event)
        task = server.current_task
        made: tuple[Command, ...] = ()
        rows = self.rows
        row = event_row(rows, now, event, version, task)
        if type(event) is Released:
            row = self._end_release(row, event)
        record(row)
        # `is` takes a third of the time that `isinstance` takes to refuse a struct's class.
        if type(event) is Arrived:
            assert task is not None
            self.staleness_sum += task.staleness
            self.bits_up += int(event.metrics.get("bits", self._update_bits))
            if tensors is not None:
                assert result is not None
                tensors.arrive(task, result)
        elif type(event) is Lost:
            self.lose(event.task)
        elif type(event) is Joined and self.ledger is not None:
            self.ledger.joined(event.client)
        elif type(event) is Skipped and tensors is not None:
            tensors.skipped = [own for own in tensors.skipped if own.version != event.version]
        elif type(event) is RolledBack and tensors is not None:
            tensors.roll_back(event, server.version)
        elif type(event) is CommitteeFormed:
            if self.ledger is not None:
                self.ledger.helped = True
            if tensors is not None:
                tensors.updates.clear()
        elif type(event) is Released and tensors is not None:
            made = (tensors.finish_release(event),)
        for command in commands:
            rows += 1
            if type(command) is Aggregate:
                version = command.version
                record(self._aggregate_row(rows, now, command))
            else:
                record(command_row(rows, now, command, version))
        self.rows = rows + 1
        if tensors is not None:
            commands = tensors.release.due(commands)
            for command in commands:
                if (move := _MOVES.get(type(command))) is not None:
                    move(tensors, command)
        if self.ledger is not None:
            self._find_exhausted(event, self.ledger)
        return [*made, *commands] if made else commands

    @property
    def waiting(self) -> Sequence[Command]:
        """The commands that wait for a release: an `Aggregate`, and what was commanded after it."""
        return () if self.tensors is None else self.tensors.release.waiting

    def _aggregate_row(self, seq: int, now: float, command: Aggregate) -> Row:
        """The row of an aggregation, with what it takes of the clients' privacy budgets."""
        row = command_row(seq, now, command, command.version)
        if self.ledger is None:
            return row
        return replace(row, data={**(row.data or {}), **self.ledger.begin(command)})

    def _end_release(self, row: Row, event: Released) -> Row:
        """Count a release that has failed; the row of its end, with what it takes of the budgets."""
        self.failed += bool(event.reason)
        if self.ledger is None:
            return row
        return replace(
            row, data={**(row.data or {}), **self.ledger.end(formed=not event.reason or event.formed)}
        )

    def _find_exhausted(self, event: Event, ledger: PrivacyLedger) -> None:
        """Note the client of an arrival for which one more release, beside its held updates, is too much."""
        # An event that schedules do not see follows an arrival, whose client is still to leave.
        if type(event) in UNSEEN:
            return
        self.exhausted = None
        if type(event) is not Arrived or self.server.stopped is not None:
            return
        held = sum(task.client == event.client for task in self.server.held.values())
        if ledger.exhausts(event.client, held):
            self.exhausted = event.client

    def join_all(self, samples: Sequence[int], steps_per_epoch: Sequence[int], labels: Labels | None) -> None:
        """Let clients 0 … n − 1 join at time 0, before `Begin`: one call and one journal row for all.

        Args:
            samples: Number of training samples, by client.
            steps_per_epoch: Local steps of one epoch, by client.
            labels: Number of samples of each class, by client; None means the algorithm needs none.
        """
        self.server.join_all(samples, steps_per_epoch, labels)
        row = present_row(samples, steps_per_epoch, labels)
        self.record(row)
        self.rows = row.seq + 1

    def save(self) -> SavedEngine:
        """The state between two events, without tensors. Raises `TypeError` as `Server.save` does."""
        ledger = None if self.ledger is None else self.ledger.save()
        server, exhausted = self.server.save(), self.exhausted
        return SavedEngine(server, self.rows, self.staleness_sum, self.bits_up, exhausted, ledger)

    def restore(self, saved: SavedEngine) -> None:
        """Go on from a state. Raises `ValueError` for one that does not fit."""
        if (self.ledger is None) != (saved.ledger is None):
            raise ValueError("what clients have spent is saved of a run with noise, and of no other")
        self.server.restore(saved.server)
        self.rows, self.staleness_sum, self.bits_up = saved.rows, saved.staleness_sum, saved.bits_up
        self.exhausted = saved.exhausted
        if self.ledger is not None and saved.ledger is not None:
            self.ledger.restore(saved.ledger)

    def lose(self, task: TaskId) -> None:
        """Free the tensors of a task that is lost for good."""
        if self.tensors is not None:
            self.tensors.lose(task)

    @property
    def versions(self) -> int:
        """Number of versions made: that of a release that has failed is none."""
        return self.server.version - self.failed

    def stop_reason(self) -> str | None:
        """Reason to stop now, the schedule's or a limit's. None means that the run continues."""
        server = self.server
        if server.stopped is not None:
            return server.stopped
        if self.ledger is not None and (reason := self.ledger.stop_reason) is not None:
            return reason
        return self.until.reached(self.versions, server.counts["arrived"])

    @property
    def bytes_up(self) -> int:
        """Bytes of the updates that arrived, as their codec made them."""
        return self.bits_up // 8

    @property
    def bytes_down(self) -> int:
        """Bytes sent to clients: a model for each task, and those sent in mid-task."""
        return (self.server.dispatched + self.server.sent) * self._model_bytes


_MOVES: dict[type, Callable[[GlobalModel, Any], object]] = {
    Train: lambda tensors, command: tensors.dispatch(command.task),
    Send: lambda tensors, command: tensors.send(command.task),
    Aggregate: GlobalModel.aggregate,
    Drop: lambda tensors, command: tensors.drop(command.task),
    Discard: lambda tensors, command: tensors.lose(command.task),
}
"""Effect of each kind of command on the tensors."""
