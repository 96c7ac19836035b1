"""What a server makes of what its sites send: answers, and events for the algorithm.

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
    shorten,
)
from offbeat.net.server.circuit_breaker import CircuitBreaker
from offbeat.net.server.driver import Driver
from offbeat.net.server.effects import SiteRow
from offbeat.net.server.options import ServerOptions
from offbeat.net.server.registry import SiteRecord, TaskStatus
from offbeat.net.server.validation import (
    InvalidUpdateError,
    check_metrics,
    check_register,
    check_steps,
    check_update,
)


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What sites are told of a run, and what is asked of them.

    Args:
        run: The run's name.
        plan: The run's plan as plain JSON values, for every site.
        classes: Number of classes of the data; None for any.
        labels: Whether the algorithm needs each site's numbers of samples by class.
        batch_size: Samples in a batch.
        codec: The codec of updates, if the algorithm has one.
    """

    run: str
    plan: Mapping[str, Any]
    classes: int | None
    labels: bool
    batch_size: int
    codec: Codec | None


class MessageHandler:
    """Handles the messages of sites. `rejected` counts what was not accepted by the kind of its error."""

    def __init__(self, driver: Driver, info: RunInfo, options: ServerOptions) -> None:
        self.rejected: Counter[str] = Counter()
        self.breaker = CircuitBreaker(options.setbacks)
        self._driver, self._info, self._options = driver, info, options
        self._registry, self._server, self._send = driver.registry, driver.server, driver.send

    def handle(self, now: float, name: str, message: FromSite) -> None:
        """Handle a message of a site."""
        site = self._registry.sites.get(name)
        if self._driver.stopped is not None:
            self._send(name, RunFinished(self._driver.stopped))
        elif isinstance(message, Register):
            self._on_register(now, name, message)
        elif site is None or not site.present:
            self._send(name, Rejected("this site is not registered: register first", final=False))
            self._driver.close(name, "the site is not registered")
        else:
            site.last_seen = now
            self._dispatch(now, site, message)

    def on_heartbeat(self, now: float, name: str, heartbeat: Heartbeat | None = None) -> None:
        """A site is alive, and tells its progress if it sent a heartbeat."""
        site = self._registry.sites.get(name)
        if site is not None and site.present:
            site.last_seen = max(site.last_seen, now)
            task = self._server.tasks.get(site.client)
            if heartbeat is not None and task is not None and heartbeat.task == task.id:
                site.steps_done = min(max(heartbeat.steps, 0), task.steps)

    def _dispatch(self, now: float, site: SiteRecord, message: FromSite) -> None:
        match message:
            case ModelRequest():
                self._on_model_request(now, site, message)
            case UpdateReady():
                self._on_ready(now, site, message)
            case UpdateSubmission():
                self._on_update(now, site, message)
            case TaskFailed():
                if self._running(site, message.task) is not None:
                    self._fail_task(now, site, message.task, shorten(message.reason))
            case Leave():
                site.connected = False
                self._driver.apply(now, Left(site.client, reason=shorten(message.reason) or "left"))
                self.breaker.record_failure(now, site.name)
                self._driver.close(site.name, "the site has left")
            case _:
                pass

    # ---- registration ----

    def _on_register(self, now: float, name: str, register: Register) -> None:
        info = self._info
        try:
            check_register(register, info.classes, info.labels)
        except InvalidUpdateError as error:
            self.rejected[error.kind] += 1
            self._send(name, Rejected(str(error)))
            self._driver.close(name, str(error))
            return
        site = self._registry.sites.get(name) or self._registry.add(name, len(self._registry.sites))
        steps_per_epoch = register.steps_per_epoch or -(-register.samples // info.batch_size)
        data = (register.samples, steps_per_epoch, register.labels)
        if not site.present and self._is_blocked(now, site):
            return
        site.connected, site.last_seen = True, now
        self._send(name, Registered(site.client, info.run, info.plan, self._options.lease))
        if site.present and (site.samples, site.steps_per_epoch, site.labels) != data:
            self._driver.apply(now, Left(site.client, reason="came back with other data"))
            self.breaker.record_failure(now, name)
            if self._is_blocked(now, site):
                return
        holds = register.holds if register.run == info.run else None
        self._resolve_held(site, register)
        if site.present:
            self._resend(site, holds)
        elif self._driver.stopped is None:
            self._join(now, site, register, steps_per_epoch, holds)
        self._begin_if_ready(now)

    def _is_blocked(self, now: float, site: SiteRecord) -> bool:
        """Whether a site's circuit is open, which it is told."""
        wait = self.breaker.closed_at(site.name) - now
        if wait <= 0:
            return False
        reason = f"this site has failed too often in a row: it may come back in {wait:.0f} s"
        site.connected = False
        self._send(site.name, Rejected(reason, final=False))
        self._driver.close(site.name, reason)
        return True

    def _join(
        self, now: float, site: SiteRecord, register: Register, steps_per_epoch: int, holds: TaskId | None
    ) -> None:
        driver, labels = self._driver, register.labels
        site.labels = labels
        driver.effects.sites[site.name] = SiteRow(site.name, site.client, register.samples, labels)
        holds = holds if holds is not None and self._can_bring_back(site, holds) else None
        told = labels if self._info.labels else None
        driver.apply(now, Joined(site.client, register.samples, steps_per_epoch, holds, told))
        if holds is not None and driver.stopped is None:
            self._resend(site, holds)

    def _begin_if_ready(self, now: float) -> None:
        """Begin once enough sites are there; a restarted server may need fewer than before."""
        driver = self._driver
        if self._server.begun or driver.stopped is not None:
            return
        if len(self._server.fleet) >= self._options.clients:
            if self._options.evaluate.versions is not None:
                driver.effects.evaluations.append(driver.evaluation(now))
            driver.apply(now, Begin())

    def _can_bring_back(self, site: SiteRecord, task: TaskId) -> bool:
        """Whether this is the task that the site was lost with, and its base is still there."""
        lost = self._server.lost.get(site.client)
        return lost is not None and lost.id == task and task in self._registry.gone

    def _resolve_held(self, site: SiteRecord, register: Register) -> None:
        """Tell a site the end of the task it holds, if that is over."""
        task = register.holds
        if task is None:
            return
        status = self._registry.fate(site.client, task)
        answer: UpdateAck | TaskCancel | None = None
        if register.run != self._info.run:
            answer = TaskCancel(task, f"it is of another run, {register.run!r}")
        elif status is None:
            answer = TaskCancel(task, "the server never assigned it to this site")
        elif status is TaskStatus.ARRIVED:
            answer = UpdateAck(task, accepted=True)
        elif status is TaskStatus.DISCARDED:
            answer = TaskCancel(task, "its update is not needed")
        elif status is TaskStatus.LOST and not self._can_bring_back(site, task):
            answer = TaskCancel(task, "it was given up, as the site was away for longer than its lease")
        if answer is not None:
            self._send(site.name, answer)

    def _resend(self, site: SiteRecord, holds: TaskId | None) -> None:
        """Send a site that is back what it may have missed about its task."""
        task = self._server.tasks.get(site.client)
        if task is None:
            return
        record = self._registry.assigned[task.id]
        if holds != task.id:
            self._driver.assign(record.command)
        elif record.asked:
            self._driver.answer(site, record.answer, task.id)
        if task.recalled:
            self._send(site.name, TaskRecall(task.id))
        if record.upload is not None:
            self._send(site.name, UploadGrant(task.id, record.upload.bits))

    # ---- tasks ----

    def _running(self, site: SiteRecord, task_id: TaskId) -> Task | None:
        """The site's task in training, if it is this one."""
        task = self._server.tasks.get(site.client)
        return task if task is not None and task.id == task_id else None

    def _on_model_request(self, now: float, site: SiteRecord, request: ModelRequest) -> None:
        task = self._running(site, request.task)
        if task is None:
            self._send(site.name, TaskCancel(request.task, "it is not in training"))
            return
        record = self._registry.assigned[task.id]
        if record.asked:
            self._driver.answer(site, record.answer, task.id)
        elif request.steps != task.ask_after or not task.ask_after:
            allowed = f"after {task.ask_after} steps" if task.ask_after else "never"
            self.rejected["request"] += 1
            reason = f"task {task.id} may request a model {allowed}, not after {request.steps}"
            self._send(site.name, Rejected(reason, final=False))
            self._send(site.name, ModelResponse(task.id))
        else:
            self._driver.apply(now, WantsModel(site.client, task.id, request.steps))

    def _on_ready(self, now: float, site: SiteRecord, ready: UpdateReady) -> None:
        task = self._running(site, ready.task)
        if task is None:
            self._send(site.name, TaskCancel(ready.task, "it is not in training"))
            return
        upload = self._registry.assigned[task.id].upload
        if upload is not None:
            self._send(site.name, UploadGrant(task.id, upload.bits))
        elif not task.ready:
            try:
                if not task.hold:
                    raise InvalidUpdateError(f"task {task.id} is not to be held", "request")
                metrics = check_metrics(ready.metrics)
                steps = check_steps(ready.steps, task.steps)
            except InvalidUpdateError as error:
                self._refuse(now, site, TaskCancel(task.id, str(error)), error)
            else:
                self._driver.apply(now, Ready(site.client, task.id, steps, metrics))

    def _on_update(self, now: float, site: SiteRecord, update: UpdateSubmission) -> None:
        task = self._running(site, update.task)
        if task is None:
            self._send(site.name, self._ack_late(site, update.task))
            return
        record, layout = self._registry.assigned[task.id], self._driver.tensors.model.layout
        try:
            if task.hold and record.upload is None:
                raise InvalidUpdateError(f"task {task.id} has no grant to send its update", "request")
            steps = record.command.steps
            result = check_update(update, layout, steps, self._info.codec, self._options.norm_bound)
        except InvalidUpdateError as error:
            self._refuse(now, site, UpdateAck(task.id, accepted=False, reason=str(error)), error)
            return
        self.breaker.record_success(site.name)
        self._send(site.name, UpdateAck(task.id, accepted=True))
        self._driver.effects.updates[task.id] = result
        self._driver.apply(now, Arrived(site.client, task.id, update.steps, result.metrics), result)

    def _refuse(
        self, now: float, site: SiteRecord, answer: UpdateAck | TaskCancel, error: InvalidUpdateError
    ) -> None:
        self.rejected[error.kind] += 1
        self._send(site.name, answer)
        self._fail_task(now, site, answer.task, f"rejected: {error}")

    def _fail_task(self, now: float, site: SiteRecord, task: TaskId, reason: str) -> None:
        """A task is lost; its site has left, if that opens its circuit."""
        failures = self.breaker.record_failure(now, site.name)
        if failures is None:
            self._driver.apply(now, Lost(site.client, task, reason))
            return
        reason = shorten(f"sent away (setbacks in a row: {failures}), the last: {reason}")
        site.connected = False
        self._driver.apply(now, Left(site.client, reason=reason))
        self._driver.close(site.name, reason)

    def _ack_late(self, site: SiteRecord, task: TaskId) -> UpdateAck:
        """The answer to an update of a task that is not in training."""
        status = self._registry.fate(site.client, task)
        if status is TaskStatus.ARRIVED:
            return UpdateAck(task, accepted=True)
        if status is None:
            self.rejected["foreign task"] += 1
            return UpdateAck(task, accepted=False, reason=f"task {task} was never assigned to this site")
        return UpdateAck(task, accepted=False, reason=f"task {task} is over: it was {status.name.lower()}")
