"""A running server: links on one side, the coordinator and its state directory on the other.

The event loop talks to sites and never waits for anything else: it answers signs of life at once. What sites
say is handed in batches to one thread, which owns the coordinator: it feeds it, lets its time pass and makes
what comes of it durable, one transaction a batch. Then the loop sends the messages. Another thread evaluates.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

from offbeat.core.events import Metrics
from offbeat.core.model import Model
from offbeat.net.clock import Clock, SystemClock
from offbeat.net.coordinator import Coordinator
from offbeat.net.link import LinkClosedError, ServerLink
from offbeat.net.mailbox import Mailbox
from offbeat.net.messages import Beat, Bye, FromSite, Hello, Over, Refused
from offbeat.net.outcome import Evaluation, Outcome
from offbeat.net.snapshot import Snapshot
from offbeat.net.state import State
from offbeat.net.summary import snapshot, summarise

HELLO_SECONDS = 20.0
Evaluate = Callable[[Model], Metrics]
log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Said:
    """What a site said, or (without a message) that its link has ended."""

    at: float
    site: str
    message: FromSite | None
    slot: asyncio.Semaphore | None = None


class Service:
    """Serves one run until it ends, fails, or is left to go on another time.

    When the run has ended it waits at most `linger` seconds for sites that have not heard of it.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        state: State,
        *,
        evaluate: Evaluate | None = None,
        clock: Clock | None = None,
        label: str = "",
        linger: float = 10.0,
    ) -> None:
        self._coordinator, self._state, self._evaluate = coordinator, state, evaluate
        self._clock, self._label = clock or SystemClock(), label
        self._patience = linger
        self._told: set[str] = set()
        self._offset = coordinator.now - self._clock.now()
        self._links: dict[str, Mailbox] = {}
        self._readers: set[asyncio.Task[None]] = set()
        self._inbox: list[_Said] = []
        self._seen: dict[str, tuple[float, Beat]] = {}
        self._measured: list[tuple[Evaluation, Metrics]] = []
        self._to_measure: Evaluation | None = None
        self._measuring: asyncio.Task[None] | None = None
        self._last_measured = -1
        self._stirred = asyncio.Event()
        self._alarm: asyncio.Task[None] | None = None
        self._rings = 0.0  # when the alarm does
        self._wish: str | None = None  # to end the run, for this reason
        self._leaving = False
        self._over: str | None = None
        self._thread = ThreadPoolExecutor(1, "offbeat-coordinator")
        self._evaluator = ThreadPoolExecutor(1, "offbeat-evaluation")
        self._busy = Lock()  # held while the coordinator changes
        self._asked, self._changed = False, False
        self._shown = snapshot(coordinator, self._label)

    # ---- for whoever runs it ----

    async def run(self) -> str | None:
        """Serve until the run ends (returns why) or `leave` is called (returns None).

        Raises `RunError` where the state directory cannot be written: what was acknowledged is in it.
        """
        try:
            while self._coordinator.stopped is None and not self._leaving:
                await self._wait()
                await self._round()
            if self._coordinator.stopped is None:
                await self._in_thread(lambda: self._state.checkpoint(self._coordinator))
                self._thread.submit(self._state.abandon, "interrupted")
                return None
            return await self._finish()
        except BaseException:  # in the thread that may still be writing, once it is done
            self._thread.submit(self._state.abandon, "failed")
            raise
        finally:
            await self._close()

    async def abandon(self) -> None:
        """End without having served: the directory stays as it is."""
        self._thread.submit(self._state.abandon, "interrupted")
        await self._close()

    def stop(self, reason: str = "stopped") -> None:
        """End the run: its model as it is then is the final one."""
        self._wish = reason
        self._stirred.set()

    def leave(self) -> None:
        """Stop serving; the run can go on another time."""
        self._leaving = True
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

    # ---- links ----

    async def on_link(self, link: ServerLink) -> None:
        """Talk to a site until its link ends."""
        try:
            hello = await asyncio.wait_for(link.receive(), HELLO_SECONDS)
            if not isinstance(hello, Hello):
                await link.send(Refused("a conversation begins with hello", final=False))
            elif self._over is not None:
                await asyncio.wait_for(tell_the_end(link, self._over), HELLO_SECONDS)
                self._heard_of_the_end(link.site)
            elif not self._leaving:
                await self._converse(link, hello)
        except (LinkClosedError, TimeoutError):
            pass
        await link.close()

    def _heard_of_the_end(self, site: str) -> None:
        self._told.add(site)
        self._stirred.set()

    async def _converse(self, link: ServerLink, hello: Hello) -> None:
        older, mine = self._links.get(link.site), Mailbox(link)
        self._links[link.site] = mine
        if older is not None:
            older.cut("the site has opened another link")
        reader = asyncio.create_task(self._read(link, mine, hello))
        self._readers.add(reader)
        try:
            await asyncio.wait({reader})
            if not reader.cancelled():
                reader.result()
        finally:
            reader.cancel()
            self._readers.discard(reader)
            if self._links.get(link.site) is mine:
                del self._links[link.site]
                self._put(_Said(self.now(), link.site, None))
            await mine.close()

    async def _read(self, link: ServerLink, conversation: Mailbox, first: FromSite) -> None:
        """Hand over what a site says, one at a time; signs of life are answered here."""
        slot, message = asyncio.Semaphore(1), first
        while True:
            if isinstance(message, Beat):
                self._seen[link.site] = (self.now(), message)
                conversation.say(Beat())
            elif self._over is not None:
                if isinstance(message, Bye):
                    self._heard_of_the_end(link.site)
                    return
                conversation.say(Over(self._over))
            else:
                await slot.acquire()
                self._put(_Said(self.now(), link.site, message, slot))
            del message  # which may be large
            message = await link.receive()

    def _put(self, said: _Said) -> None:
        self._inbox.append(said)
        self._stirred.set()

    # ---- the loop ----

    async def _wait(self) -> None:
        """Wait until somebody says something or time asks for something.

        An alarm that rings too early costs one empty round, so it is set anew only to ring earlier.
        """
        lease, now = self._coordinator.terms.lease, self.now()
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
        """One batch: to the coordinator, to disk, to the sites."""
        if self._measuring is not None and self._measuring.done():
            self._measuring.result()  # raises what the evaluation raised
        batch, self._inbox = self._inbox, []
        seen, self._seen = self._seen, {}
        measured, self._measured = self._measured, []
        outcome = await self._in_thread(lambda: self._process(batch, seen, measured))
        self._deliver(outcome)
        for said in batch:
            if said.slot is not None:
                said.slot.release()
        if self._state.due(self._coordinator.tensors.model.layout.nbytes):
            await self._in_thread(lambda: self._state.checkpoint(self._coordinator))

    def _process(
        self,
        batch: list[_Said],
        seen: dict[str, tuple[float, Beat]],
        measured: list[tuple[Evaluation, Metrics]],
    ) -> Outcome:
        """In the coordinator's thread: feed it, and make durable what comes of it."""
        with self._busy:
            outcome = self._feed(batch, seen, measured)
            if outcome.durable:
                self._state.commit(outcome, self._coordinator)
            self._changed = True
            self._look()
        return outcome

    def _feed(
        self,
        batch: list[_Said],
        seen: dict[str, tuple[float, Beat]],
        measured: list[tuple[Evaluation, Metrics]],
    ) -> Outcome:
        coordinator = self._coordinator
        for site, (at, beat) in seen.items():
            coordinator.seen(at, site, beat)
        for said in batch:
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

    def _deliver(self, outcome: Outcome) -> None:
        for row in outcome.rows:
            if row.name in ("joined", "left", "lost", "begin", "stop"):
                log.info("%s", row.name, extra={k: v for k, v in row.flat().items() if k != "name"})
        for site, message in outcome.messages:
            if site in self._links:
                self._links[site].say(message)
        for site, reason in outcome.closed:
            if site in self._links:
                self._links[site].finish(reason)
        if outcome.evaluations and self._evaluate is not None:
            self._to_measure = outcome.evaluations[-1]
            self._measure_next()

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    # ---- evaluation ----

    def _measure_next(self) -> None:
        """Evaluate the newest version that is due, if none is being evaluated."""
        if self._to_measure is not None and (self._measuring is None or self._measuring.done()):
            evaluation, self._to_measure = self._to_measure, None
            self._measuring = asyncio.create_task(self._measure(evaluation))

    async def _measure(self, evaluation: Evaluation) -> None:
        assert self._evaluate is not None
        loop = asyncio.get_running_loop()
        try:
            metrics = await loop.run_in_executor(self._evaluator, self._evaluate, evaluation.model)
            self._last_measured = evaluation.version
            self._measured.append((evaluation, metrics))
        finally:
            self._stirred.set()
        loop.call_soon(self._measure_next)

    # ---- the end ----

    async def _finish(self) -> str:
        """Measure the last version, tell the sites, write the final model."""
        coordinator = self._coordinator
        self._over = coordinator.stopped or ""
        for said in self._inbox:  # too late: whoever sent it hears of the end, a hello of this moment too
            if said.slot is not None:
                said.slot.release()
            if said.message is not None and said.site in self._links:
                self._links[said.site].say(Over(self._over))
        self._to_measure = None
        if self._measuring is not None:
            await self._measuring
        evaluates = coordinator.terms.evaluate_versions or coordinator.terms.evaluate_seconds
        if self._evaluate is not None and evaluates and self._last_measured != coordinator.server.version:
            await self._measure(coordinator.evaluation())
        self._to_measure = None
        measured, self._measured = self._measured, []
        await self._in_thread(lambda: self._write_end(measured))
        await self._linger()
        return self._over

    async def _linger(self) -> None:
        """Wait until the sites have heard that the run is over, but not for those that do not come."""
        present = {site.name for site in self._coordinator.books.sites.values() if site.present}
        passed = asyncio.create_task(self._clock.sleep(self._patience))
        while not present <= self._told and not passed.done():
            self._stirred.clear()
            stirred = asyncio.create_task(self._stirred.wait())
            await asyncio.wait({stirred, passed}, return_when=asyncio.FIRST_COMPLETED)
            stirred.cancel()
        passed.cancel()

    def _write_end(self, measured: list[tuple[Evaluation, Metrics]]) -> None:
        coordinator = self._coordinator
        with self._busy:
            for evaluation, metrics in measured:
                coordinator.evaluated(evaluation, metrics)
            self._state.commit(coordinator.take(), coordinator)
            self._state.finish(coordinator, summarise(coordinator))
            self._changed = True

    async def _close(self) -> None:
        self._leaving = True
        for conversation in list(self._links.values()):
            conversation.cut("the server has stopped")
        for reader in list(self._readers):
            reader.cancel()
        if self._alarm is not None:
            self._alarm.cancel()
            await asyncio.gather(self._alarm, return_exceptions=True)
        if self._measuring is not None:
            self._measuring.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._measuring
        self._thread.shutdown(wait=True)
        self._evaluator.shutdown(wait=True)


async def tell_the_end(link: ServerLink, reason: str) -> None:
    """Tell a site that the run is over, until it says that it has heard."""
    await link.send(Over(reason))
    while not isinstance(await link.receive(), Bye):
        pass
