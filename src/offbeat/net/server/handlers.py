"""What a server makes of what its sites send: answers, and events for the algorithm.

Nothing that a site says is trusted, and all of it may come twice: the second time changes nothing. Who comes
back in time is told again what it may have missed.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from offbeat.core.events import Arrived, Begin, Joined, Left, Lost, Ready, TaskId, WantsModel
from offbeat.core.features import Feature
from offbeat.core.guard import UpdateGuard
from offbeat.core.learner import LocalResult
from offbeat.core.schedule import Task
from offbeat.experiment import PreparedRun
from offbeat.local.batches import steps_per_epoch
from offbeat.net.messages import (
    LABELS_NEEDED,
    EvaluationResult,
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
    TaskReport,
    UpdateAck,
    UpdateReady,
    UpdateSubmission,
    UploadGrant,
    shorten,
    update_bytes,
)
from offbeat.net.secure.update_checks import update_check_of
from offbeat.net.server.circuit_breaker import CircuitBreaker
from offbeat.net.server.driver import Driver, Hold
from offbeat.net.server.effects import SiteRow
from offbeat.net.server.line import line_of
from offbeat.net.server.metric_names import MetricNames
from offbeat.net.server.server_options import ServerOptions
from offbeat.net.server.site_registry import SiteRecord, TaskStatus
from offbeat.net.server.validation import (
    InvalidUpdateError,
    UpdateForm,
    check_metrics,
    check_register,
    check_steps,
)
from offbeat.secure.refusals import SecureRefusal
from offbeat.units import duration_text

log = logging.getLogger(__name__)

_CANCELLED: Mapping[TaskStatus | None, str] = {
    None: "it is none of the last tasks that the server assigned to this site",
    TaskStatus.DISCARDED: "its update is not needed",
    TaskStatus.LOST: "it was given up, as the site was away for longer than its lease",
}
"""Why a site must cancel the task it holds, by what has become of it."""
_OTHER_DATA = "its update is of other data than those that the site has now"


class RunInfo(Struct, frozen=True):
    """What a run is called, and what is known of its data and its training.

    Attributes:
        run: The run's name.
        spec: The run specification that each site is sent, as plain JSON values.
        classes: Number of classes of the data; None means any.
        batch_size: Samples in a batch.
        drop_last: Whether the incomplete batch of each pass is left out.
    """

    run: str
    spec: Mapping[str, Any]
    classes: int | None = None
    batch_size: int = 1
    drop_last: bool = False


class MessageHandler:
    """Handles the messages of sites.

    Args:
        driver: Applies the events, and sends the answers.
        run: The run.
        info: What sites are told of it.
        options: The server's options.

    Attributes:
        rejected: Number of messages that were not accepted, by the kind of their error.
        unused_bytes: Bytes of updates whose tasks had been stopped, since the server's start.
        breaker: The circuit breaker of the sites.
    """

    def __init__(self, driver: Driver, run: PreparedRun, info: RunInfo, options: ServerOptions) -> None:
        self.rejected: Counter[str] = Counter()
        self.unused_bytes = 0
        self.breaker = CircuitBreaker(options.max_consecutive_failures)
        self._driver, self._info, self._options = driver, info, options
        self._every = run.experiment.evaluate
        self._labels_needed = Feature.LABELS in run.algorithm.requires
        self._registry, self._server, self._send = driver.registry, driver.server, driver.send
        self._ranges = run.algorithm.objective.metric_ranges
        self._names = MetricNames(("loss", "norm", *self._ranges))
        form = UpdateForm(run.algorithm.codec, options.norm_bound, self._ranges)
        self._updates = update_check_of(run.release_plan, form, driver)
        self._told_diverged = False

    def handle(self, now: float, name: str, message: FromSite, took: float = 0.0) -> None:
        """Handle a message of a site.

        Args:
            now: When it came, in seconds of the run's clock.
            name: The site's name.
            message: The message.
            took: Seconds in which its tensors came.
        """
        site = self._registry.sites.get(name)
        if self._driver.stopped is not None:
            self._send(name, RunFinished(self._driver.stopped))
        elif self._driver.ending is not None:
            self._on_message_at_end(now, name, message)
        elif isinstance(message, Register):
            self._on_register(now, name, message)
        elif site is None or not site.present:
            self._send(name, Rejected("this site is not registered: register first", final=False))
            self._driver.close(name, "the site is not registered")
        else:
            site.last_seen = now
            if isinstance(message, Leave):
                self._driver.disconnect(site, "the site has left")
                self._driver.apply(now, Left(site.client, reason=shorten(message.reason) or "left"))
                self.breaker.record_failure(now, name)
            elif isinstance(message, TaskReport):
                self._on_task_message(now, site, message, took)
            elif isinstance(message, EvaluationResult):
                self._on_evaluation(site, message)

    def _on_message_at_end(self, now: float, name: str, message: FromSite) -> None:
        """Handle a message while the sites evaluate the last version: no event happens any more."""
        site, evaluations = self._registry.sites.get(name), self._driver.client_evaluations
        assert evaluations is not None
        if site is None or not site.present:
            self._send(name, RunFinished(self._driver.ending or ""))
        elif isinstance(message, Register):
            site.connected, site.last_seen, site.held_out = True, now, message.held_out
            self._tell_registered(site)
            evaluations.ask(site)
        elif isinstance(message, EvaluationResult):
            self._on_evaluation(site, message)
        elif isinstance(message, Leave):
            evaluations.forget(site.client)
            self._driver.disconnect(site, "the site has left")

    def _on_evaluation(self, site: SiteRecord, result: EvaluationResult) -> None:
        if result.reason:
            said = {"site": site.name, "version": result.version, "reason": result.reason}
            log.warning("evaluation failed", extra=said)
        if self._driver.client_evaluations is None:
            return
        try:
            self._driver.client_evaluations.result(site, result)
        except InvalidUpdateError as error:
            self.rejected[error.kind] += 1
            self._send(site.name, Rejected(str(error), final=False))

    def on_heartbeat(self, now: float, name: str, heartbeat: Heartbeat | None = None) -> None:
        """A site is alive, and tells its progress if it sent a heartbeat.

        Args:
            now: When it was alive, in seconds of the run's clock.
            name: The site's name.
            heartbeat: Its message; None means another sign of life.
        """
        site = self._registry.sites.get(name)
        if site is not None and site.present:
            site.last_seen = max(site.last_seen, now)
            task = self._server.tasks.get(site.client)
            if heartbeat is not None and task is not None and heartbeat.task == task.id:
                site.steps_done = min(max(heartbeat.steps, 0), task.steps)

    # ---- registration ----

    def _on_register(self, now: float, name: str, register: Register) -> None:
        info, driver = self._info, self._driver
        # A site that registers is in one of these cases, of which the first that holds decides:
        # 1. its data or numbers do not fit the run: it is refused, or asked for its numbers by class;
        # 2. its privacy budget is spent: it is refused for good;
        # 3. it has failed too often in a row: it may come back later;
        # 4. the helpers of a secure run have put it aside: it is told why;
        # 5. it is in the run with other data: it leaves first, and joins as a new one;
        # 6. a release waits for its sum: it comes again, since its join would come before the version;
        # 7. it takes part: it joins, or goes on where it was.
        if not self._fits(name, register):
            return
        site = self._registry.sites.get(name) or self._registry.add(name, len(self._registry.sites))
        epoch = register.steps_per_epoch or steps_per_epoch(register.samples, info.batch_size, info.drop_last)
        changed = bool(site.samples) and site.data != (register.samples, epoch, register.labels or None)
        if driver.is_spent(site):
            assert driver.engine.ledger is not None
            driver.refuse(site, driver.engine.ledger.left_reason)
            return
        if not site.present and self._is_blocked(now, site):
            return
        refusal = None if driver.helpers is None else driver.helpers.site_refusal(site.client)
        if refusal is not None:
            self._send(name, refusal)
            driver.disconnect(site, refusal.reason)
            return
        site.connected, site.last_seen, site.held_out = True, now, register.held_out
        self._tell_registered(site)
        if changed:
            told = f"{register.samples} samples, before {site.samples}"
            log.info("a site has other data", extra={"site": name, "reason": told})
        if changed and site.present:
            driver.apply(now, Left(site.client, reason="came back with other data"))
            self.breaker.record_failure(now, name)
            if self._is_blocked(now, site):
                return
        if driver.hold is Hold.RELEASE:
            driver.disconnect(site, "sites are not heard while a release waits")
        else:
            self._take_part(now, site, register, epoch, changed=changed)

    def _fits(self, name: str, register: Register) -> bool:
        """Whether a site may be in this run by what it tells of its data; one that may not is told why."""
        driver = self._driver
        try:
            if register.public_key:
                ours = "none" if driver.helpers is None else ", ".join(driver.helpers.names)
                raise InvalidUpdateError(SecureRefusal.NOT_A_HELPER.format(name=name, helpers=ours), "helper")
            most, unit = self._options.max_samples, self._updates.samples_unit
            check_register(register, self._info.classes, self._labels_needed, most, unit)
            self._check_clients(name)
        except InvalidUpdateError as error:
            self.rejected[error.kind] += 1
            # A site tells its numbers by class only to a server whose plan it knows.
            if asks := str(error) == LABELS_NEEDED:
                known = self._registry.sites.get(name)
                client = len(self._registry.sites) if known is None else known.client
                self._send(name, self.registered(name, client))
            self._send(name, Rejected(str(error)))
            if not asks:
                driver.close(name, str(error))
            return False
        return True

    def _take_part(
        self, now: float, site: SiteRecord, register: Register, epoch: int, *, changed: bool
    ) -> None:
        """Have a registered site join, or go on where it was.

        Args:
            now: When it registered, in seconds of the run's clock.
            site: The site.
            register: Its message.
            epoch: Local steps of its epoch.
            changed: Whether it has other data than before.
        """
        info, driver = self._info, self._driver
        self._resolve_held(site, register, changed=changed)
        holds, came_back = register.holds if register.run == info.run else None, site.present
        if not came_back and driver.ending is None:
            holds = holds if not changed and self._can_bring_back(site, holds) else None
            labels = site.labels = register.labels or None
            driver.effects.sites[site.name] = SiteRow(site.name, site.client, register.samples, labels)
            told = labels if self._labels_needed else None
            driver.apply(now, Joined(site.client, register.samples, epoch, holds, told))
        if driver.ending is None and (came_back or holds is not None):
            self._resend(site, holds)
        if driver.client_evaluations is not None:
            driver.client_evaluations.ask(site)
        self.begin_if_ready(now)

    def _check_clients(self, name: str) -> None:
        """Raises `InvalidUpdateError` for a site with which the run would have too many for its δ."""
        ledger, sites = self._driver.engine.ledger, self._registry.sites
        if ledger is not None and name not in sites and (reason := ledger.refusal(len(sites) + 1)):
            raise InvalidUpdateError(reason, "delta")

    def registered(self, name: str, client: int) -> Registered:
        """What a site, or a helper, is told that registers."""
        info, options = self._info, self._options
        shares = options.share_model is not None
        message = Registered(client, info.run, info.spec, options.lease, shares)
        helpers = self._driver.helpers
        return message if helpers is None else helpers.registered(name, message)

    def _tell_registered(self, site: SiteRecord) -> None:
        self._send(site.name, self.registered(site.name, site.client))
        if self._driver.helpers is not None:
            self._driver.helpers.greet(site)

    def _is_blocked(self, now: float, site: SiteRecord) -> bool:
        """Whether a site's circuit is open, which it is told."""
        wait = self.breaker.closed_at(site.name) - now
        if wait <= 0:
            return False
        reason = f"this site has failed too often in a row: it may come back in {duration_text(round(wait))}"
        self._send(site.name, Rejected(reason, final=False))
        self._driver.disconnect(site, reason)
        return True

    def begin_if_ready(self, now: float) -> None:
        """Begin once enough sites, and all helpers, are there; a restarted server may need fewer sites."""
        if self._server.begun or self._driver.ending is not None:
            return
        if len(self._server.fleet) < self._options.clients:
            return
        helpers = self._driver.helpers
        if helpers is not None and not helpers.ready:
            log.info("the run waits for helpers", extra={"helpers": ", ".join(helpers.away)})
            return
        if self._every.versions is not None:
            self._driver.evaluate(now)
        self._driver.apply(now, Begin())

    def _can_bring_back(self, site: SiteRecord, task: TaskId | None) -> bool:
        """Whether this is the task that the site was lost with, and its base is still there."""
        lost = self._server.lost.get(site.client)
        return lost is not None and lost.id == task and lost.id in self._registry.gone

    def _resolve_held(self, site: SiteRecord, register: Register, *, changed: bool) -> None:
        """Tell a site the end of the task it holds, if that is over, or was trained on other data."""
        task = register.holds
        if task is None:
            return
        status = self._registry.status(site.client, task)
        if register.run != self._info.run:
            self._send(site.name, TaskCancel(task, f"it is of another run, {register.run!r}"))
        elif status is TaskStatus.ARRIVED:
            self._send(site.name, UpdateAck(task, accepted=True))
        elif status is TaskStatus.RUNNING:
            return
        elif not self._can_bring_back(site, task):
            self._send(site.name, TaskCancel(task, _CANCELLED[status]))
        elif changed:
            self._send(site.name, TaskCancel(task, _OTHER_DATA))

    def _resend(self, site: SiteRecord, holds: TaskId | None) -> None:
        """Send a site that is back what it may have missed about its task."""
        task = self._server.tasks.get(site.client)
        if task is None:
            return
        record = self._registry.assigned[task.id]
        if holds != task.id:
            self._driver.assign(record.command)
        elif record.asked:
            self._driver.answer(task.id)
        if task.recalled:
            self._send(site.name, TaskRecall(task.id))
        if record.upload is not None:
            self._send(site.name, UploadGrant(task.id, record.upload.bits))

    # ---- tasks ----

    def _on_task_message(self, now: float, site: SiteRecord, message: TaskReport, took: float) -> None:
        task = self._server.tasks.get(site.client)
        if task is None or task.id != message.task:
            self._on_ended_task(site, message)
            return
        try:
            match message:
                case ModelRequest():
                    self._on_model_request(now, site, task, message)
                case UpdateReady():
                    self._on_ready(now, site, task, message)
                case UpdateSubmission():
                    self._on_update(now, site, task, message, took)
                case TaskFailed():
                    self._fail_task(now, site, task.id, shorten(message.reason))
        except InvalidUpdateError as error:
            self.rejected[error.kind] += 1
            if self._guard is not None and error.kind == "not finite":
                self._guard.count_refused(site.client)
            if isinstance(message, UpdateSubmission):
                self._send(site.name, UpdateAck(task.id, accepted=False, reason=str(error)))
            else:
                self._send(site.name, TaskCancel(task.id, str(error)))
            self._fail_task(now, site, task.id, f"rejected: {error}")

    def _on_ended_task(self, site: SiteRecord, message: TaskReport) -> None:
        """Answer a message about a task that is not in training."""
        task, status = message.task, self._registry.status(site.client, message.task)
        if isinstance(message, ModelRequest | UpdateReady):
            self._send(site.name, TaskCancel(task, "it is not in training"))
        elif isinstance(message, UpdateSubmission):
            if status is TaskStatus.ARRIVED:
                reason = ""
            elif status is None:
                self.rejected["foreign task"] += 1
                reason = f"task {task} is none of the last tasks that were assigned to this site"
            elif status is TaskStatus.DISCARDED:
                reason = _CANCELLED[status]
                self.unused_bytes += update_bytes(message)
            else:
                reason = f"task {task} is over: it was {status.name.lower()}"
            self._send(site.name, UpdateAck(task, accepted=not reason, reason=reason))

    def _on_model_request(self, now: float, site: SiteRecord, task: Task, request: ModelRequest) -> None:
        if self._registry.assigned[task.id].asked:
            self._driver.answer(task.id)
        elif request.steps != task.ask_after or not task.ask_after:
            allowed = f"after {task.ask_after} steps" if task.ask_after else "never"
            self.rejected["request"] += 1
            reason = f"task {task.id} may request a model {allowed}, not after {request.steps}"
            self._send(site.name, Rejected(reason, final=False))
            self._send(site.name, ModelResponse(task.id))
        else:
            self._driver.apply(now, WantsModel(site.client, task.id, request.steps))

    def _on_ready(self, now: float, site: SiteRecord, task: Task, ready: UpdateReady) -> None:
        upload = self._registry.assigned[task.id].upload
        if upload is not None:
            self._send(site.name, UploadGrant(task.id, upload.bits))
        elif not task.ready:
            if not task.hold:
                raise InvalidUpdateError(f"task {task.id} is not to be held", "request")
            metrics = self._names.kept(check_metrics(ready.metrics, self._ranges))
            steps = check_steps(ready.steps, task.steps)
            self._driver.apply(now, Ready(site.client, task.id, steps, metrics))

    def _on_update(
        self, now: float, site: SiteRecord, task: Task, update: UpdateSubmission, took: float
    ) -> None:
        record, (_, base) = self._registry.assigned[task.id], self._driver.tensors.bases[task.id]
        if task.hold and record.upload is None:
            raise InvalidUpdateError(f"task {task.id} has no grant to send its update", "request")
        result = self._updates.check(site, record.command, update, base)
        if result is not None:
            own = self._driver.times.clients[site.client]
            # A site that held its update waited from then until it was asked for it.
            seconds = own.ready + took if own.ready else now - task.started
            line = line_of(seconds, took, update.received, update.trained)
            self._take(now, site, Arrived(site.client, task.id, update.steps, result.metrics, line), result)

    def _take(self, now: float, site: SiteRecord, arrived: Arrived, result: LocalResult) -> None:
        """Take an update in."""
        result, task = replace(result, metrics=self._names.kept(result.metrics)), arrived.task
        self.breaker.record_success(site.name)
        self._send(site.name, UpdateAck(task, accepted=True))
        self._driver.effects.updates[task] = self._driver.log_update(task, result)
        self._driver.apply(now, replace(arrived, metrics=result.metrics), result)

    @property
    def _guard(self) -> UpdateGuard | None:
        """The guard of the updates."""
        return self._driver.tensors.update_guard

    def _fail_task(self, now: float, site: SiteRecord, task: TaskId, reason: str) -> None:
        """A task is lost; its site has left, if that opens its circuit.

        Where the updates of all sites are refused it is not for this one, which is not blamed.
        """
        base = self._server.tasks[site.client].newest
        diverged = None if self._guard is None else self._guard.diverged
        if diverged and not self._told_diverged:
            log.error("training has diverged", extra={"reason": diverged})
        self._told_diverged = diverged is not None
        failures = None if diverged else self.breaker.record_failure(now, site.name, base)
        if failures is None:
            self._driver.apply(now, Lost(site.client, task, reason))
        else:
            reason = shorten(f"sent away (consecutive failures: {failures}), the last: {reason}")
            self._driver.disconnect(site, reason)
            self._driver.apply(now, Left(site.client, reason=reason))
