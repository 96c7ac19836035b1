"""What a site has in hand: the task that it trains, and the update that is not settled yet.

One thread trains, and keeps what is to survive the site's end. Whether there is a conversation makes no
difference here: what is in hand is said when it is there, and again in the next conversation.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from offbeat.core.errors import RunError
from offbeat.core.events import ClientId, TaskId
from offbeat.net.backoff import delay
from offbeat.net.client.store import SiteStore
from offbeat.net.client.task import TaskCancelledError, TrainingContext, TrainingTask, encoded
from offbeat.net.clock import Clock
from offbeat.net.messages import (
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

Prepare = Callable[[Mapping[str, Any], ClientId], TrainingContext]
"""Makes a site's workshop of the server's plan and the site's number; may raise `UsageError`."""
log = logging.getLogger(__name__)


class Worker:
    """Does what the server says; `say` tells it something, if there is a conversation."""

    def __init__(
        self, prepare: Prepare, store: SiteStore, clock: Clock, say: Callable[[FromSite], None]
    ) -> None:
        self._prepare, self._store, self._clock, self._say = prepare, store, clock, say
        self._thread = ThreadPoolExecutor(1, "offbeat-training")
        self._workshop: TrainingContext | None = None
        self._job: TrainingTask | None = None
        self._training: set[asyncio.Task[None]] = set()
        self._seed, self._failures = 0, 0

    @property
    def holding(self) -> TaskId | None:
        """The task in hand, in training or trained and not settled yet."""
        kept = self._store.kept
        return self._job.task if self._job else kept.result.task if kept else None

    @property
    def run(self) -> str:
        """The run whose task is in hand."""
        return self._store.run

    def beat(self) -> Heartbeat:
        """A sign of life."""
        return Heartbeat(self._job.task, self._job.steps) if self._job else Heartbeat()

    def close(self) -> None:
        """Stop training."""
        self._drop_job()
        for task in list(self._training):
            task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._store.close()

    # ---- what the server says ----

    async def welcome(self, welcome: Registered) -> None:
        """A conversation has begun: say what is finished, and what is asked for. Raises `UsageError`."""
        if welcome.run != self._store.run:
            self._drop_job()
            self._workshop = None
            self._store.begin(welcome.run)
        if self._workshop is None or self._workshop.client != welcome.client:
            loop = asyncio.get_running_loop()
            self._workshop = await loop.run_in_executor(
                self._thread, self._prepare, welcome.plan, welcome.client
            )
            self._seed = int(welcome.plan.get("seed", 0))
        self._deliver()
        if self._job is not None and self._job.asking:
            self._say(ModelRequest(self._job.task, self._job.steps))

    def hear(self, message: FromServer) -> None:
        """The server says something about a task."""
        job, kept = self._job, self._store.kept
        mine = job is not None and job.task == getattr(message, "task", None)
        match message:
            case TaskAssignment():
                self._assigned(message)
            case ModelResponse() if job is not None and mine:
                job.answer(message)
            case TaskRecall() if job is not None and mine:
                job.cut_short()
            case UploadGrant() if kept is not None and kept.result.task == message.task and self._workshop:
                self._say(encoded(kept.result, self._workshop, self._seed, message.bits))
            case TaskCancel():
                log.info("task %d is not wanted: %s", message.task, message.reason)
                if mine:
                    self._drop_job()
                if kept is not None:  # one that was held has been trained all the same: its state stays
                    self._settle(message.task, taken=kept.held)
            case UpdateAck():
                if message.accepted:
                    self._failures = 0
                else:
                    log.warning("the update of task %d was refused: %s", message.task, message.reason)
                self._settle(message.task, taken=message.accepted)
            case _:
                pass

    def _assigned(self, assign: TaskAssignment) -> None:
        kept = self._store.kept
        if kept is not None and kept.result.task == assign.task:
            self._deliver()
            return
        if self._job is not None:
            if self._job.task == assign.task:
                return
            self._drop_job()
        if kept is not None:
            self._settle(kept.result.task, taken=False)
        assert self._workshop is not None
        loop = asyncio.get_running_loop()

        def ask(job: TrainingTask) -> None:
            loop.call_soon_threadsafe(lambda: self._say(ModelRequest(job.task, job.steps)))

        self._job = TrainingTask(assign, self._workshop, ask)
        task = asyncio.create_task(self._train(self._job))
        self._training.add(task)
        task.add_done_callback(self._training.discard)

    def _deliver(self) -> None:
        """Say what is finished."""
        kept = self._store.kept
        if kept is not None and kept.held:
            self._say(UpdateReady(kept.result.task, kept.result.steps, kept.result.metrics))
        elif kept is not None:
            self._say(kept.result)

    def _settle(self, task: TaskId, *, taken: bool) -> None:
        """The server has answered: a full disk is no reason to end, the next answer may find room."""
        try:
            self._store.settle(task, taken)
        except (RunError, OSError) as error:
            log.error("%s: what the site keeps from task to task is in memory only", error)

    # ---- training ----

    async def _train(self, job: TrainingTask) -> None:
        """Let the thread train, and deliver; a failure is told after a pause, longer each time."""
        loop = asyncio.get_running_loop()
        try:
            kept = await loop.run_in_executor(self._thread, job.run, self._store.state)
        except TaskCancelledError:
            return
        except Exception as error:
            log.exception("task %d failed", job.task)
            await self._clock.sleep(delay(self._failures) if self._failures else 0.0)
            self._failures += 1
            if self._job is job:
                self._job = None
                self._say(TaskFailed(job.task, f"{type(error).__name__}: {error}"))
            return
        if self._job is job:
            try:
                await loop.run_in_executor(self._thread, self._store.keep, kept)
            except RunError as error:
                log.error("%s: the update of task %d is in memory only", error, job.task)
        if self._job is job:
            self._job = None
            self._deliver()
        else:  # dropped while it was written
            self._settle(job.task, taken=False)

    def _drop_job(self) -> None:
        if self._job is not None:
            self._job.give_up()
            self._job = None
