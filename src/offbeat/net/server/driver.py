"""The driver of a run on a network: it applies events, and makes messages of the commands.

A `Driver` keeps three things in step: the engine (`core.engine`: state machine, journal, tensors), the
registry of sites and tasks, and the effects that are to be made durable and sent. It knows nothing of
messages that come in: `handlers` makes events of those, `coordinator` of the time that passes.

Rules
-----
1. The engine and the registry have seen the same events and commands, in the same order: `_advance` alone
   gives them an event. What the registry knows of tasks follows from these. Whether a site is connected, and
   when it was last heard, follows from messages and time; that is entered without an event.
2. Rows and messages leave through `effects` only, in the order in which they were made. The coordinator
   takes them all at once, so a message is never in an earlier batch than the row that led to it.
3. `began` is the time of `Begin`, and infinite before it.
4. `ending` is set once and never changes. `stopped` is None until `finish` and the same text from then on.
   Where no site evaluates, both are set together; else `stopped` follows once the last version has been
   evaluated. In between neither `handlers` nor `coordinator` makes an event.
5. `skipped`, `rollbacks` and `rolled_back` follow from the events. A repetition counts them again.
6. `tensors.skipped` and `tensors.condemned` are empty after `apply`: what they had has become events and
   lines of the log.
7. While recorded events are repeated, `engine.record` checks rows in place of entering them in `effects`,
   and `engine.tensors` is None where no tensor is to be touched. `replay` puts both back, whatever happens.
8. An update is logged before its event is applied, which may make a version in the update's memory. Nobody
   reads the update's values afterwards.
9. A run with secure aggregation waits in two cases, which `hold` tells: a release waits for the sum of its
   masks, or the next tasks for a new committee. In both, events of sites would come before a version that is
   not there yet. So the coordinator processes no message of a site, no lease and no timer; evaluations are
   recorded later; and no checkpoint is written while a release waits. Helpers are always processed.
10. `collapse` hears of a rollback when it is made, so nothing that it counts in a row goes on across one.
    Repeated events do not tell it: who has it judge the recorded evaluations again tells it of the rollbacks.
"""

import logging
from collections.abc import Callable, Iterable
from copy import deepcopy
from enum import Enum
from functools import partial
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from offbeat.core.client_times import ClientTimes
from offbeat.core.commands import Aggregate, Command, Discard, Recall, Train, Upload
from offbeat.core.engine import SavedEngine
from offbeat.core.events import (
    Arrived,
    Begin,
    Event,
    Joined,
    Left,
    Lost,
    Released,
    RolledBack,
    Skipped,
    TaskId,
    Version,
    WantsModel,
    is_given_up,
)
from offbeat.core.good_version import GoodVersion
from offbeat.core.journal import Row, event_of
from offbeat.core.learner import DAMAGED, LocalResult
from offbeat.core.model import Model
from offbeat.core.privacy.releases import ReleaseSeeds, release_of
from offbeat.core.recorded import RecordedJournal
from offbeat.experiment import PreparedRun
from offbeat.net.messages import (
    FromServer,
    ModelResponse,
    Rejected,
    RunFinished,
    TaskAssignment,
    TaskCancel,
    TaskRecall,
    UploadGrant,
)
from offbeat.net.secure.release_seeds import FreshSeeds
from offbeat.net.secure.secure_aggregation import SecureAggregation
from offbeat.net.server.client_evaluations import ClientEvaluations
from offbeat.net.server.collapse import CollapseDetector
from offbeat.net.server.deadlines import Deadlines
from offbeat.net.server.effects import Effects, Evaluation, LoggedUpdate
from offbeat.net.server.leases import Leases
from offbeat.net.server.server_options import ServerOptions
from offbeat.net.server.site_directions import SiteDirections
from offbeat.net.server.site_registry import Registry, SavedRegistry, SiteRecord

log = logging.getLogger(__name__)


class Hold(Enum):
    """What a run waits for."""

    RELEASE = "the sum of a release, from its helpers"
    COMMITTEE = "a new committee, for which the next tasks are masked"


class SavedDriver(Struct, frozen=True):
    """The state of a driver, without tensors; `evaluated` is the version that sites evaluated last."""

    engine: SavedEngine
    registry: SavedRegistry
    began: float
    skipped: int
    rollbacks: int
    rolled_back: Version
    evaluated: Version
    times: ClientTimes


