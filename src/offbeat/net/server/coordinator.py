"""The server's side of a deployed run as a sans-IO state machine.

Theory of operation
-------------------
A `Coordinator` stands between what sites say (`receive`, `disconnected`), the passing of time (`tick`) and
the algorithm's own state machine, `core.server.Server`. It has no clock, thread, file or socket. What
its inputs have led to is collected until `take` is called: its caller makes that durable, all or nothing, and
only then sends the messages in it. So nobody ever hears of anything that a crash could undo.

What sites say becomes answers and events in `handlers`; what an event leads to is carried out in `driver`.
What is left for here follows from time: leases, deadlines, timers, evaluations that are due, the end.

Everything but tensors follows from the journal. After a crash the same coordinator is made again, its past
events are applied by `replay`, and its registry is the same. Or it goes on from the state that `save` gave at
the last checkpoint, by `restore`, which is the same state without those events.

A site's silence is not an event before its lease is over: who comes back in time is told again what it may
have missed. Every message of a site may come twice; the second one changes nothing. Time is in seconds of the
run's clock, and never goes back whatever the caller says.

Rules
-----
1. `now` never decreases, and is never before the time of the last event, `server.now`.
2. `_ticked` is when `_due` last looked at the leases. `deadlines.since` is when it last found that more than
   half a lease had passed in between: no task counts as begun before it. The end of a repetition sets both.
3. After a call of `tick`, and without further inputs, nothing is to be done before `next_due()`. It is
   infinite once the run has stopped.
4. No version is evaluated because of the time before `_next_evaluation`, and none before the run began.
5. `evaluations` has the recorded evaluations in the order of their rows. Once `evaluations.reached` is set,
   the run ends.
6. Where the run may roll back, `driver.collapse` has judged these evaluations in the same order, but for
   those of withdrawn versions if it judges none. A restart has it judge the recorded ones again.
7. `server`, `tensors`, `registry` and `helpers` are the driver's own objects, and are never replaced.
8. What inputs have led to is in `driver.effects` until `take`, which leaves it empty.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from math import inf
from operator import itemgetter
from typing import Any

from msgspec import Struct

from offbeat.core.events import RUN_ENDED, Arrived, ClientResults, Left, Metrics, Timer, Version
from offbeat.core.journal import Row
from offbeat.core.learner import LocalResult
from offbeat.core.limits import check_found
from offbeat.core.model import Model
from offbeat.experiment import PreparedRun
from offbeat.net.messages import FromSite, Heartbeat
from offbeat.net.run_spec import check_algorithm
from offbeat.net.secure.release_seeds import FreshSeeds
from offbeat.net.secure.secure_aggregation import SecureAggregation
from offbeat.net.server.collapse import SavedCollapse, parameter_norm
from offbeat.net.server.driver import Driver, SavedDriver
from offbeat.net.server.effects import Effects, Evaluation, Measurements
from offbeat.net.server.handlers import MessageHandler, RunInfo
from offbeat.net.server.leases import extend_leases, renew_leases
from offbeat.net.server.rollback import judge_version
from offbeat.net.server.server_options import ServerOptions
from offbeat.runs.evaluation_log import EvaluationLog, SavedEvaluations
from offbeat.runs.schema import Metric, client_metrics
from offbeat.runs.summary import summary_of

log = logging.getLogger(__name__)


class SavedRun(Struct, frozen=True):
    """The state of a run's coordinator, without tensors."""

    driver: SavedDriver
    evaluations: SavedEvaluations
    collapse: SavedCollapse


