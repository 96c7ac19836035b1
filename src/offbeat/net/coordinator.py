"""The server's side of a deployed run as a sans-IO state machine.

Theory of operation
-------------------
A `Coordinator` stands between what sites say (`receive`, `disconnected`), the passing of time (`tick`) and
the algorithm's own state machine, `core.server.Server`. It has no clock, thread, file or socket. What
its inputs have led to is collected until `take` is called: its caller makes that durable, all or nothing, and
only then sends the messages in it. So nobody ever hears of anything that a crash could undo.

Everything but tensors follows from the journal. After a crash the same coordinator is made again, its past
events are fed by `relive`, and it holds the same books.

A site's silence is not an event before its lease is over: who comes back in time is told again what it may
have missed. Every message of a site may come twice; the second one changes nothing. Time is in seconds of the
run's clock, and never goes back whatever the caller says.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from offbeat.core.algorithm import Algorithm, Task
from offbeat.core.commands import Aggregate, Command, Discard, Drop, Recall, Send, Train, Upload
from offbeat.core.errors import RunError, UsageError
from offbeat.core.events import (
    Arrived,
    Begin,
    Event,
    Joined,
    Left,
    Lost,
    Metrics,
    Ready,
    TaskId,
    Timer,
    WantsModel,
)
from offbeat.core.features import Feature, describe
from offbeat.core.global_model import GlobalModel
from offbeat.core.journal import Row, command_row, event_of, event_row
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model
from offbeat.core.server import Server
from offbeat.net.books import Books, Fate, SiteBook
from offbeat.net.checks import RejectedError, check_hello, check_metrics, check_result, check_steps
from offbeat.net.messages import (
    Asks,
    Assign,
    Beat,
    Bye,
    CutShort,
    Done,
    Failed,
    Forget,
    Fresh,
    FromServer,
    FromSite,
    Hello,
    MaySend,
    Over,
    Receipt,
    Refused,
    Result,
    Welcome,
)
from offbeat.net.outcome import Evaluation, Outcome, SiteRow
from offbeat.net.terms import Terms
from offbeat.runs.schema import Metric

LONGEST_REASON = 200
_GIVEN_UP = "it was given up, as the site was away for longer than its lease"


class Coordinator:
    """Drives one algorithm with the sites of a network.

    `run` names the run, `plan` is what each site is told of it (plain JSON values). Raises `UsageError` for
    an algorithm that needs what a network has not, or more clients than it would begin with.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        initial: Model,
        terms: Terms,
        *,
        seed: int,
        run: str,
        plan: Mapping[str, Any],
        classes: int | None = None,
        batch_size: int = 1,
    ) -> None:
        _check(algorithm, terms)
        self.algorithm, self.terms = algorithm, terms
        self.run, self.plan = run, plan
        self.server = Server(algorithm.schedule, seed)
        self.tensors = GlobalModel(algorithm, initial)
        self.books = Books()
        self.rejected: Counter[str] = Counter()
        self.stopped: str | None = None
        self.now = 0.0
        self.began: float | None = None
        self.rows = self.evaluations = 0
        self.last_metrics: Metrics = {}
        self.best_accuracy: float | None = None
        self.staleness_sum = 0
        self.bits_up = 0
        self._seed, self._classes, self._batch_size = seed, classes, batch_size
        self._labels = Feature.LABELS in algorithm.needs
        self._model_bytes = self.tensors.model.layout.nbytes
        self._outcome = Outcome()
        self._past: deque[Row] | None = None  # the rows that must come next, while the past is relived
        self._with_tensors = True
        self._ticked = 0.0
        self._next_evaluation = 0.0

    # ---- what a driver calls ----

    def receive(self, now: float, name: str, message: FromSite) -> None:
        """A site says something."""
        now = self._clock(now)
        site = self.books.sites.get(name)
        if self.stopped is not None:
            self._say(name, Over(self.stopped))
        elif isinstance(message, Hello):
            self._hello(now, name, message)
        elif site is None or not site.present:
            self._say(
                name, Refused("the server does not know that this site is there: say hello", final=False)
            )
            self._outcome.closed.append((name, "the site has not said hello"))
        else:
            site.last_seen = now
            self._hear(now, site, message)

    def seen(self, now: float, name: str, beat: Beat | None = None) -> None:
        """A site has given a sign of life, which has been answered already or needs no answer."""
        site = self.books.sites.get(name)
        if site is not None and site.present:
            site.last_seen = max(site.last_seen, now)
            task = self.server.tasks.get(site.client)
            if beat is not None and task is not None and beat.task == task.id:
                site.steps_done = min(max(beat.steps, 0), task.steps)

    def disconnected(self, now: float, name: str) -> None:
        """A site's link has ended: its lease goes on."""
        self._clock(now)
        if name in self.books.sites:
            self.books.sites[name].connected = False

    def tick(self, now: float) -> None:
        """Let time pass: leases end, timers fire. To be called at `next_due` and some times a lease.

        Time that passes between two calls at more than half a lease is not held against the sites: it was
        the server that was away.
        """
        now = self._clock(now)
        if now - self._ticked > self.terms.lease / 2:
            for site in self.books.sites.values():
                site.last_seen = min(now, site.last_seen + now - self._ticked)
        self._ticked = now
        for name in [
            s.name for s in self.books.sites.values() if s.present and now - s.last_seen >= self.terms.lease
        ]:
            self._silent(now, self.books.sites[name])
        due = sorted((at, name) for name, at in self.server.timers.items() if at <= now)
        for at, timer in due:
            if self.stopped is None and self.server.timers.get(timer) == at:
                self._happen(now, Timer(timer))
        self._evaluate_by_time(now)
        ends = self._ends()
        if ends is not None and now >= ends:
            self.stop(now, f"reached {self.terms.seconds:g} seconds")

    def next_due(self) -> float | None:
        """When `tick` is needed next, at the latest; None: only for new silence."""
        if self.stopped is not None:
            return None
        due = list(self.server.timers.values())
        due += [s.last_seen + self.terms.lease for s in self.books.sites.values() if s.present]
        if (ends := self._ends()) is not None:
            due.append(ends)
        if self.terms.evaluate_seconds is not None and self.server.begun:
            due.append(self._next_evaluation)
        return min(due, default=None)

    def stop(self, now: float, reason: str) -> None:
        """End the run."""
        self._clock(now)
        if self.stopped is None:
            self.stopped = reason
            for site in self.books.sites.values():
                if site.connected:
                    self._say(site.name, Over(reason))

    def evaluated(self, evaluation: Evaluation, metrics: Metrics) -> None:
        """A version has been measured."""
        found = dict(metrics)
        self.last_metrics = dict(metrics)
        loss, accuracy = found.pop("loss", None), found.pop("accuracy", None)
        e = evaluation
        self._outcome.metrics.append(
            Metric(
                self.evaluations, e.t, e.version, e.tasks, e.bytes_up, e.bytes_down, loss, accuracy,
                found or None,
            )
        )  # fmt: skip
        self.evaluations += 1
        if accuracy is not None:
            self.best_accuracy = max(accuracy, self.best_accuracy or 0.0)
            if self.terms.accuracy is not None and accuracy >= self.terms.accuracy:
                self.stop(self.now, f"reached accuracy {self.terms.accuracy:g}")

    def evaluation(self) -> Evaluation:
        """The current version, to be measured."""
        arrived = self.server.counts["arrived"]
        return Evaluation(
            self.now, self.server.version, arrived, self.bytes_up, self.bytes_down, self.tensors.model
        )

    def take(self) -> Outcome:
        """What has come of all inputs since the last call."""
        outcome, self._outcome = self._outcome, Outcome()
        return outcome

    # ---- bringing the past back ----

    def relive(self, rows: Sequence[Row], load: Callable[[TaskId], LocalResult] | None) -> None:
        """Let a recorded event happen again: its row, then those of its commands, which must come again.

        `load` gives the update of a task that arrived; without it no tensor is touched. Raises `RunError`
        where what happens now is not what is recorded.
        """
        event = event_of(rows[0])
        self._past, self._with_tensors = deque(rows), load is not None
        result = load(event.task) if load is not None and isinstance(event, Arrived) else None
        self._happen(rows[0].t, event, result)
        if self._past:
            raise RunError(f"the run cannot be brought back: the journal has {self._past[0]}, now nothing is")
        self.now = self._ticked = rows[0].t

    def relived(self, now: float) -> None:
        """The past is over: from now on things are new. Every site that was there has a new lease."""
        self._past, self._with_tensors = None, True
        self.now = self._ticked = self._next_evaluation = max(now, self.server.now)
        for site in self.books.sites.values():
            site.last_seen = self.now
        self.take()

    # ---- what sites say ----

    def _hello(self, now: float, name: str, hello: Hello) -> None:
        try:
            check_hello(hello, self._classes, self._labels)
        except RejectedError as error:
            self._reject(error)
            self._say(name, Refused(str(error)))
            self._outcome.closed.append((name, str(error)))
            return
        epoch = hello.steps_per_epoch or -(-hello.samples // self._batch_size)
        site = self.books.sites.get(name) or self.books.add(name, len(self.books.sites))
        told = (hello.samples, epoch, hello.labels)
        site.connected, site.last_seen = True, now
        self._say(name, Welcome(site.client, self.run, self.plan, self.terms.lease))
        if site.present and (site.samples, site.steps_per_epoch, site.labels) != told:
            self._happen(now, Left(site.client, reason="came back with other data"))
        self._settle(site, hello)
        if site.present:
            self._remind(site, hello.holds if hello.run == self.run else None)
        elif self.stopped is None:
            self._join(now, site, hello, epoch)

    def _join(self, now: float, site: SiteBook, hello: Hello, epoch: int) -> None:
        """A site is there that was not."""
        site.labels = hello.labels
        self._outcome.sites[site.name] = SiteRow(site.name, site.client, hello.samples, hello.labels)
        holds = hello.holds if hello.run == self.run and hello.holds in self._brought_back(site) else None
        labels = hello.labels if self._labels else None
        self._happen(now, Joined(site.client, hello.samples, epoch, holds, labels))
        if holds is not None and self.stopped is None:
            self._remind(site, holds)
        fleet = self.server.fleet
        if not self.server.begun and self.stopped is None and len(fleet) >= self.terms.clients:
            if self.terms.evaluate_versions is not None:
                self._outcome.evaluations.append(self.evaluation())
            self._happen(now, Begin())

    def _brought_back(self, site: SiteBook) -> set[TaskId]:
        """The task that a site may bring back, if there is one."""
        lost = self.server.lost.get(site.client)
        return {lost.id} & self.books.gone.keys() if lost is not None else set()

    def _settle(self, site: SiteBook, hello: Hello) -> None:
        """Tell a site what has become of the task it has in hand, if that is over."""
        task = hello.holds
        if task is None:
            return
        fate = self.books.fate(site.client, task) if hello.run == self.run else None
        if fate is Fate.ARRIVED:
            self._say(site.name, Receipt(task, accepted=True))
        elif hello.run != self.run:
            self._say(site.name, Forget(task, f"it is of another run, {hello.run!r}"))
        elif fate is None:
            self._say(site.name, Forget(task, "the server never gave it to this site"))
        elif fate is Fate.DISCARDED:
            self._say(site.name, Forget(task, "its update was not wanted"))
        elif fate is Fate.LOST and task not in self._brought_back(site):
            self._say(site.name, Forget(task, _GIVEN_UP))

    def _remind(self, site: SiteBook, holds: TaskId | None) -> None:
        """Tell a site that is back what it may have missed about its task."""
        task = self.server.tasks.get(site.client)
        if task is None:
            return
        assignment = self.books.assigned[task.id]
        if holds != task.id:
            self._assign(assignment.command)
        elif assignment.asked:
            self._answer(site, assignment.answer, task.id)
        if task.recalled:
            self._say(site.name, CutShort(task.id))
        if assignment.upload is not None:
            self._say(site.name, MaySend(task.id, assignment.upload.bits))

    def _hear(self, now: float, site: SiteBook, message: FromSite) -> None:
        match message:
            case Beat():
                self.seen(now, site.name, message)
                self._say(site.name, Beat())
            case Asks():
                self._asks(now, site, message)
            case Done():
                self._done(now, site, message)
            case Result():
                self._result(now, site, message)
            case Failed():
                if self._running(site, message.task) is not None:
                    self._happen(now, Lost(site.client, message.task, _short(message.reason)))
            case Bye():
                site.connected = False
                self._happen(now, Left(site.client, reason=_short(message.reason) or "left"))
                self._outcome.closed.append((site.name, "the site said goodbye"))

    def _running(self, site: SiteBook, task_id: TaskId) -> Task | None:
        """The site's task in training, if this is it."""
        task = self.server.tasks.get(site.client)
        return task if task is not None and task.id == task_id else None

    def _asks(self, now: float, site: SiteBook, asks: Asks) -> None:
        task = self._running(site, asks.task)
        if task is None:
            self._say(site.name, Forget(asks.task, "it is not in training"))
            return
        assignment = self.books.assigned[task.id]
        if assignment.asked:
            self._answer(site, assignment.answer, task.id)
        elif asks.steps != task.ask_after or not task.ask_after:
            wanted = f"after {task.ask_after} steps" if task.ask_after else "never"
            self._reject(RejectedError("request", ""))
            self._say(site.name, Refused(f"task {task.id} is to ask {wanted}, not after {asks.steps}", False))
            self._say(site.name, Fresh(task.id))
        else:
            self._happen(now, WantsModel(site.client, task.id, asks.steps))

    def _done(self, now: float, site: SiteBook, done: Done) -> None:
        task = self._running(site, done.task)
        if task is None:
            self._say(site.name, Forget(done.task, "it is not in training"))
            return
        upload = self.books.assigned[task.id].upload
        if upload is not None:
            self._say(site.name, MaySend(task.id, upload.bits))
        elif not task.ready:
            try:
                if not task.hold:
                    raise RejectedError("request", f"task {task.id} is not one to hold")
                metrics = check_metrics(done.metrics)
                steps = check_steps(done.steps, task.steps)
            except RejectedError as error:
                self._reject(error)
                self._say(site.name, Forget(task.id, str(error)))
                self._happen(now, Lost(site.client, task.id, f"rejected: {error}"))
            else:
                self._happen(now, Ready(site.client, task.id, steps, metrics))

    def _result(self, now: float, site: SiteBook, result: Result) -> None:
        task = self._running(site, result.task)
        if task is None:
            self._say(site.name, self._late(site, result.task))
            return
        assignment, layout = self.books.assigned[task.id], self.tensors.model.layout
        try:
            if task.hold and assignment.upload is None:
                raise RejectedError("request", f"task {task.id} was not let send its update")
            steps = assignment.command.steps
            checked = check_result(result, layout, steps, self.algorithm.codec, self.terms.norm_bound)
        except RejectedError as error:
            self._reject(error)
            self._say(site.name, Receipt(task.id, accepted=False, reason=str(error)))
            self._happen(now, Lost(site.client, task.id, f"rejected: {error}"))
            return
        self._say(site.name, Receipt(task.id, accepted=True))
        self._outcome.updates[task.id] = checked
        self._happen(now, Arrived(site.client, task.id, result.steps, checked.metrics), checked)

    def _late(self, site: SiteBook, task: TaskId) -> Receipt:
        """The answer to an update of a task that is not in training."""
        fate = self.books.fate(site.client, task)
        if fate is Fate.ARRIVED:
            return Receipt(task, accepted=True)
        if fate is None:
            error = RejectedError("foreign task", f"task {task} was never given to this site")
            self._reject(error)
            return Receipt(task, accepted=False, reason=str(error))
        return Receipt(task, accepted=False, reason=f"task {task} is over: it was {fate.name.lower()}")

    # ---- what happens ----

    def _silent(self, now: float, site: SiteBook) -> None:
        """A site's lease is over."""
        if site.present and self.stopped is None:
            site.connected = False
            reason = f"silent for {self.terms.lease:g} s"
            self._happen(now, Left(site.client, reason=reason))
            self._outcome.closed.append((site.name, reason))

    def _happen(self, now: float, event: Event, result: LocalResult | None = None) -> None:
        """Feed one event, write it down, and carry out what the algorithm commands."""
        server = self.server
        version = server.version
        commands = server.feed(now, event)
        self._write(event_row(self.rows, now, event, version, server.subject))
        self._enter(now, event, server.subject, result)
        for command in commands:
            version = command.version if isinstance(command, Aggregate) else version
            self._write(command_row(self.rows, now, command, version))
            self._carry_out(command)
        if isinstance(event, WantsModel) and event.task in self.books.assigned:
            assignment = self.books.assigned[event.task]
            assignment.asked = True
            self._answer(self.books.by_client[event.client], assignment.answer, event.task)
        self._check_limits(now)

    def _enter(self, now: float, event: Event, task: Task | None, result: LocalResult | None) -> None:
        """Enter an event into the books, and its tensors."""
        books = self.books
        match event:
            case Joined():
                site = books.by_client[event.client]
                site.present, site.samples, site.steps_per_epoch = True, event.samples, event.steps_per_epoch
                if event.holds is not None:
                    books.bring_back(event.holds)
                for lost in [t for t in books.gone if books.owners[t] == event.client]:
                    books.give_up(lost)
                    self.tensors.lose(lost)
            case Arrived():
                assert task is not None
                self._arrived(now, event, task, result)
            case Lost():
                books.end(event.task, Fate.LOST)
                self.tensors.lose(event.task)
            case Left():
                books.by_client[event.client].present = False
                for lost in books.leave_behind(task, self.terms.remembered) if task is not None else ():
                    self.tensors.lose(lost)
            case Begin():
                self.began = self._next_evaluation = now
            case _:
                pass

    def _arrived(self, now: float, event: Arrived, task: Task, result: LocalResult | None) -> None:
        site = self.books.by_client[event.client]
        self.books.end(event.task, Fate.ARRIVED)
        site.updates += 1
        site.staleness, site.steps_done = task.staleness, 0
        site.speed = event.steps / (now - task.started) if now > task.started else 0.0
        self.staleness_sum += task.staleness
        self.bits_up += int(event.metrics.get("bits", 8 * self._model_bytes))
        if result is not None:
            self.tensors.arrive(task, result)

    def _carry_out(self, command: Command) -> None:
        books, tensors = self.books, self.tensors
        match command:
            case Train():
                books.assign(command)
                books.by_client[command.client].steps_done = 0
                if self._with_tensors:
                    tensors.dispatch(command.task)
                self._assign(command)
            case Send():
                books.assigned[command.task].answer = command
                if self._with_tensors:
                    tensors.send(command.task)
            case Recall():
                self._say(books.by_client[command.client].name, CutShort(command.task))
            case Upload():
                books.assigned[command.task].upload = command
                self._say(books.by_client[command.client].name, MaySend(command.task, command.bits))
            case Discard():
                books.end(command.task, Fate.DISCARDED)
                tensors.lose(command.task)
                self._say(books.by_client[command.client].name, Forget(command.task, command.reason))
            case Aggregate():
                self._aggregate(command)
            case Drop():
                if self._with_tensors:
                    tensors.drop(command.task)
            case _:
                pass

    def _aggregate(self, command: Aggregate) -> None:
        if self._with_tensors:
            self.tensors.aggregate(command)
        every = self.terms.evaluate_versions
        if every is not None and command.version % every == 0 and self._past is None:
            self._outcome.evaluations.append(self.evaluation())

    # ---- what is said ----

    def _assign(self, command: Train) -> None:
        """Give a task to its site, or give it again."""
        if self._past is not None:
            return
        c, (base, model) = command, self.tensors.bases[command.task]
        self._say(
            self.books.by_client[c.client].name,
            Assign(c.task, base, c.steps, self._seed, model, c.ask_after, c.lr_factor, c.hold),
        )

    def _answer(self, site: SiteBook, sent: Send | None, task: TaskId) -> None:
        """Answer a request for a model: with one, or that there is none."""
        if self._past is not None:
            return
        if sent is None:
            self._say(site.name, Fresh(task))
        else:
            version, model = self.tensors.fresh[task]
            self._say(site.name, Fresh(task, version, sent.clock, model))

    def _say(self, name: str, message: FromServer) -> None:
        if self._past is None:
            self._outcome.messages.append((name, message))

    def _reject(self, error: RejectedError) -> None:
        self.rejected[error.kind] += 1

    def _write(self, row: Row) -> None:
        self.rows += 1
        if self._past is None:
            self._outcome.rows.append(row)
            return
        recorded = self._past.popleft() if self._past else None
        if recorded != row:
            raise RunError(
                f"the run cannot be brought back: it now gives {row}, the journal has {recorded}. "
                "Use the version of Offbeat and the configuration it was started with"
            )

    # ---- time and limits ----

    def _clock(self, now: float) -> float:
        """The time, which never goes back."""
        self.now = max(now, self.now, self.server.now)
        return self.now

    def _ends(self) -> float | None:
        """When the run ends at the latest: seconds count from its beginning, not from the server's start."""
        if self.began is None or self.terms.seconds is None:
            return None
        return self.began + self.terms.seconds

    def _evaluate_by_time(self, now: float) -> None:
        every = self.terms.evaluate_seconds
        if every is None or self.began is None or self.stopped is not None or now < self._next_evaluation:
            return
        self._outcome.evaluations.append(self.evaluation())
        self._next_evaluation = self.began + every * ((now - self.began) // every + 1)

    def _check_limits(self, now: float) -> None:
        terms, server = self.terms, self.server
        if server.stopped is not None:
            self.stop(now, server.stopped)
        elif terms.versions is not None and server.version >= terms.versions:
            self.stop(now, f"reached {terms.versions} versions")
        elif terms.tasks is not None and server.counts["arrived"] >= terms.tasks:
            self.stop(now, f"reached {terms.tasks} client tasks")

    @property
    def bytes_down(self) -> int:
        """Bytes sent to sites: one model a task, and those they asked for; without what was sent again."""
        return (self.server.dispatched + self.server.sent) * self._model_bytes

    @property
    def bytes_up(self) -> int:
        """Bytes of the updates that arrived, as their codec made them."""
        return self.bits_up // 8


def _check(algorithm: Algorithm, terms: Terms) -> None:
    if Feature.RADIO in algorithm.needs:
        raise UsageError(
            f"{algorithm.name} needs {describe(Feature.RADIO)}, which a network has not: "
            "simulate it, or choose another algorithm (offbeat algorithms lists what each needs)"
        )
    concurrency = algorithm.schedule.concurrency
    if concurrency is not None and concurrency > terms.clients:
        raise UsageError(
            f"{algorithm.name}: {concurrency} clients cannot train at the same time when the run begins with "
            f"{terms.clients}; choose at most {terms.clients}, or begin with more (clients)"
        )


def _short(reason: str) -> str:
    """What a site gives as a reason, as one short line."""
    line = " ".join("".join(c if c.isprintable() else " " for c in reason).split())
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 1] + "…"
