"""The server's side of a deployed run as a sans-IO state machine.

Theory of operation
-------------------
A `Coordinator` stands between what sites say (`receive`, `disconnected`), the passing of time (`tick`) and
the algorithm's own state machine, `core.server.Server`. It has no clock, thread, file or socket. What
its inputs have led to is collected until `take` is called: its caller makes that durable, all or nothing, and
only then sends the messages in it. So nobody ever hears of anything that a crash could undo.

What sites say becomes answers and events in `handlers`; what an event leads to is carried out in `driver`.
What is left for here follows from time: leases, timers, evaluations that are due, the end.

Everything but tensors follows from the journal. After a crash the same coordinator is made again, its past
events are applied by `replay`, and its registry is the same.

A site's silence is not an event before its lease is over: who comes back in time is told again what it may
have missed. Every message of a site may come twice; the second one changes nothing. Time is in seconds of the
run's clock, and never goes back whatever the caller says.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import UsageError
from offbeat.core.events import Left, Metrics, TaskId, Timer
from offbeat.core.features import Feature
from offbeat.core.journal import Row
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model
from offbeat.net.messages import FromSite, Heartbeat
from offbeat.net.server.driver import Driver
from offbeat.net.server.effects import Effects, Evaluation
from offbeat.net.server.handlers import MessageHandler, RunInfo
from offbeat.net.server.options import ServerOptions
from offbeat.net.server.registry import SiteRecord
from offbeat.runs.evaluations import EvaluationLog
from offbeat.runs.schema import Metric
from offbeat.runs.summary import summary_of


class Coordinator:
    """Drives one algorithm with the sites of a network.

    `run` names the run, `plan` is what each site is told of it (plain JSON values). Raises `UsageError` for
    an algorithm that needs what a network has not, or more clients than it would begin with.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        initial: Model,
        options: ServerOptions,
        *,
        seed: int,
        run: str,
        plan: Mapping[str, Any],
        classes: int | None = None,
        batch_size: int = 1,
    ) -> None:
        _check(algorithm, options)
        labels = Feature.LABELS in algorithm.requires
        info = RunInfo(run, plan, classes, labels, batch_size, algorithm.codec)
        self.algorithm, self.options = algorithm, options
        self.run, self.plan = run, plan
        self.driver = Driver(algorithm, initial, options, seed)
        self.server, self.tensors, self.registry = (
            self.driver.server,
            self.driver.tensors,
            self.driver.registry,
        )
        self._handler = MessageHandler(self.driver, info, options)
        self.rejected = self._handler.rejected
        self.now = 0.0
        self.evaluations = EvaluationLog()
        self._ticked = 0.0
        self._next_evaluation = 0.0

    @property
    def stopped(self) -> str | None:
        """Why the run has ended, if it has."""
        return self.driver.stopped

    # ---- sites ----

    def receive(self, now: float, name: str, message: FromSite) -> None:
        """A site says something."""
        self._handler.handle(self._clock(now), name, message)

    def seen(self, now: float, name: str, beat: Heartbeat | None = None) -> None:
        """A site has given a sign of life, which has been answered already or needs no answer."""
        self._handler.on_heartbeat(now, name, beat)

    def disconnected(self, now: float, name: str) -> None:
        """A site's link has ended: its lease goes on."""
        self._clock(now)
        if name in self.registry.sites:
            self.registry.sites[name].connected = False

    def may_come(self, now: float, name: str) -> bool:
        """Would a site be let in that says hello? Not one that was sent away for a while."""
        return now >= self._handler.breaker.closed_at(name)

    # ---- time ----

    def tick(self, now: float) -> None:
        """Let time pass: leases end, timers fire. To be called at `next_due` and some times a lease.

        Time that passes between two calls at more than half a lease is not held against the sites: it was
        the server that was away.
        """
        now = self._clock(now)
        if now - self._ticked > self.options.lease / 2:
            for site in self.registry.sites.values():
                site.last_seen = min(now, site.last_seen + now - self._ticked)
        self._ticked = now
        for name in [
            s.name
            for s in self.registry.sites.values()
            if s.present and now - s.last_seen >= self.options.lease
        ]:
            self._silent(now, self.registry.sites[name])
        due = sorted((at, name) for name, at in self.server.timers.items() if at <= now)
        for at, timer in due:
            if self.stopped is None and self.server.timers.get(timer) == at:
                self.driver.apply(now, Timer(timer))
        self._evaluate_by_time(now)
        ends = self._ends()
        if ends is not None and now >= ends:
            self.stop(now, self.options.until.out_of_time)

    def next_due(self) -> float | None:
        """When `tick` is needed next, at the latest; None: only for new silence."""
        if self.stopped is not None:
            return None
        due = list(self.server.timers.values())
        due += [s.last_seen + self.options.lease for s in self.registry.sites.values() if s.present]
        if (ends := self._ends()) is not None:
            due.append(ends)
        if (evaluation := self._evaluation_due()) is not None:
            due.append(evaluation)
        return min(due, default=None)

    def stop(self, now: float, reason: str) -> None:
        """End the run."""
        self._clock(now)
        self.driver.stop(reason)

    def _silent(self, now: float, site: SiteRecord) -> None:
        """A site's lease is over."""
        if site.present and self.stopped is None:
            site.connected = False
            reason = f"silent for {self.options.lease:g} s"
            self.driver.apply(now, Left(site.client, reason=reason))
            self.driver.close(site.name, reason)

    def _clock(self, now: float) -> float:
        """The time, which never goes back."""
        self.now = max(now, self.now, self.server.now)
        return self.now

    def _ends(self) -> float | None:
        """When the run ends at the latest: seconds count from its beginning, not from the server's start."""
        if self.driver.began is None or self.options.until.seconds is None:
            return None
        return self.driver.began + self.options.until.seconds

    # ---- evaluation ----

    def evaluated(self, evaluation: Evaluation, metrics: Metrics) -> None:
        """A version has been evaluated."""
        e = evaluation
        row = self.evaluations.add(e.t, e.version, e.tasks, e.bytes_up, e.bytes_down, metrics)
        self.driver.effects.metrics.append(row)
        self._check_accuracy(row)

    def replay_evaluation(self, row: Metric) -> None:
        """A version was evaluated before the server was started: an accuracy that was enough still is."""
        self.evaluations.restore(row)
        self._check_accuracy(row)

    def _check_accuracy(self, row: Metric) -> None:
        if (reason := self.options.until.reached_accuracy(row.accuracy)) is not None:
            self.stop(self.now, reason)

    def last_evaluation(self) -> Evaluation | None:
        """The version the run ends with, to be evaluated; None means that versions are not."""
        return None if self.options.evaluate.never else self.driver.evaluation(self.now)

    def _evaluation_due(self) -> float | None:
        """When a version is to be measured because of the time, if ever."""
        began = self.driver.began
        if self.options.evaluate.seconds is None or began is None:
            return None
        return max(self._next_evaluation, began)

    def _evaluate_by_time(self, now: float) -> None:
        every, began, due = self.options.evaluate.seconds, self.driver.began, self._evaluation_due()
        if every is None or began is None or due is None or self.stopped is not None or now < due:
            return
        self.driver.effects.evaluations.append(self.driver.evaluation(now))
        self._next_evaluation = began + every * ((now - began) // every + 1)

    def summary(self) -> dict[str, Any]:
        """The run in numbers, under the names that a simulated one has (`runs.summary.Summary`)."""
        return summary_of(self.driver.engine, self.now, self.evaluations)

    # ---- what comes of it ----

    def take(self) -> Effects:
        """What has come of all inputs since the last call."""
        effects, self.driver.effects = self.driver.effects, Effects()
        effects.now, effects.rejected = self.now, dict(self.rejected)
        effects.clients = max(self.options.clients, len(self.registry.sites))
        return effects

    # ---- repeating a record ----

    def replay(self, rows: Sequence[Row], load: Callable[[TaskId], LocalResult] | None) -> None:
        """Apply a recorded event: its row, then those of its commands, which must come again.

        `load` gives the update of a task that arrived; None means that no tensor is touched. Raises
        `ReplayError` where what comes now is not what is recorded.
        """
        self.driver.replay(rows, load)
        self.now = self._ticked = rows[0].t

    def end_replay(self, now: float) -> None:
        """From now on events are new. Every site that was there has a new lease."""
        self.now = self._ticked = self._next_evaluation = max(now, self.server.now)
        for site in self.registry.sites.values():
            site.last_seen = self.now


def check_algorithm(algorithm: Algorithm) -> None:
    """Raises `UsageError` for an algorithm that no network can run."""
    if Feature.RADIO in algorithm.requires:
        raise UsageError(
            f"{algorithm.name} needs {Feature.RADIO.description}, which a network has not: "
            "simulate it, or choose another algorithm (offbeat algorithms lists what each needs)"
        )


def _check(algorithm: Algorithm, options: ServerOptions) -> None:
    check_algorithm(algorithm)
    concurrency = algorithm.schedule.concurrency
    if concurrency is not None and concurrency > options.clients:
        raise UsageError(
            f"{algorithm.name}: {concurrency} clients cannot train at the same time when the run begins with "
            f"{options.clients}; choose at most {options.clients}, or begin with more (clients)"
        )
