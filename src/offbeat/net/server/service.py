"""A running server: links on one side, the coordinator and its state directory on the other.

The event loop talks to sites and never waits for anything else: it answers signs of life at once. What sites
say is handed in batches to one thread, which owns the coordinator: it feeds it and lets its time pass; where
the model is small the loop does that itself, since to hand it over takes longer. One more thread makes what
comes of it durable, all that has come meanwhile in one transaction: the one computes while the other waits
for the disk. What is durable the loop says to the sites, in order.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import TypeVar

from offbeat.net.clock import Clock, SystemClock
from offbeat.net.monitor.snapshot import Snapshot
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.durable_store import DurableStore
from offbeat.net.server.effects import Effects
from offbeat.net.server.evaluator import Evaluate, Evaluator, Measurements
from offbeat.net.server.sessions import Batch, Sessions
from offbeat.net.server.summary import snapshot
from offbeat.net.transport import ServerChannel

log = logging.getLogger(__name__)

SMALL = 2 << 20
"""Bytes of a model that is small: an event takes about a millisecond or less."""
_T = TypeVar("_T")


class Service:
    """Serves one run until it ends, fails, or is left to go on another time.

    When the run has ended it waits at most `linger` seconds for sites that have not heard of it.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        state: DurableStore,
        *,
        evaluate: Evaluate | None = None,
        clock: Clock | None = None,
        label: str = "",
        linger: float = 10.0,
    ) -> None:
        self._coordinator, self._state = coordinator, state
        self._clock, self._label = clock or SystemClock(), label
        self._patience = linger
        self._offset = coordinator.now - self._clock.now()
        self._small = coordinator.tensors.model.layout.nbytes <= SMALL
        self._stirred = asyncio.Event()
        self._links = Sessions(self.now, self._stirred.set)
        self._evaluator = Evaluator(evaluate, self._evaluated)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._alarm: asyncio.Task[None] | None = None
        self._rings = 0.0  # when the alarm does
        self._wish: str | None = None  # to end the run, for this reason
        self._leaving = False
        self._thread = ThreadPoolExecutor(1, "offbeat-coordinator")
        self._writer = ThreadPoolExecutor(1, "offbeat-writer")
        self._unsettled: list[tuple[Effects, Batch]] = []  # what came of which batch
        self._settling: asyncio.Task[None] | None = None
        self._busy = Lock()  # held while the coordinator changes
        self._asked, self._changed = False, False
        self._shown = snapshot(coordinator, self._label)

    # ---- for whoever runs it ----

    async def run(self) -> str | None:
        """Serve until the run ends (returns why) or `leave` is called (returns None).

        Raises `RunError` where the state directory cannot be written: what was acknowledged is in it.
        """
        self._loop = asyncio.get_running_loop()
        try:
            while self._coordinator.stopped is None and not self._leaving:
                await self._wait()
                await self._round()
            await self._settled()
            if self._coordinator.stopped is None:
                await _in(self._writer, lambda: self._state.checkpoint(self._coordinator))
                self._writer.submit(self._state.abandon, "interrupted")
                return None
            return await self._finish()
        except BaseException:  # in the thread that may still be writing, once it is done
            self._writer.submit(self._state.abandon, "failed")
            raise
        finally:
            await self._close()

    async def on_link(self, link: ServerChannel) -> None:
        """Talk to a site until its link ends."""
        await self._links.on_link(link)

    async def abandon(self) -> None:
        """End without having served: the directory stays as it is."""
        self._writer.submit(self._state.abandon, "interrupted")
        await self._close()

    def stop(self, reason: str = "stopped") -> None:
        """End the run: its model as it is then is the final one."""
        self._wish = reason
        self._stirred.set()

    def leave(self) -> None:
        """Stop serving; the run can go on another time."""
        self._leaving = True
        self._links.shut()
        self._stirred.set()

    def snapshot(self) -> Snapshot:
        """The server as it is now; while a batch is under way, as it was before, or a little earlier.

        It never waits, and may be called in any thread.
        """
        self._asked = True
        if self._busy.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._busy.release()
        return self._shown

    def _look(self) -> None:
        """Show the server as it is. With many sites this takes a while: so only if somebody watches."""
        if self._changed and self._asked:
            self._shown = snapshot(self._coordinator, self._label)
            self._asked = self._changed = False

    def now(self) -> float:
        """Seconds of the run's clock."""
        return self._clock.now() + self._offset

    def _evaluated(self) -> None:
        """Wake the loop up, from the thread that evaluates."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stirred.set)

    # ---- the loop ----

    async def _wait(self) -> None:
        """Wait until somebody says something or time asks for something.

        An alarm that rings too early costs one empty round, so it is set anew only to ring earlier.
        """
        lease, now = self._coordinator.options.lease, self.now()
        due = self._coordinator.next_due()
        rings = now + lease / 4 if due is None else min(max(due, now), now + lease / 4)
        if self._alarm is None or self._alarm.done() or rings < self._rings:
            if self._alarm is not None:
                self._alarm.cancel()
            self._rings, self._alarm = rings, asyncio.create_task(self._ring(rings - now))
        await self._stirred.wait()
        self._stirred.clear()

    async def _ring(self, pause: float) -> None:
        await self._clock.sleep(pause)
        self._stirred.set()

    async def _round(self) -> None:
        """One batch to the coordinator; what comes of it is settled meanwhile, and later."""
        measured, batch = self._evaluator.collect(), self._links.take()
        if self._small:
            outcome = self._process(batch, measured)
        else:
            outcome = await _in(self._thread, partial(self._process, batch, measured))
        self._unsettled.append((outcome, batch))
        if self._settling is None or self._settling.done():
            await self._settled()
            self._settling = asyncio.create_task(self._settle())
        if self._state.due(self._coordinator.tensors.model.layout.nbytes):
            await self._settled()
            await _in(self._writer, lambda: self._state.checkpoint(self._coordinator))

    async def _settle(self) -> None:
        """Make durable what has come of the batches, then say what is to be said."""
        while self._unsettled:
            unsettled, self._unsettled = self._unsettled, []
            durable = [outcome for outcome, _ in unsettled if outcome.durable]
            try:
                if durable:
                    await _in(self._writer, partial(self._state.commit, *durable))
            except BaseException:
                self._stirred.set()  # or nobody would ask how it went
                raise
            for outcome, batch in unsettled:
                self._deliver(outcome)
                for said in batch.said:
                    said.heard()

    async def _settled(self) -> None:
        """Wait until all is settled that has come. Raises what that has raised."""
        if self._settling is not None:
            await self._settling

    def _process(self, batch: Batch, measured: Measurements) -> Effects:
        """Feed the coordinator."""
        with self._busy:
            outcome = self._feed(batch, measured)
            self._changed = True
            self._look()
        return outcome

    def _feed(self, batch: Batch, measured: Measurements) -> Effects:
        coordinator = self._coordinator
        for site, (at, beat) in batch.seen.items():
            coordinator.seen(at, site, beat)
        for said in batch.said:
            if said.message is None:
                coordinator.disconnected(said.at, said.site)
            else:
                coordinator.receive(said.at, said.site, said.message)
        for evaluation, metrics in measured:
            coordinator.evaluated(evaluation, metrics)
        coordinator.tick(self.now())
        if self._wish is not None:
            coordinator.stop(self.now(), self._wish)
        return coordinator.take()

    def _deliver(self, outcome: Effects) -> None:
        for row in outcome.rows:
            if row.name in ("joined", "left", "lost", "begin", "stop"):
                log.info("%s", row.name, extra={k: v for k, v in row.flat().items() if k != "name"})
        self._links.deliver(outcome)
        if outcome.evaluations:
            self._evaluator.request(outcome.evaluations[-1])

    # ---- the end ----

    async def _finish(self) -> str:
        """Measure the last version, tell the sites, write the final model."""
        coordinator = self._coordinator
        reason = coordinator.stopped or ""
        self._links.over(reason)
        measured = await _in(self._thread, lambda: self._evaluator.finish(coordinator.last_evaluation()))
        await _in(self._writer, lambda: self._write_end(measured))
        await self._linger()
        return reason

    async def _linger(self) -> None:
        """Wait until the sites have heard that the run is over, but not for those that do not come."""
        coordinator, now = self._coordinator, self.now()
        sites = coordinator.registry.sites.values()
        expected = {site.name for site in sites if site.present or not coordinator.may_come(now, site.name)}
        passed = asyncio.create_task(self._clock.sleep(self._patience))
        while not expected <= self._links.told and not passed.done():
            self._stirred.clear()
            stirred = asyncio.create_task(self._stirred.wait())
            await asyncio.wait({stirred, passed}, return_when=asyncio.FIRST_COMPLETED)
            stirred.cancel()
        passed.cancel()

    def _write_end(self, measured: Measurements) -> None:
        coordinator = self._coordinator
        with self._busy:
            for evaluation, metrics in measured:
                coordinator.evaluated(evaluation, metrics)
            self._state.commit(coordinator.take())
            self._state.finish(coordinator, coordinator.summary())
            self._changed = True

    async def _close(self) -> None:
        self._leaving = True
        self._links.cut("the server has stopped")
        if self._alarm is not None:
            self._alarm.cancel()
            await asyncio.gather(self._alarm, return_exceptions=True)
        await _in(self._thread, self._evaluator.close)
        if self._settling is not None:
            self._settling.cancel()
            await asyncio.gather(self._settling, return_exceptions=True)
        self._thread.shutdown(wait=True)
        self._writer.shutdown(wait=True)


async def _in(thread: ThreadPoolExecutor, work: Callable[[], _T]) -> _T:
    return await asyncio.get_running_loop().run_in_executor(thread, work)
