"""A site's side of a deployed run: connects, trains what it is given, and delivers it whatever happens.

One loop talks to the server, one thread trains. A conversation may end at any moment: the site comes back
after a pause that grows, says what it has in hand, and is told what it has missed. An update is kept until
the server has answered it. Messages that were lost need no memory: what is in hand says them again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import Any

from offbeat.core.errors import RunError, UsageError
from offbeat.core.events import ClientId
from offbeat.net.clock import Clock, SystemClock
from offbeat.net.job import GivenUpError, Job, Workshop, encoded
from offbeat.net.link import LinkClosedError, LinkRefusedError, SiteLink
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
    Welcome,
)
from offbeat.net.site_store import SiteStore

Connect = Callable[[], Awaitable[SiteLink]]
Prepare = Callable[[Mapping[str, Any], ClientId], Workshop]
"""Makes a site's workshop of the server's plan and the site's number; may raise `UsageError`."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds between attempts
log = logging.getLogger(__name__)


class Site:
    """One client of a federation.

    `samples` and `labels` (its numbers of samples of each class) are what it tells of its data. It gives up
    after `patience` seconds without a server (none: never).
    """

    def __init__(
        self,
        connect: Connect,
        prepare: Prepare,
        samples: int,
        labels: tuple[int, ...] | None = None,
        *,
        store: SiteStore | None = None,
        clock: Clock | None = None,
        patience: float | None = None,
        chance: Random | None = None,
    ) -> None:
        self._connect, self._prepare = connect, prepare
        self._samples, self._labels = samples, labels
        self._store, self._clock = store or SiteStore(), clock or SystemClock()
        self._patience, self._chance = patience, chance or Random()  # pauses only: not part of any result
        self._thread = ThreadPoolExecutor(1, "offbeat-training")
        self._workshop: Workshop | None = None
        self._job: Job | None = None
        self._training: set[asyncio.Task[None]] = set()
        self._outgoing: asyncio.Queue[FromSite] | None = None  # while there is a conversation
        self._lease, self._heard, self._seed = 60.0, 0.0, 0
        self._failures = 0
        self._leaving, self._welcomed = asyncio.Event(), asyncio.Event()

    async def run(self) -> str:
        """Take part until the run is over; returns why it ended.

        Raises `RunError` where the server refuses the site, or is not found, `UsageError` where what the
        server asks for cannot be done with the data.
        """
        attempt, since = 0, self._clock.now()
        try:
            while True:
                reason = "the link was closed"
                try:
                    link = await self._connect()
                    over = await self._converse(link)
                    if over is not None:
                        return over
                except LinkRefusedError as error:
                    raise RunError(str(error)) from None
                except OSError as error:  # of which LinkClosedError is one
                    reason = str(error) or type(error).__name__
                if self._heard > since:
                    attempt, since = 0, self._heard
                if self._patience is not None and self._clock.now() - since > self._patience:
                    raise RunError(f"no server for {self._patience:g} s: {reason}")
                pause = _pause(attempt) * self._chance.uniform(0.5, 1.0)
                log.info("not connected (%s): the next attempt is in %.1f s", reason, pause)
                attempt += 1
                await self._clock.sleep(pause)
        finally:
            self._drop_job()
            for task in list(self._training):
                task.cancel()
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._store.close()

    def leave(self) -> None:
        """Say goodbye and end, as soon as there is a server to say it to."""
        self._leaving.set()

    # ---- a conversation ----

    async def _converse(self, link: SiteLink) -> str | None:
        """Talk until the link ends, or the run (then returns why)."""
        holding = self._job.task if self._job else self._store.kept.result.task if self._store.kept else None
        self._outgoing, self._welcomed = asyncio.Queue(), asyncio.Event()
        self._heard = max(self._heard, self._clock.now())
        run = self._store.run if holding is not None else ""
        self._outgoing.put_nowait(Hello(self._samples, 0, self._labels, holding, run))
        helpers = [asyncio.create_task(c) for c in (self._send(link), self._beats(link), self._goodbye(link))]
        try:
            return await self._listen(link)
        except UsageError as error:
            with suppress(LinkClosedError):
                await link.send(Bye(str(error)))
            raise
        finally:
            self._outgoing = None
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await link.close()

    async def _listen(self, link: SiteLink) -> str | None:
        welcomed = False
        while True:
            message = await link.receive()
            self._heard = self._clock.now()
            match message:
                case Over():
                    with suppress(LinkClosedError):
                        await link.send(Bye("the run is over"))
                    return message.reason
                case Refused():
                    if message.final:
                        raise RunError(f"the server refuses this site: {message.reason}")
                    log.warning("the server did not accept a message: %s", message.reason)
                    if not welcomed:
                        raise LinkClosedError(message.reason)
                case Welcome():
                    await self._welcome(message)
                    welcomed = True
                case _ if welcomed:  # what comes before is of an earlier conversation, and will be said again
                    await self._hear(message)

    async def _send(self, link: SiteLink) -> None:
        outgoing = self._outgoing
        assert outgoing is not None
        try:
            while True:
                await link.send(await outgoing.get())
        except LinkClosedError:
            await link.close()

    async def _beats(self, link: SiteLink) -> None:
        """Signs of life: as the last lease asks for, and from the welcome on as the new one does."""
        before = asyncio.create_task(self._beat(link))
        try:
            await self._welcomed.wait()
        finally:
            before.cancel()
            await asyncio.gather(before, return_exceptions=True)
        await self._beat(link)

    async def _beat(self, link: SiteLink) -> None:
        """Signs of life; a server that gives none for a whole lease is not there."""
        while True:
            await self._clock.sleep(self._lease / 3)
            if self._clock.now() - self._heard > self._lease:
                await link.close("the server is silent")
                return
            job = self._job
            self._say(Beat(job.task, job.steps) if job else Beat())

    async def _goodbye(self, link: SiteLink) -> None:
        await self._leaving.wait()
        with suppress(LinkClosedError):
            await link.send(Bye("left"))
        raise asyncio.CancelledError

    def _say(self, message: FromSite) -> None:
        """Send it, if there is a conversation: if not, what is in hand will be said in the next one."""
        if self._outgoing is not None:
            self._outgoing.put_nowait(message)

    # ---- what the server says ----

    async def _welcome(self, welcome: Welcome) -> None:
        self._lease = welcome.lease
        self._welcomed.set()
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
            self._say(Asks(self._job.task, self._job.steps))

    async def _hear(self, message: FromServer) -> None:
        job, kept = self._job, self._store.kept
        mine = job is not None and job.task == getattr(message, "task", None)
        match message:
            case Assign():
                self._assigned(message)
            case Fresh() if job is not None and mine:
                job.answer(message)
            case CutShort() if job is not None and mine:
                job.cut_short()
            case MaySend() if kept is not None and kept.result.task == message.task and self._workshop:
                self._say(encoded(kept.result, self._workshop, self._seed, message.bits))
            case Forget():
                log.info("task %d is not wanted: %s", message.task, message.reason)
                if mine:
                    self._drop_job()
                if kept is not None:  # one that was held has been trained all the same: its state stays
                    self._store.settle(message.task, taken=kept.held)
            case Receipt():
                if message.accepted:
                    self._failures = 0
                else:
                    log.warning("the update of task %d was refused: %s", message.task, message.reason)
                self._store.settle(message.task, taken=message.accepted)
            case _:
                pass

    def _assigned(self, assign: Assign) -> None:
        kept = self._store.kept
        if kept is not None and kept.result.task == assign.task:
            self._deliver()
            return
        if self._job is not None:
            if self._job.task == assign.task:
                return
            self._drop_job()
        if kept is not None:
            self._store.settle(kept.result.task, taken=False)
        assert self._workshop is not None
        loop = asyncio.get_running_loop()

        def ask(job: Job) -> None:
            loop.call_soon_threadsafe(lambda: self._say(Asks(job.task, job.steps)))

        self._job = Job(assign, self._workshop, ask)
        task = asyncio.create_task(self._train(self._job))
        self._training.add(task)
        task.add_done_callback(self._training.discard)

    def _deliver(self) -> None:
        """Say what is finished."""
        kept = self._store.kept
        if kept is not None and kept.held:
            self._say(Done(kept.result.task, kept.result.steps, kept.result.metrics))
        elif kept is not None:
            self._say(kept.result)

    # ---- training ----

    async def _train(self, job: Job) -> None:
        """Let the thread train, and deliver; a failure is told after a pause, longer each time."""
        loop = asyncio.get_running_loop()
        try:
            kept = await loop.run_in_executor(self._thread, job.run, self._store.state)
        except GivenUpError:
            return
        except Exception as error:
            log.exception("task %d failed", job.task)
            await self._clock.sleep(_pause(self._failures) if self._failures else 0.0)
            self._failures += 1
            if self._job is job:
                self._job = None
                self._say(Failed(job.task, f"{type(error).__name__}: {error}"))
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
            self._store.settle(job.task, taken=False)

    def _drop_job(self) -> None:
        if self._job is not None:
            self._job.give_up()
            self._job = None


def _pause(attempt: int) -> float:
    """Seconds before another attempt: twice as long each time, up to a limit."""
    return float(min(FIRST_PAUSE * 2 ** min(attempt, 32), LONGEST_PAUSE))
