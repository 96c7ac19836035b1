"""The task that a site trains, and the update that the server has not acknowledged yet.

One thread trains, and saves what is to survive the process. Training goes on without a connection: what the
site holds is sent when there is one, and again in the next. Another thread evaluates what the server asks
for, beside the training, which does not wait for it.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import Any

from offbeat.core.error_feedback import RESIDUAL
from offbeat.core.errors import OffbeatError, RunError, reason_of
from offbeat.core.events import ClientId, TaskId
from offbeat.core.learner import own_tensors
from offbeat.core.model import Model, Tensors
from offbeat.net.backoff import retry_delay
from offbeat.net.client.store import PendingUpdate, SiteStore
from offbeat.net.client.task import TaskCancelledError, TrainingContext, TrainingTask
from offbeat.net.client.task_digests import order_digest
from offbeat.net.clock import Clock
from offbeat.net.messages import (
    EvaluationRequest,
    EvaluationResult,
    FromServer,
    FromSite,
    Heartbeat,
    ModelRequest,
    ModelResponse,
    Registered,
    TaskAssignment,
    TaskCancel,
    TaskFailed,
    TaskRecall,
    UpdateAck,
    UpdateReady,
    UploadGrant,
)
from offbeat.secure.committee import Committee

Prepare = Callable[[Mapping[str, Any], ClientId], TrainingContext]
"""Makes a training context from the server's run spec and the client's number; may raise `UsageError`."""
log = logging.getLogger(__name__)
PROGRESS_SECONDS = 60.0
"""Least time between two lines of the log on the site's progress."""


