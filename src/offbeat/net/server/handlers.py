"""What a server makes of what its sites say: answers, and events for the algorithm.

Nothing that a site says is trusted, and all of it may come twice: the second time changes nothing. Who comes
back in time is told again what it may have missed.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from offbeat.core.algorithm import Task
from offbeat.core.codec import Codec
from offbeat.core.events import Arrived, Begin, Joined, Left, Lost, Ready, TaskId, WantsModel
from offbeat.net.messages import (
    FromSite,
    Heartbeat,
    Leave,
    ModelRequest,
    ModelResponse,
    Register,
    Registered,
    Rejected,
    RunFinished,
    TaskCancel,
    TaskFailed,
    TaskRecall,
    UpdateAck,
    UpdateReady,
    UpdateSubmission,
    UploadGrant,
)
from offbeat.net.server.circuit_breaker import CircuitBreaker
from offbeat.net.server.driver import Driver
from offbeat.net.server.effects import SiteRow
from offbeat.net.server.options import ServerOptions
from offbeat.net.server.registry import SiteRecord, TaskStatus
from offbeat.net.server.validation import (
    InvalidUpdateError,
    check_hello,
    check_metrics,
    check_result,
    check_steps,
)

LONGEST_REASON = 200
_GIVEN_UP = "it was given up, as the site was away for longer than its lease"


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What sites are told of a run, and what is asked of them.

    `run` names the run, `plan` is what each site is told of it (plain JSON values). `labels` says that the
    algorithm needs each site's numbers of samples by class, of which there are `classes` (none: any number).
    """

    run: str
    plan: Mapping[str, Any]
    classes: int | None
    labels: bool
    batch_size: int
    codec: Codec | None


