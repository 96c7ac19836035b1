"""A running server: connections on one side, the coordinator and its state directory on the other.

The event loop sends and receives and never waits for anything else: it answers heartbeats at once. It passes
the messages of sites in batches to one thread, which owns the coordinator; where the model is small the loop
does that itself, since another thread takes longer. A second thread commits the effects, all that have come
meanwhile in one transaction: the one computes while the other waits for the disk. Once they are durable the
loop sends the messages in them, in order.
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
    """Serves one run until it finishes, fails, or is detached to go on another time.

    After the end it waits at most `linger` seconds for sites that do not know of it.
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
        self._linger_seconds = linger
        self._offset = coordinator.now - self._clock.now()
        self._small = coordinator.tensors.model.layout.nbytes <= SMALL
        self._wakeup = asyncio.Event()
        self._sessions = Sessions(self.now, self._wakeup.set)
        self._evaluator = Evaluator(evaluate, self._evaluated)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.Task[None] | None = None
        self._wake_at = 0.0  # when the timer ends
        self._stop_requested: str | None = None  # the reason
        self._detaching = False
        self._thread = ThreadPoolExecutor(1, "offbeat-coordinator")
        self._writer = ThreadPoolExecutor(1, "offbeat-writer")
        self._uncommitted: list[tuple[Effects, Batch]] = []  # the effects of each batch
        self._committing: asyncio.Task[None] | None = None
        self._busy = Lock()  # held while the coordinator changes
        self._watched, self._changed = False, False
        self._snapshot = snapshot(coordinator, self._label)

    # ---- control ----

    async def run(self) -> str | None:
        """Serve until the run ends (returns why) or `detach` is called (returns None).

        Raises `RunError` where the state directory cannot be written: what was acknowledged is in it.
        """
        self._loop = asyncio.get_running_loop()
        try:
            while self._coordinator.stopped is None and not self._detaching:
                await self._wait()
                await self._round()
            await self._committed()
            if self._coordinator.stopped is None:
                await _in(self._writer, lambda: self._state.checkpoint(self._coordinator))
                self._writer.submit(self._state.abandon, "interrupted")
                return None
            return await self._end()
        except BaseException:  # in the thread that may still be writing, once it is done
            self._writer.submit(self._state.abandon, "failed")
            raise
        finally:
            await self._close()

    async def on_channel(self, channel: ServerChannel) -> None:
        """Serve a connection of a site to its end."""
        await self._sessions.on_channel(channel)

    async def abandon(self) -> None:
        """End without having served: the directory stays as it is."""
        self._writer.submit(self._state.abandon, "interrupted")
        await self._close()

    def finish(self, reason: str = "stopped") -> None:
        """End the run; its current model is the final one."""
        self._stop_requested = reason
        self._wakeup.set()

    def detach(self) -> None:
        """Stop serving; the run can go on another time."""
        self._detaching = True
        self._sessions.stop_accepting()
        self._wakeup.set()

    def snapshot(self) -> Snapshot:
        """The server as it is now; while a batch is under way, as it was before, or a little earlier.

        It never waits, and may be called in any thread.
        """
        self._watched = True
        if self._busy.acquire(blocking=False):
            try:
                self._refresh()
            finally:
                self._busy.release()
        return self._snapshot

    def _refresh(self) -> None:
        """Renew the snapshot, if somebody watches: with many sites this takes a while."""
        if self._changed and self._watched:
            self._snapshot = snapshot(self._coordinator, self._label)
            self._watched = self._changed = False

    def now(self) -> float:
        """Seconds of the run's clock."""
        return self._clock.now() + self._offset

    def _evaluated(self) -> None:
        """Wake the loop up, from the thread that evaluates."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._wakeup.set)

    # ---- the loop ----

    async def _wait(self) -> None:
        """Wait until somebody says something or time asks for something.

        An alarm that wake_at too early costs one empty round, so it is set anew only to ring earlier.
        """
        lease, now = self._coordinator.options.lease, self.now()
        due = self._coordinator.next_due()
        wake_at = now + lease / 4 if due is None else min(max(due, now), now + lease / 4)
        if self._timer is None or self._timer.done() or wake_at < self._wake_at:
            if self._timer is not None:
                self._timer.cancel()
            self._wake_at, self._timer = wake_at, asyncio.create_task(self._wake_after(wake_at - now))
        await self._wakeup.wait()
        self._wakeup.clear()

    async def _wake_after(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._wakeup.set()

    async def _round(self) -> None:
        """Process one batch; its effects are committed meanwhile."""
        measured, batch = self._evaluator.collect(), self._sessions.take()
        if self._small:
            effects = self._process(batch, measured)
        else:
            effects = await _in(self._thread, partial(self._process, batch, measured))
        self._uncommitted.append((effects, batch))
        if self._committing is None or self._committing.done():
            await self._committed()
            self._committing = asyncio.create_task(self._commit())
        if self._state.due(self._coordinator.tensors.model.layout.nbytes):
            await self._committed()
            await _in(self._writer, lambda: self._state.checkpoint(self._coordinator))

    async def _commit(self) -> None:
        """Make durable what has come of the batches, then say what is to be inbound."""
        while self._uncommitted:
            uncommitted, self._uncommitted = self._uncommitted, []
            durable = [effects for effects, _ in uncommitted if effects.durable]
            try:
                if durable:
                    await _in(self._writer, partial(self._state.commit, *durable))
            except BaseException:
                self._wakeup.set()  # so that the loop sees the error
                raise
            for effects, batch in uncommitted:
                self._deliver(effects)
                for inbound in batch.messages:
                    inbound.release()

    async def _committed(self) -> None:
        """Wait for the commit under way, and raise its error."""
        if self._committing is not None:
            await self._committing

    def _process(self, batch: Batch, measured: Measurements) -> Effects:
        """Pass a batch to the coordinator."""
        with self._busy:
            effects = self._feed(batch, measured)
            self._changed = True
            self._refresh()
        return effects

    def _feed(self, batch: Batch, measured: Measurements) -> Effects:
        coordinator = self._coordinator
        for site, (at, beat) in batch.heartbeats.items():
            coordinator.seen(at, site, beat)
        for inbound in batch.messages:
            if inbound.message is None:
                coordinator.disconnected(inbound.at, inbound.site)
            else:
                coordinator.receive(inbound.at, inbound.site, inbound.message)
        for evaluation, metrics in measured:
            coordinator.evaluated(evaluation, metrics)
        coordinator.tick(self.now())
        if self._stop_requested is not None:
            coordinator.stop(self.now(), self._stop_requested)
        return coordinator.take()

    def _deliver(self, effects: Effects) -> None:
        for row in effects.rows:
            if row.name in ("joined", "left", "lost", "begin", "stop"):
                log.info("%s", row.name, extra={k: v for k, v in row.flat().items() if k != "name"})
        self._sessions.deliver(effects)
        if effects.evaluations:
            self._evaluator.request(effects.evaluations[-1])

    # ---- the end ----

    async def _end(self) -> str:
        """Evaluate the last version, notify the sites, write the final model."""
        coordinator = self._coordinator
        reason = coordinator.stopped or ""
        self._sessions.finish(reason)
        measured = await _in(self._thread, lambda: self._evaluator.finish(coordinator.last_evaluation()))
        await _in(self._writer, lambda: self._write_end(measured))
        await self._linger()
        return reason

    async def _linger(self) -> None:
        """Wait until the sites know that the run has finished, but not for those that may not come back."""
        coordinator, now = self._coordinator, self.now()
        sites = coordinator.registry.sites.values()
        expected = {site.name for site in sites if site.present or not coordinator.may_come(now, site.name)}
        passed = asyncio.create_task(self._clock.sleep(self._linger_seconds))
        while not expected <= self._sessions.notified and not passed.done():
            self._wakeup.clear()
            wakeup = asyncio.create_task(self._wakeup.wait())
            await asyncio.wait({wakeup, passed}, return_when=asyncio.FIRST_COMPLETED)
            wakeup.cancel()
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
        self._detaching = True
        self._sessions.close("the server has stopped")
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)
        await _in(self._thread, self._evaluator.close)
        if self._committing is not None:
            self._committing.cancel()
            await asyncio.gather(self._committing, return_exceptions=True)
        self._thread.shutdown(wait=True)
        self._writer.shutdown(wait=True)


async def _in(thread: ThreadPoolExecutor, work: Callable[[], _T]) -> _T:
    return await asyncio.get_running_loop().run_in_executor(thread, work)