class Worker:
    """Carries out the server's messages."""

    def __init__(self, prepare: Prepare, store: SiteStore, clock: Clock) -> None:
        self._prepare, self._store, self._clock = prepare, store, clock
        # Without a connection, messages are dropped.
        self._send: Callable[[FromSite], None] = _drop
        self._thread = ThreadPoolExecutor(1, "offbeat-training")
        self._evaluation_thread = ThreadPoolExecutor(1, "offbeat-evaluation")
        self._evaluating: asyncio.Task[None] | None = None
        self._context: TrainingContext | None = None
        self._registered: Registered | None = None  # the last registration
        self._current: TrainingTask | None = None
        self._training: set[asyncio.Task[None]] = set()
        self._failures = 0
        self._told = -inf

    @property
    def task(self) -> TaskId | None:
        """The task in training, or trained and not acknowledged yet."""
        pending = self._store.pending
        return self._current.task if self._current else pending.update.task if pending else None

    @property
    def run(self) -> str:
        """The run of that task."""
        return self._store.run

    @property
    def known(self) -> bool:
        """Whether a server has registered the site before, in this process or in one of before."""
        return bool(self._store.run)

    def own_tensors(self, run: str, model: Model) -> Tensors:
        """The tensors by name of a run's global model, and those that the site has kept in it.

        A message names each tensor once; its further names, as of tied weights, are those of the module here.
        """
        state = self._store.state if run == self._store.run else {}
        aliases = self._context.learner.aliases if self._context is not None else ()
        layout = dataclasses.replace(model.layout, aliases=aliases)
        return layout.with_aliases(model.state_dict()) | own_tensors(state, layout)

    def heartbeat(self) -> Heartbeat:
        """A heartbeat, with the progress of the task in training once the server's plan is known."""
        if self._current is None or self._send is _drop:
            return Heartbeat()
        return Heartbeat(self._current.task, self._current.steps)

    def close(self) -> None:
        """Stop training."""
        self._cancel()
        for task in (*self._training, *filter(None, [self._evaluating])):
            task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._evaluation_thread.shutdown(wait=False, cancel_futures=True)
        self._store.close()

    # ---- messages of the server ----

    async def prepare(self, message: Registered) -> None:
        """Check whether the site can take part in the server's plan. Nothing is sent.

        Raises:
            UsageError: The plan does not fit the site, or offers less privacy than the run has promised.
        """
        # Updates that become ready during the preparation are not sent.
        self._send = _drop
        before, context, other = self._registered, self._context, message.run != self._store.run
        if other:
            self._cancel()
        same = before is not None and (before.plan, before.client) == (message.plan, message.client)
        if context is None or other or not same:
            loop = asyncio.get_running_loop()
            context = await loop.run_in_executor(self._thread, self._prepare, message.plan, message.client)
        self._store.runs.check_plan(message.run, context.privacy, context.policy.helpers or ())
        self._store.begin(message.run)
        self._context, self._registered = context, message

    @property
    def may_tell_labels(self) -> bool:
        """Whether the plan allows the server to ask for the numbers of samples by class."""
        return self._context is not None and self._context.may_need_labels

    def resume(self, send: Callable[[FromSite], None]) -> None:
        """Take part in this connection: send the pending update, and the open request for a model."""
        self._send = send
        self._send_pending()
        if self._current is not None and self._current.asking:
            self._send(ModelRequest(self._current.task, self._current.steps))

    def disconnected(self) -> None:
        """The connection has ended."""
        self._send = _drop

    def handle(self, message: FromServer, took: float = 0.0) -> None:
        """Carry out a message about a task, whose tensors took these seconds. Raises `UsageError`."""
        current, pending = self._current, self._store.pending
        mine = current is not None and current.task == getattr(message, "task", None)
        match message:
            case TaskAssignment():
                self._assigned(message, took)
            case ModelResponse() if current is not None and mine:
                current.answer(message)
            case TaskRecall() if current is not None and mine:
                current.recall()
            case UploadGrant() if pending is not None and pending.update.task == message.task:
                self._send_granted(pending, message.bits)
            case TaskCancel():
                log.info("task %d is cancelled: %s", message.task, message.reason)
                if mine:
                    self._cancel()
                if pending is not None:
                    # A held update was trained all the same, so its client state stays.
                    self._acknowledge(message.task, accepted=pending.held, sent=False)
            case UpdateAck():
                if message.accepted:
                    self._failures = 0
                else:
                    log.warning("the update of task %d was refused: %s", message.task, message.reason)
                self._acknowledge(message.task, accepted=message.accepted)
                if message.accepted:
                    self._tell_progress(message.task)
            case EvaluationRequest():
                if self._evaluating is not None:
                    # An evaluation that waits is cancelled; of one that runs the result is dropped.
                    self._evaluating.cancel()
                self._evaluating = asyncio.create_task(self._evaluate(message, dict(self._store.state)))
            case Committee():
                self._mask_for(message)

    def _mask_for(self, committee: Committee) -> None:
        """Mask updates for these helpers from now on. Raises `UsageError` where the site must not."""
        # The module needs the extra `secure`.
        from offbeat.net.secure.masking import Masking

        context, registered = self._context, self._registered
        assert context is not None
        assert registered is not None
        allowed = context.policy.helpers
        masking = Masking.of(
            committee, context.privacy, context.parameters, context.client, registered.site, allowed
        )
        self._store.runs.check_committee(self._store.run, committee, allowed=allowed is not None)
        before, self._context = context.masking, dataclasses.replace(context, masking=masking)
        if before is None:
            self._send_pending()

    def _assigned(self, assignment: TaskAssignment, took: float) -> None:
        assert self._context is not None
        if self._context.privacy is not None:
            # A server that has lost its newest state gives the numbers of tasks again.
            self._check_task(assignment)
        if assignment.task == self.task:
            # This site has the task already.
            if self._current is None:
                self._send_pending()
            return
        self._cancel()
        if self._store.pending is not None:
            self._acknowledge(self._store.pending.update.task, accepted=False)
        self._context.begin(assignment.steps)
        loop = asyncio.get_running_loop()

        def ask(task: TrainingTask) -> None:
            loop.call_soon_threadsafe(lambda: self._send(ModelRequest(task.task, task.steps)))

        sent = self._store.runs.result_of(self._store.run, assignment.task)
        self._current = TrainingTask(assignment, self._context, ask, sent, took)
        task = asyncio.create_task(self._train(self._current))
        self._training.add(task)
        task.add_done_callback(self._training.discard)

    def _check_task(self, assignment: TaskAssignment) -> None:
        """Note a private task. Raises `UsageError` for one that the site must not train."""
        assert self._context is not None
        assert self._registered is not None
        order = order_digest(assignment, self._registered.plan, self._context.client)
        self._store.runs.check_task(self._store.run, assignment.task, assignment.base, order)

    def _send_pending(self) -> None:
        """Send the pending update, or that it is ready; in a secure run once its helpers are known."""
        pending, context = self._store.pending, self._context
        if pending is None or (context is not None and context.waits_for_helpers):
            return
        update = pending.update
        if pending.result:
            self._store.runs.sending(self._store.run, update.task, pending.result)
        self._send(UpdateReady(update.task, update.steps, update.metrics) if pending.held else update)

    def _send_granted(self, pending: PendingUpdate, bits: int | None) -> None:
        """Send a held update within a number of bits; what it leaves out is kept before, if it is needed."""
        assert self._context is not None
        update, state = self._context.encode(pending.update, pending.state, bits)
        if state is not pending.state:
            try:
                self._store.save(dataclasses.replace(pending, residual=state[RESIDUAL]))
            except RunError as error:
                log.error("%s: what the update of task %d leaves out is in memory only", error, update.task)
        self._send(update)

    def _acknowledge(self, task: TaskId, *, accepted: bool, sent: bool = True) -> None:
        """The server has answered. A full disk does not end the site: there may be space later."""
        try:
            self._store.acknowledge(task, accepted, sent=sent)
        except (RunError, OSError) as error:
            log.error("%s: the state after task %d is in memory only", reason_of(error), task)

    def _tell_progress(self, task: TaskId) -> None:
        """Log the progress, once a minute: a site may do many tasks a second."""
        now = self._clock.now()
        if now - self._told >= PROGRESS_SECONDS:
            self._told = now
            log.info("an update was accepted: %s", self._store.progress.text, extra={"task": task})

    # ---- evaluation ----

    async def _evaluate(self, request: EvaluationRequest, state: Tensors) -> None:
        """Evaluate in the thread, with the site's state of this moment, and send the numbers."""
        assert self._context is not None
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(
                self._evaluation_thread, self._context.evaluate, request.model, state
            )
            result = EvaluationResult(request.version, *found)
        except Exception as error:
            log.exception("version %d cannot be evaluated", request.version)
            told = type(error).__name__ if self._context.private else _told_to_server(error)
            result = EvaluationResult(request.version, 0, {}, told)
        self._send(result)

    # ---- training ----

    async def _train(self, current: TrainingTask) -> None:
        """Train in the thread, and send the update; a failure is reported after a backoff."""
        loop = asyncio.get_running_loop()
        try:
            pending = await loop.run_in_executor(self._thread, current.run, self._store.state)
        except TaskCancelledError:
            return
        except Exception as error:
            kind = type(error).__name__
            text = f"{kind}: {' '.join(str(error).split())}"
            # The text of Offbeat's own errors says all, so their traceback is left out.
            own = isinstance(error, OffbeatError)
            log.error("task %d failed: %s", current.task, text, exc_info=not own)
            await self._clock.sleep(retry_delay(self._failures) if self._failures else 0.0)
            self._failures += 1
            if self._current is current:
                self._current = None
                text = kind if current.context.private else _told_to_server(error)
                self._send(TaskFailed(current.task, text))
            return
        if self._current is current:
            try:
                await loop.run_in_executor(self._thread, self._store.save, pending)
            except RunError as error:
                log.error("%s: the update of task %d is in memory only", error, current.task)
        if self._current is current:
            self._current = None
            self._send_pending()
        else:
            # The task was cancelled while its update was written.
            self._acknowledge(current.task, accepted=False)

    def _cancel(self) -> None:
        if self._current is not None:
            self._current.cancel()
            self._current = None


def _drop(_: FromSite) -> None:
    """Drop a message without a connection: the pending update is sent in the next one."""


def _told_to_server(error: Exception) -> str:
    """The report of an error to the server of a run without privacy; of data errors only their `told`."""
    text = getattr(error, "told", None) or " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"