class MessageHandler:
    """Hears sites. `rejected` counts, by a word for the reason, what was not accepted."""

    def __init__(self, driver: Driver, conditions: RunInfo, options: ServerOptions) -> None:
        self.rejected: Counter[str] = Counter()
        self.probation = CircuitBreaker(options.setbacks)
        self._driver, self._conditions, self._options = driver, conditions, options
        self._registry, self._server = driver.registry, driver.server

    def hear(self, now: float, name: str, message: FromSite) -> None:
        """A site says something."""
        site = self._registry.sites.get(name)
        if self._driver.stopped is not None:
            self._driver.say(name, RunFinished(self._driver.stopped))
        elif isinstance(message, Register):
            self._hello(now, name, message)
        elif site is None or not site.present:
            self._driver.say(
                name, Rejected("the server does not know that this site is there: say hello", final=False)
            )
            self._driver.hang_up(name, "the site has not said hello")
        else:
            site.last_seen = now
            self._said(now, site, message)

    def seen(self, now: float, name: str, beat: Heartbeat | None = None) -> None:
        """A site has given a sign of life."""
        site = self._registry.sites.get(name)
        if site is not None and site.present:
            site.last_seen = max(site.last_seen, now)
            task = self._server.tasks.get(site.client)
            if beat is not None and task is not None and beat.task == task.id:
                site.steps_done = min(max(beat.steps, 0), task.steps)

    def _said(self, now: float, site: SiteRecord, message: FromSite) -> None:
        match message:
            case Heartbeat():
                self.seen(now, site.name, message)
                self._driver.say(site.name, Heartbeat())
            case ModelRequest():
                self._asks(now, site, message)
            case UpdateReady():
                self._done(now, site, message)
            case UpdateSubmission():
                self._result(now, site, message)
            case TaskFailed():
                if self._running(site, message.task) is not None:
                    self._nothing_came(now, site, message.task, _short(message.reason))
            case Leave():
                site.connected = False
                self._driver.apply(now, Left(site.client, reason=_short(message.reason) or "left"))
                self.probation.setback(now, site.name)
                self._driver.hang_up(site.name, "the site said goodbye")

    # ---- who is there ----

    def _hello(self, now: float, name: str, hello: Register) -> None:
        told, say = self._conditions, self._driver.say
        try:
            check_hello(hello, told.classes, told.labels)
        except InvalidUpdateError as error:
            self._reject(error)
            say(name, Rejected(str(error)))
            self._driver.hang_up(name, str(error))
            return
        epoch = hello.steps_per_epoch or -(-hello.samples // told.batch_size)
        site = self._registry.sites.get(name) or self._registry.add(name, len(self._registry.sites))
        data = (hello.samples, epoch, hello.labels)
        if not site.present and self._stays_away(now, site):
            return
        site.connected, site.last_seen = True, now
        say(name, Registered(site.client, told.run, told.plan, self._options.lease))
        if site.present and (site.samples, site.steps_per_epoch, site.labels) != data:
            self._driver.apply(now, Left(site.client, reason="came back with other data"))
            self.probation.setback(now, name)
            if self._stays_away(now, site):
                return
        self._settle(site, hello)
        if site.present:
            self._remind(site, hello.holds if hello.run == told.run else None)
        elif self._driver.stopped is None:
            self._join(now, site, hello, epoch)
        self._begin(now)

    def _stays_away(self, now: float, site: SiteRecord) -> bool:
        """Is a site that wants to come told that it is too early?"""
        wait = self.probation.until(site.name) - now
        if wait <= 0:
            return False
        reason = f"too often in a row nothing came of this site: it may come back in {wait:.0f} s"
        site.connected = False
        self._driver.say(site.name, Rejected(reason, final=False))
        self._driver.hang_up(site.name, reason)
        return True

    def _join(self, now: float, site: SiteRecord, hello: Register, epoch: int) -> None:
        """A site is there that was not."""
        driver, told = self._driver, self._conditions
        site.labels = hello.labels
        driver.effects.sites[site.name] = SiteRow(site.name, site.client, hello.samples, hello.labels)
        holds = hello.holds if hello.run == told.run and hello.holds in self._brought_back(site) else None
        labels = hello.labels if told.labels else None
        driver.apply(now, Joined(site.client, hello.samples, epoch, holds, labels))
        if holds is not None and driver.stopped is None:
            self._remind(site, holds)

    def _begin(self, now: float) -> None:
        """Begin, once all are there; who is may have come to a server that waited for more."""
        driver = self._driver
        if self._server.begun or driver.stopped is not None:
            return
        if len(self._server.fleet) >= self._options.clients:
            if self._options.evaluate.versions is not None:
                driver.effects.evaluations.append(driver.evaluation(now))
            driver.apply(now, Begin())

    def _brought_back(self, site: SiteRecord) -> set[TaskId]:
        """The task that a site may bring back, if there is one."""
        lost = self._server.lost.get(site.client)
        return {lost.id} & self._registry.gone.keys() if lost is not None else set()

    def _settle(self, site: SiteRecord, hello: Register) -> None:
        """Tell a site what has become of the task it has in hand, if that is over."""
        task, run, say = hello.holds, self._conditions.run, self._driver.say
        if task is None:
            return
        fate = self._registry.fate(site.client, task) if hello.run == run else None
        if fate is TaskStatus.ARRIVED:
            say(site.name, UpdateAck(task, accepted=True))
        elif hello.run != run:
            say(site.name, TaskCancel(task, f"it is of another run, {hello.run!r}"))
        elif fate is None:
            say(site.name, TaskCancel(task, "the server never gave it to this site"))
        elif fate is TaskStatus.DISCARDED:
            say(site.name, TaskCancel(task, "its update was not wanted"))
        elif fate is TaskStatus.LOST and task not in self._brought_back(site):
            say(site.name, TaskCancel(task, _GIVEN_UP))

    def _remind(self, site: SiteRecord, holds: TaskId | None) -> None:
        """Tell a site that is back what it may have missed about its task."""
        task = self._server.tasks.get(site.client)
        if task is None:
            return
        assignment = self._registry.assigned[task.id]
        if holds != task.id:
            self._driver.assign(assignment.command)
        elif assignment.asked:
            self._driver.answer(site, assignment.answer, task.id)
        if task.recalled:
            self._driver.say(site.name, TaskRecall(task.id))
        if assignment.upload is not None:
            self._driver.say(site.name, UploadGrant(task.id, assignment.upload.bits))

    # ---- its task ----

    def _running(self, site: SiteRecord, task_id: TaskId) -> Task | None:
        """The site's task in training, if this is it."""
        task = self._server.tasks.get(site.client)
        return task if task is not None and task.id == task_id else None

    def _asks(self, now: float, site: SiteRecord, asks: ModelRequest) -> None:
        say = self._driver.say
        task = self._running(site, asks.task)
        if task is None:
            say(site.name, TaskCancel(asks.task, "it is not in training"))
            return
        assignment = self._registry.assigned[task.id]
        if assignment.asked:
            self._driver.answer(site, assignment.answer, task.id)
        elif asks.steps != task.ask_after or not task.ask_after:
            wanted = f"after {task.ask_after} steps" if task.ask_after else "never"
            self._reject(InvalidUpdateError("request", ""))
            say(site.name, Rejected(f"task {task.id} is to ask {wanted}, not after {asks.steps}", False))
            say(site.name, ModelResponse(task.id))
        else:
            self._driver.apply(now, WantsModel(site.client, task.id, asks.steps))

    def _done(self, now: float, site: SiteRecord, done: UpdateReady) -> None:
        task = self._running(site, done.task)
        if task is None:
            self._driver.say(site.name, TaskCancel(done.task, "it is not in training"))
            return
        upload = self._registry.assigned[task.id].upload
        if upload is not None:
            self._driver.say(site.name, UploadGrant(task.id, upload.bits))
        elif not task.ready:
            try:
                if not task.hold:
                    raise InvalidUpdateError("request", f"task {task.id} is not one to hold")
                metrics = check_metrics(done.metrics)
                steps = check_steps(done.steps, task.steps)
            except InvalidUpdateError as error:
                self._reject(error)
                self._driver.say(site.name, TaskCancel(task.id, str(error)))
                self._nothing_came(now, site, task.id, f"rejected: {error}")
            else:
                self._driver.apply(now, Ready(site.client, task.id, steps, metrics))

    def _result(self, now: float, site: SiteRecord, result: UpdateSubmission) -> None:
        task = self._running(site, result.task)
        if task is None:
            self._driver.say(site.name, self._late(site, result.task))
            return
        assignment, layout = self._registry.assigned[task.id], self._driver.tensors.model.layout
        try:
            if task.hold and assignment.upload is None:
                raise InvalidUpdateError("request", f"task {task.id} was not let send its update")
            steps = assignment.command.steps
            checked = check_result(result, layout, steps, self._conditions.codec, self._options.norm_bound)
        except InvalidUpdateError as error:
            self._reject(error)
            self._driver.say(site.name, UpdateAck(task.id, accepted=False, reason=str(error)))
            self._nothing_came(now, site, task.id, f"rejected: {error}")
            return
        self.probation.delivered(site.name)
        self._driver.say(site.name, UpdateAck(task.id, accepted=True))
        self._driver.effects.updates[task.id] = checked
        self._driver.apply(now, Arrived(site.client, task.id, result.steps, checked.metrics), checked)

    def _nothing_came(self, now: float, site: SiteRecord, task: TaskId, reason: str) -> None:
        """A task is lost; and its site leaves, if this was once too often."""
        often = self.probation.setback(now, site.name)
        if often is None:
            self._driver.apply(now, Lost(site.client, task, reason))
            return
        said = _short(f"sent away (setbacks in a row: {often}), the last: {reason}")
        site.connected = False
        self._driver.apply(now, Left(site.client, reason=said))
        self._driver.hang_up(site.name, said)

    def _late(self, site: SiteRecord, task: TaskId) -> UpdateAck:
        """The answer to an update of a task that is not in training."""
        fate = self._registry.fate(site.client, task)
        if fate is TaskStatus.ARRIVED:
            return UpdateAck(task, accepted=True)
        if fate is None:
            error = InvalidUpdateError("foreign task", f"task {task} was never given to this site")
            self._reject(error)
            return UpdateAck(task, accepted=False, reason=str(error))
        return UpdateAck(task, accepted=False, reason=f"task {task} is over: it was {fate.name.lower()}")

    def _reject(self, error: InvalidUpdateError) -> None:
        self.rejected[error.kind] += 1


def _short(reason: str) -> str:
    """What a site gives as a reason, as one short line."""
    line = " ".join("".join(c if c.isprintable() else " " for c in reason).split())
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 1] + "…"