class Coordinator:
    """Drives one algorithm with the sites of a network.

    Args:
        run: The run.
        options: The server's options.
        info: What sites are told of the run.
        seeds: The seeds of its releases. None means fresh ones.

    Attributes:
        experiment: What the run is.
        algorithm: The algorithm that is driven.
        now: The latest time, in seconds of the run's clock.
        rejected: Number of messages that were not accepted, by the kind of their error.
        helpers: The run's helpers. None means that it has none.

    Raises:
        UsageError: The algorithm requires what a network has not.
    """

    def __init__(
        self,
        run: PreparedRun,
        options: ServerOptions,
        info: RunInfo,
        seeds: FreshSeeds | None = None,
    ) -> None:
        algorithm = run.algorithm
        check_algorithm(algorithm)
        self.experiment, self.algorithm, self.options, self.info = run.experiment, algorithm, options, info
        driver = self.driver = Driver(run, options, seeds)
        self.helpers = driver.helpers
        self.server, self.tensors, self.registry = driver.server, driver.tensors, driver.registry
        self._handler = MessageHandler(driver, run, info, options)
        self.rejected = self._handler.rejected
        self.now = 0.0
        self.evaluations = EvaluationLog(run.experiment.until, run.higher_is_better)
        self._initial_norm = parameter_norm(run.initial)
        self._ticked = 0.0
        self._next_evaluation = 0.0
        # Evaluations that are recorded once sites are processed again.
        self._unrecorded: Measurements = []

    @property
    def stopped(self) -> str | None:
        """Why the run has ended, if it has."""
        return self.driver.stopped

    @property
    def unused_bytes(self) -> int:
        """Bytes of updates whose tasks had been stopped, since the server's start."""
        return self._handler.unused_bytes

    # ---- sites ----

    def receive(self, now: float, name: str, message: FromSite, took: float = 0.0) -> None:
        """Process a message of a site.

        Args:
            now: When it came, in seconds of the run's clock.
            name: The site's name.
            message: The message.
            took: Seconds in which its tensors came.
        """
        now = self._clock(now)
        if (helpers := self._helpers_with(name)) is not None:
            registered = self._handler.registered(name, helpers.names.index(name))
            helpers.receive(now, name, message, registered)
            self._handler.begin_if_ready(now)
        else:
            self._handler.handle(now, name, message, took)

    def postpones(self, name: str) -> bool:
        """Whether messages of this peer wait: it is a site, and the run waits for helpers."""
        return self.driver.hold is not None and self._helpers_with(name) is None

    def _helpers_with(self, name: str) -> SecureAggregation | None:
        """The helpers, if one of them has this name."""
        return self.helpers if self.helpers is not None and name in self.helpers.names else None

    def heartbeat(self, now: float, name: str, message: Heartbeat | None = None) -> None:
        """Note a sign of life of a site, which has been answered already or needs no answer.

        Args:
            now: When it came, in seconds of the run's clock.
            name: The site's name.
            message: The site's heartbeat; None means another sign of life.
        """
        if self._helpers_with(name) is not None:
            self.receive(now, name, message or Heartbeat())
        else:
            self._handler.on_heartbeat(now, name, message)

    def disconnected(self, now: float, name: str) -> None:
        """Note that a site's connection has ended: its lease goes on."""
        if (helpers := self._helpers_with(name)) is not None:
            helpers.disconnected(self._clock(now), name)
        elif name in self.registry.sites:
            self.registry.sites[name].connected = False

    def may_register(self, now: float, name: str) -> bool:
        """Whether a site may register now: not while its circuit is open."""
        return now >= self._handler.breaker.closed_at(name)

    # ---- time ----

    def tick(self, now: float) -> None:
        """Let time pass: leases end, timers fire. To be called at `next_due` and some times a lease.

        Time that passes between two calls at more than half a lease is not held against the sites: it was
        the server that was away.
        """
        now = self._clock(now)
        # Time brings five things, in this order: helpers that are late, sites that are silent, tasks that are
        # late, timers of the algorithm, and evaluations. Those of sites and the algorithm wait while the run
        # waits for its helpers; the run's own end does not.
        if self.helpers is not None:
            self.helpers.tick(now)
        if self.driver.hold is None:
            for _ in self._due(now):
                # An event may have begun a release that waits.
                if self.driver.hold is not None:
                    break
        if now >= self._end():
            self.stop(now, self.experiment.until.out_of_time)
        self._evaluate_at_clients(now)

    def _due(self, now: float) -> Iterator[None]:
        """Apply what is due of the sites and the algorithm; pauses after each event."""
        lease, leases, deadlines = self.options.lease, self.driver.leases, self.driver.deadlines
        if now - self._ticked > lease / 2:
            extend_leases(self.registry.sites.values(), now - self._ticked, now)
            deadlines.since = now
        self._ticked = now
        for site in leases.silent_sites(now):
            if self.driver.ending is None:
                reason = f"silent for {lease:g} s"
                self.driver.disconnect(site, reason)
                self.driver.apply(now, Left(site.client, reason=reason))
                yield
        for task, at in deadlines.due(now):
            if self.server.tasks.get(task.client) is task and self.driver.ending is None:
                site = self.registry.by_client[task.client]
                reason = f"task {task.id} was not delivered within {at - task.started:.0f} s"
                log.warning("task overdue", extra={"site": site.name, "task": task.id, "reason": reason})
                self.driver.disconnect(site, reason)
                self.driver.apply(now, Left(site.client, reason=reason))
                yield
        due = [(timer, at) for timer, at in self.server.timers.items() if at <= now]
        # Of timers for one time, the one that was set first fires first.
        for timer, at in sorted(due, key=itemgetter(1)):
            if self.driver.ending is None and self.server.timers.get(timer) == at:
                self.driver.apply(now, Timer(timer))
                yield
        self._evaluate_by_time(now)

    def next_due(self) -> float:
        """When `tick` is needed next, at the latest; infinite when only a message can change anything."""
        if self.stopped is not None:
            return inf
        if self.driver.ending is not None:
            return self._evaluations_due()
        if self.helpers is not None and self.driver.hold is not None:
            return min(self.helpers.deadline, self._end())
        return min(self._sites_due(), self._end())

    def _evaluations_due(self) -> float:
        """When the evaluations at the sites are due."""
        evaluations = self.driver.client_evaluations
        return inf if evaluations is None else evaluations.deadline

    def _sites_due(self) -> float:
        """When something is due of the sites and the algorithm."""
        sites = self.driver.leases.first_end(), self.driver.deadlines.bound()
        due = self._evaluation_due(), self._evaluations_due()
        return min(*self.server.timers.values(), *sites, *due)

    def stop(self, now: float, reason: str) -> None:
        """End the run; a release that waits for its helpers fails."""
        now = self._clock(now)
        if self.driver.ending is None and self.helpers is not None:
            self.helpers.fail(now, f"{RUN_ENDED}{reason}")
        self.driver.stop(reason)

    def _clock(self, now: float) -> float:
        """The time, which never goes back."""
        self.now = max(now, self.now, self.server.now)
        return self.now

    def _end(self) -> float:
        """When the run ends at the latest: seconds count from its beginning, not from the server's start."""
        return self.driver.began + (self.experiment.until.seconds or inf)

    # ---- evaluation ----

    def evaluated(self, measurements: Measurements) -> None:
        """Record the metrics of versions that were evaluated.

        While sites are not processed they wait, unless the run is over: so an evaluation leads to nothing
        that would come before a version.
        """
        self._unrecorded += measurements
        if self.driver.hold is not None and self.stopped is None:
            return
        measurements, self._unrecorded = self._unrecorded, []
        for evaluation, metrics in measurements:
            if self.driver.client_evaluations is None:
                self._record(evaluation, metrics, {})
            else:
                self.driver.client_evaluations.server_found(evaluation, metrics)

    def _record(self, e: Evaluation, metrics: Metrics, clients: ClientResults) -> None:
        if clients and not self.evaluations.count:
            check_found(self.experiment.until, self.experiment.evaluate, metrics)
        norm = parameter_norm(e.model) / self._initial_norm if self._initial_norm else inf
        metrics = {**metrics, **self.driver.collapse.to_record(metrics, norm)}
        row = self.evaluations.add(e.t, e.version, e.tasks, e.bytes_up, e.bytes_down, metrics)
        self.driver.effects.metrics.append(row)
        self.driver.effects.evaluated.append(e.model)
        self.driver.effects.client_metrics += client_metrics(row.seq, clients)
        self._check_metrics()
        if self.options.rollback:
            good = judge_version(self.driver, self.now, e, metrics)
            if good is not None:
                self._handler.breaker.forgive(good)

    def _evaluate_at_clients(self, now: float) -> None:
        """Record what is done at the sites. The run ends once its last version has been evaluated there."""
        driver, evaluations = self.driver, self.driver.client_evaluations
        if evaluations is None or self.stopped is not None:
            return
        while True:
            if (done := evaluations.done(now)) is not None:
                if done.clients or self.experiment.evaluate.at_server:
                    self._record(done.evaluation, done.metrics, done.clients)
            elif driver.ending is None or not evaluations.idle:
                return
            elif evaluations.last == self.server.version:
                driver.finish()
                return
            else:
                evaluations.request(now, driver.evaluation(now))

    def replay_evaluation(self, row: Metric) -> None:
        """Repeat a recorded evaluation: what was reached still is."""
        self.evaluations.restore(row)
        if self.driver.client_evaluations is not None:
            self.driver.client_evaluations.restore(row.version)
        self._check_metrics()

    def _check_metrics(self) -> None:
        if (reason := self.evaluations.reached) is not None:
            self.stop(self.now, reason)

    def last_evaluation(self) -> Evaluation | None:
        """The version the run ends with, to be evaluated; None means that it is not, or was at the sites."""
        every = self.experiment.evaluate
        return None if every.never or every.at_clients else self.driver.evaluation(self.now)

    def _evaluation_due(self) -> float:
        """When a version is to be evaluated because of the time."""
        never = self.experiment.evaluate.seconds is None
        return inf if never else max(self._next_evaluation, self.driver.began)

    def _evaluate_by_time(self, now: float) -> None:
        every, began = self.experiment.evaluate.seconds, self.driver.began
        if every is not None and self.driver.ending is None and now >= self._evaluation_due():
            self.driver.evaluate(now)
            self._next_evaluation = began + every * ((now - began) // every + 1)

    def summary(self) -> dict[str, Any]:
        """The run in numbers, by the names of `runs.summary.Summary`."""
        return summary_of(self.driver.engine, self.now, self.evaluations)

    # ---- effects ----

    def take(self) -> Effects:
        """The effects of all inputs since the last call."""
        effects, self.driver.effects = self.driver.effects, Effects()
        effects.seeds = self.driver.seeds.take()
        clients = max(self.options.clients, len(self.registry.sites))
        effects.meta = {"duration": self.now, "clients": clients, "rejected": dict(self.rejected)}
        effects.meta["warning"] = self.driver.collapse.warning
        effects.meta["helpers"] = None if self.helpers is None else self.helpers.view.problem
        return effects

    # ---- the state as plain data ----

    def save(self) -> SavedRun:
        """The state, without tensors, between two inputs whose effects were taken.

        Raises:
            TypeError: It cannot be saved, and why.
        """
        if self.helpers is not None:
            raise TypeError("with secure aggregation, what is known of helpers follows from the journal")
        if not self.algorithm.schedule.snapshots:
            raise TypeError(f"the schedule of {self.algorithm.name} does not say snapshots = True")
        return SavedRun(self.driver.save(), self.evaluations.save(), self.driver.collapse.save())

    def restore(self, saved: SavedRun) -> None:
        """Go on from a state; what follows is what follows after `replay` without tensors.

        Args:
            saved: The state of a coordinator of the same run, whose sites this one has.

        Raises:
            ValueError, KeyError, TypeError: It does not fit. `restore` of a state that does sets all right.
        """
        self.driver.restore(saved.driver)
        self.evaluations.load(saved.evaluations)
        self.driver.collapse.restore(saved.collapse)
        self.now = self._ticked = self.server.now
        self._check_metrics()

    # ---- repeating a record ----

    def replay(
        self,
        rows: Iterable[Row],
        load: Callable[[Arrived], LocalResult] | None,
        load_version: Callable[[Version], Model] | None = None,
        good: Version | None = None,
    ) -> None:
        """Apply recorded events; nothing is recorded or sent. Arguments and errors as of `Driver.replay`."""
        self.driver.replay(rows, load, load_version, good)
        self.now = self._ticked = self.server.now

    def end_replay(self, now: float) -> None:
        """End the repetition at a time: from now on events are new, and every site has a new lease."""
        self.now = self._ticked = self._next_evaluation = max(now, self.server.now)
        self.driver.deadlines.since = self.now
        if self.helpers is not None:
            self.helpers.recovered()
        renew_leases(self.registry.sites.values(), self.now)