class Driver:
    """Applies events to the engine, the registry and the effects.

    Args:
        run: The run.
        options: The server's options.
        seeds: The seeds of its releases. None means fresh ones.

    Attributes:
        seeds: The seeds of the releases.
        began: When the run began, in seconds of its clock; infinite before.
        ending: Why the run ends; None before. The last version may still be in evaluation at the sites.
        stopped: Why the run ended, which the sites are told; None before.
        leases: The leases of the sites.
        deadlines: The deadlines of the tasks in training.
        helpers: The run's helpers, and the releases that they unmask. None means that it has no helpers.
        log_update: Writes an update so that a commit can make it durable; by default a copy is kept.
        directions: Direction and size of each site's updates.
        collapse: Judges the evaluations of versions.
        client_evaluations: The evaluations at the sites; None means that there are none.
        skipped: Number of aggregations that were skipped.
        rollbacks: Number of rollbacks.
        rolled_back: Version that the last rollback made; 0 before.
        times: What the sites have done with their time, from the journal's rows.
    """

    def __init__(
        self,
        run: PreparedRun,
        options: ServerOptions,
        seeds: FreshSeeds | None = None,
    ) -> None:
        self.seeds, experiment = seeds or FreshSeeds(), run.experiment
        release = release_of(run.release_plan, ReleaseSeeds(self.seeds.noise, self.seeds.rounding))
        self.tensors = run.global_model(release)
        self.engine = run.engine(self._record, self.tensors)
        self.server = self.engine.server
        self.registry = Registry()
        self._options, self._experiment = options, experiment
        self._begin_times()
        self.effects = Effects()
        self.log_update: Callable[[TaskId, LocalResult], LoggedUpdate] = _copied
        self.ending: str | None = None
        self.stopped: str | None = None
        self.began = inf
        self.skipped = self.rollbacks = 0
        self.rolled_back: Version = 0
        self.directions = SiteDirections(self.tensors.model.layout.parameters)
        self.times = ClientTimes()
        self.collapse = CollapseDetector(run.metric, run.higher_is_better)
        self.client_evaluations: ClientEvaluations | None = None
        every = experiment.evaluate
        if every.at_clients:
            self.client_evaluations = ClientEvaluations(
                self.registry, self.send, self._evaluate_here if every.at_server else None,
                options.evaluation_timeout, run.higher_is_better,
            )  # fmt: skip
        self.helpers: SecureAggregation | None = None
        if run.release_plan is not None and run.release_plan.privacy.secure is not None:
            self.helpers = SecureAggregation(self, run.release_plan, options)

    def _begin_times(self) -> None:
        """Forget the times of leases and deadlines."""
        self.leases = Leases(self.registry.by_client, self._options.lease)
        self.deadlines = Deadlines(self.registry, self.server, self._options.task_timeout)

    def _record(self, row: Row) -> None:
        self.effects.rows.append(row)
        self.times.feed(row)

    # ---- what waits ----

    @property
    def hold(self) -> Hold | None:
        """Why the run waits for helpers; None means that it goes on.

        Until it goes on, sites are not processed: their events would come before the version that waits.
        """
        if self.tensors.release.waiting:
            return Hold.RELEASE
        if self.helpers is not None and self.server.begun and not self.helpers.ready:
            return Hold.COMMITTEE
        return None

    # ---- events ----

    def apply(self, now: float, event: Event, result: LocalResult | None = None) -> None:
        """Apply one event, and tell the sites what the algorithm commands.

        Args:
            now: Time of the event, in seconds of the run's clock.
            event: What happened.
            result: The update of an `Arrived`.
        """
        # 1. The engine says what the algorithm commands. A version that the guard refuses is one more event.
        commands = self._advance(now, event, result)
        for skipped in list(self.tensors.skipped):
            told = {"version": skipped.version, "reason": skipped.reason}
            if is_given_up(skipped.reason):
                log.warning("release given up", extra=told)
            else:
                log.error("version skipped", extra=told)
            self._advance(now, skipped, None)
        for task in self.tensors.condemned:
            log.warning("update dropped: it has turned out to be absurd", extra={"task": task})
        self.tensors.condemned.clear()
        # 2. The sites are told, before anything is evaluated: a site trains while the server evaluates.
        for command in commands:
            self._tell(command)
        if isinstance(event, WantsModel):
            self.answer(event.task)
        # A release that has failed has made no version.
        made = not (isinstance(event, Released) and event.reason)
        evaluate = self._experiment.evaluate
        if made and any(isinstance(c, Aggregate) and evaluate.after(c.version) for c in commands):
            self.evaluate(now)
        # 3. What follows from the event: a rollback, a spent budget, the end of the run; or, where it has
        #    begun a release that helpers unmask, nothing until its sum is there.
        if self.helpers is None or not self.tensors.release.waiting:
            self._settle(now)
        elif not isinstance(event, Released):
            # The end of a release begins the next one itself.
            self.helpers.tick(now)

    def _settle(self, now: float) -> None:
        """Draw the consequences of an event that has been carried out, up to its version."""
        if (rollback := self.tensors.poisoned) is not None:
            self.roll_back(now, rollback.reason)
        if self.engine.exhausted is not None:
            self._retire(now, self.registry.by_client[self.engine.exhausted])
        self._check_limits()

    def note(self, now: float, event: Event) -> None:
        """Apply an event that the algorithm does not see and that leads to nothing."""
        self._advance(now, event, None)

    def _retire(self, now: float, site: SiteRecord) -> None:
        """A site whose privacy budget is spent leaves for good."""
        assert self.engine.ledger is not None
        reason = self.engine.ledger.left_reason
        self.refuse(site, reason)
        self.apply(now, Left(site.client, reason=reason))

    def refuse(self, site: SiteRecord, reason: str) -> None:
        """Tell a site that it may not take part any more."""
        self.send(site.name, Rejected(reason))
        self.disconnect(site, reason)

    def is_spent(self, site: SiteRecord) -> bool:
        """Whether a site's privacy budget is spent."""
        return self.engine.ledger is not None and site.client in self.engine.ledger.exhausted

    def roll_back(self, now: float, reason: str) -> None:
        """Make a new version with the content of the last good one, `tensors.good`.

        The tasks that train from a version after it, or were sent one, are lost.

        Args:
            now: Time of the event, in seconds of the run's clock.
            reason: Why.
        """
        assert self.tensors.good is not None
        to, self.effects.good = self.tensors.good.version, self.tensors.good
        self.collapse.withdraw()
        log.error("rolled back", extra={"version": self.server.version + 1, "base": to, "reason": reason})
        self.apply(now, RolledBack(to, reason))
        for task in [task for task in self.server.tasks.values() if task.newest > to]:
            if self.ending is not None:
                return
            reason = f"it trains from a version that is withdrawn: the run went back to version {to}"
            self.send(self.registry.by_client[task.client].name, TaskCancel(task.id, reason))
            self.apply(now, Lost(task.client, task.id, reason))

    def replay(
        self,
        rows: Iterable[Row],
        load: Callable[[Arrived], LocalResult] | None,
        load_version: Callable[[Version], Model] | None = None,
        good: Version | None = None,
    ) -> None:
        """Apply recorded events; nothing is recorded or sent.

        Args:
            rows: Their rows, each followed by those of its commands, which must come again.
            load: Gives the update that arrived, in whose memory a version may be made; None means that no
                tensor is touched.
            load_version: Gives the content of a version to which the run was rolled back.
            good: The last good version, of which the content is kept where it is made again.

        Raises:
            ReplayError: What comes now is not what is recorded.
        """
        recorded = RecordedJournal(rows)

        def check(row: Row) -> None:
            recorded.check(row)
            self.times.feed(row)

        self.engine.record, self.engine.tensors = check, self.tensors if load is not None else None
        self.seeds.repeating = True
        try:
            self._keep_good(good)
            while (row := recorded.peek()) is not None:
                if row.kind != "event":
                    # The record has a command here that the event before it does not give now.
                    recorded.finish()
                event = event_of(row)
                result = load(event) if load is not None and isinstance(event, Arrived) else None
                if result is not None and result is not DAMAGED:
                    assert isinstance(event, Arrived)
                    result = self.tensors.measured(result)
                    self.tensors.admit(event.client, event.task, event.steps, result)
                if load_version is not None and isinstance(event, RolledBack):
                    self.tensors.good = GoodVersion(event.to, partial(load_version, event.to))
                if load is not None and self.helpers is not None:
                    self.helpers.recall(event)
                self._advance(row.t, event, result)
                self._keep_good(good)
                if not self.tensors.release.waiting:
                    self._check_limits()
        finally:
            self.engine.record, self.engine.tensors, self.seeds.repeating = self._record, self.tensors, False
            # What is left here is not recorded: an update that is damaged now was not damaged then.
            self.tensors.skipped.clear()

    def save(self) -> SavedDriver:
        """The state between two events, without tensors.

        Raises:
            TypeError: The schedule's state is not plain data.
        """
        evaluated = -1 if self.client_evaluations is None else self.client_evaluations.last
        return SavedDriver(
            self.engine.save(), self.registry.save(), self.began, self.skipped, self.rollbacks,
            self.rolled_back, evaluated, deepcopy(self.times),
        )  # fmt: skip

    def restore(self, saved: SavedDriver) -> None:
        """Go on from a state, as after `replay` without tensors. Raises `ValueError` or `KeyError`."""
        self.registry.restore(saved.registry)
        self.engine.restore(saved.engine)
        self.began, self.skipped, self.times = saved.began, saved.skipped, deepcopy(saved.times)
        self.rollbacks, self.rolled_back = saved.rollbacks, saved.rolled_back
        if self.client_evaluations is not None:
            self.client_evaluations.restore(saved.evaluated)
        self._begin_times()
        for site in self.registry.by_client.values():
            self.deadlines.measured(site.client)
            self.leases.begin(site.client)
        # They follow from the state: another one may have been restored before.
        self.ending = self.stopped = None
        self._check_limits()

    def _keep_good(self, good: Version | None) -> None:
        if good is not None and self.tensors.version == good and self.engine.tensors is not None:
            self.tensors.good = GoodVersion.in_memory(good, self.tensors.model)

    def _advance(self, now: float, event: Event, result: LocalResult | None) -> list[Command]:
        """Apply an event to the engine and the registry; returns the commands."""
        commands = self.engine.apply(now, event, result)
        if self.helpers is not None:
            self.helpers.enter_event(event)
        task, remembered = self.server.current_task, self._options.remembered
        for lost in self.registry.enter_event(now, event, task, remembered):
            self.tensors.lose(lost)
        for command in commands:
            self.registry.enter_command(command)
        if isinstance(event, Arrived):
            self.deadlines.measured(event.client)
        elif isinstance(event, Joined):
            self.leases.begin(event.client)
        elif isinstance(event, Begin):
            self.began = now
        elif isinstance(event, Skipped):
            self.skipped += not is_given_up(event.reason)
        elif isinstance(event, RolledBack):
            self.rollbacks, self.rolled_back = self.rollbacks + 1, self.server.version
        elif isinstance(event, Left) and self.client_evaluations is not None:
            self.client_evaluations.forget(event.client)
        return commands

    def stop(self, reason: str) -> None:
        """End the run, if it has not ended; at once, unless sites evaluate its last version."""
        if self.ending is None:
            self.ending = reason
            if self.client_evaluations is None:
                self.finish()

    def finish(self) -> None:
        """Tell the sites that the run, which is ending, has finished."""
        reason = self.stopped = self.ending or ""
        for site in self.registry.sites.values():
            if site.connected:
                self.send(site.name, RunFinished(reason))
        for name in sorted(() if self.helpers is None else self.helpers.connected):
            self.send(name, RunFinished(reason))

    def _check_limits(self) -> None:
        if (reason := self.engine.stop_reason()) is not None:
            self.stop(reason)

    # ---- messages ----

    def _tell(self, command: Command) -> None:
        """Tell the site that a command is about."""
        match command:
            case Train():
                self.assign(command)
            case Recall():
                self.send(self._name(command), TaskRecall(command.task))
            case Upload():
                self.send(self._name(command), UploadGrant(command.task, command.bits))
            case Discard():
                self.send(self._name(command), TaskCancel(command.task, command.reason))

    def _name(self, command: Train | Recall | Upload | Discard) -> str:
        return self.registry.by_client[command.client].name

    def assign(self, command: Train) -> None:
        """Give a task to its site, or give it again."""
        c, (base, model) = command, self.tensors.bases[command.task]
        seed = self._experiment.seed
        self.send(
            self._name(c),
            TaskAssignment(c.task, base, c.steps, seed, model, c.ask_after, c.lr_factor, c.hold),
        )

    def answer(self, task: TaskId) -> None:
        """Answer a task's request for a model, or answer it again: with one, or that there is none."""
        record, response = self.registry.assigned[task], ModelResponse(task)
        if record.answer is not None:
            version, model = self.tensors.fresh[task]
            response = ModelResponse(task, version, record.answer.clock, model)
        self.send(self._name(record.command), response)

    def send(self, name: str, message: FromServer) -> None:
        """Send a message to a site, once what led to it is durable."""
        self.effects.messages.append((name, message))

    def close(self, name: str, reason: str) -> None:
        """Close a site's connection, once the messages to it are sent."""
        self.effects.closed.append((name, reason))

    def disconnect(self, site: SiteRecord, reason: str) -> None:
        """Close a site's connection, and count the site as disconnected from now on."""
        site.connected = False
        self.close(site.name, reason)

    def evaluate(self, now: float) -> None:
        """Have the current version evaluated, where the run's options say."""
        if self.client_evaluations is None:
            self._evaluate_here(self.evaluation(now))
        else:
            self.client_evaluations.request(now, self.evaluation(now))

    def _evaluate_here(self, evaluation: Evaluation) -> None:
        self.effects.evaluations.append(evaluation)

    def evaluation(self, now: float) -> Evaluation:
        """The current version, to be evaluated."""
        engine, tensors, arrived = self.engine, self.tensors, self.server.counts["arrived"]
        return Evaluation(now, tensors.version, arrived, engine.bytes_up, engine.bytes_down, tensors.model)


def _copied(_: TaskId, result: LocalResult) -> LocalResult:
    """An update whose values stay."""
    return replace(result, delta=result.delta.clone())
