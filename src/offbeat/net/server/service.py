"""A running server: connections on one side, the coordinator and its state directory on the other.

The event loop sends and receives and never waits for anything else: it answers heartbeats at once. It passes
the messages of sites in batches to one thread, which owns the coordinator; where the model is small the loop
does that itself, since another thread takes longer. A second thread commits the effects, all that have come
meanwhile in one transaction: the one computes while the other waits for the disk. Once they are durable the
loop sends the messages in them, in order, and passes evaluations on to the thread of the callbacks.
"""

import asyncio
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from threading import Lock

from msgspec import Struct

from offbeat.callbacks.callback_list import CallbackList, live_run
from offbeat.callbacks.callback_thread import CallbackThread, NoCallbacks
from offbeat.core.errors import RunError
from offbeat.core.model import Model
from offbeat.net.audit import SERVER, operator
from offbeat.net.clock import Clock
from offbeat.net.monitor.snapshot import Snapshot
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.durable_store import DurableStore
from offbeat.net.server.effects import Effects, Measurements
from offbeat.net.server.evaluation_thread import Evaluate, EvaluationThread
from offbeat.net.server.sessions import Batch, Inbound, Sessions
from offbeat.net.server.summary import snapshot
from offbeat.runs.best import choose_model
from offbeat.runs.record import read_run

log = logging.getLogger(__name__)

AUDIT_SECONDS = 5.0
"""Seconds for which a row of the audit waits for a commit of something else."""
SMALL = 2 << 20
"""Bytes of a model that is small: an event takes about a millisecond or less."""


class OpenRun(Struct, frozen=True):
    """A run that can be served.

    Attributes:
        coordinator: Its coordinator.
        store: Its state directory.
        evaluate: Evaluates a version; None means that there are no test data.
        label: What the run is called.
        title: The title of its recipe. Empty means none.
    """

    coordinator: Coordinator
    store: DurableStore
    evaluate: Evaluate | None
    label: str
    title: str = ""


class Service:
    """Serves one run until it finishes, fails, or is detached to go on another time.

    Args:
        run: The run.
        clock: Tells the time.
        linger: Seconds that it waits at the end, at most, for sites that have not heard of it.
        callbacks: What is called while the run goes on.

    Attributes:
        on_channel: Serves a connection of a site to its end.
    """

    def __init__(self, run: OpenRun, clock: Clock, linger: float, callbacks: CallbackList) -> None:
        coordinator = self._coordinator = run.coordinator
        self._store, self._label, self._title = run.store, run.label, run.title
        self._clock, self._linger_seconds = clock, linger
        self._offset = coordinator.now - clock.now()
        self._model_bytes = coordinator.tensors.model.layout.nbytes
        self._loop = asyncio.get_running_loop()
        self._wakeup = asyncio.Event()
        shares = coordinator.options.share_model is not None
        self._sessions = Sessions(self.now, self._wakeup.set, shares_model=shares)
        self.on_channel = self._sessions.on_channel
        self._evaluator = EvaluationThread(run.evaluate, self._wake_soon)
        self._callbacks: CallbackThread | NoCallbacks = NoCallbacks()
        if callbacks:
            record = read_run(run.store.directory)
            callbacks.run = live_run(record.meta, record.path, record.evaluations(), self.finish)
            self._callbacks = CallbackThread(callbacks, run.store.complete)
        self._timer: asyncio.Task[None] | None = None
        # The time at which the timer wakes the loop, in seconds of the run's clock.
        self._wake_at = 0.0
        # Why the run is to end. None means that nobody has asked for it.
        self._stop_requested: str | None = None
        self._detaching = False
        self._thread = ThreadPoolExecutor(1, "offbeat-coordinator")
        self._writer = ThreadPoolExecutor(1, "offbeat-writer")
        # The effects of each batch, in order, until they are durable.
        self._uncommitted: list[tuple[Effects, Batch]] = []
        # The messages that came while helpers are waited for.
        self._postponed: list[Inbound] = []
        # The commit under way, in the writer's thread. None means that none is.
        self._committing: Future[None] | None = None
        # It is set while no commit is under way.
        self._idle = asyncio.Event()
        self._idle.set()
        # What the last commit, or the delivery after it, has failed with.
        self._failure: BaseException | None = None
        # It is held while the coordinator changes.
        self._busy = Lock()
        self._watched, self._changed = False, False
        self._snapshot = snapshot(coordinator, run.label, run.title)

    # ---- control ----

    async def run(self) -> str | None:
        """Serve until the run ends or `detach` is called.

        Returns:
            Why the run ended; None means that `detach` was called.

        Raises:
            RunError: The state directory cannot be written; what was acknowledged is in it. Or the run has
                ended, and its last releases have failed.
        """
        try:
            self._callbacks.on_start()
            while self._coordinator.stopped is None and not self._detaching:
                now = self.now()
                due, heartbeats = self._coordinator.next_due(), now + self._coordinator.options.lease / 4
                await self._wait(max(now, min(due, heartbeats)))
                await self._round()
            await self._committed()
            if self._coordinator.stopped is None:
                self._store.audit.record(self._store.audit.operator, {"action": "run.stop"})
                await self._checkpoint()
                self._writer.submit(self._store.abandon, "interrupted")
                self._tell_exception(KeyboardInterrupt("the server has left the run"))
                return None
            reason = await self._end()
        except BaseException as error:
            self._store.audit.record(SERVER, {"action": "run.fail", "error": str(error)}, "failed")
            # The thread that may still be writing abandons the run, once it has written.
            self._writer.submit(self._store.abandon, "failed")
            self._tell_exception(error)
            raise
        finally:
            await self._close()
        helpers = self._coordinator.helpers
        if helpers is not None and helpers.view.stuck:
            raise RunError(f"the run has ended: {reason}; but {helpers.view.problem}")
        return reason

    @property
    def unready(self) -> str:
        """Why no site is taken now, in a word; "" means that sites are taken."""
        if self._coordinator.stopped is not None:
            return "ended"
        return "stopping" if self._detaching else ""

    async def abandon(self) -> None:
        """End without having served: the directory stays as it is."""
        self._writer.submit(self._store.abandon, "interrupted")
        await self._close()

    def finish(self, reason: str = "stopped", by: str = "") -> None:
        """End the run; its current model is the final one. May be called in any thread.

        Args:
            reason: Why.
            by: The person who ends it. Empty means whoever serves it.
        """
        self._stopped_by(by)
        self._stop_requested = reason
        self._wake_soon()

    def detach(self, by: str = "") -> None:
        """Stop serving; the run can go on another time. May be called in any thread.

        Args:
            by: The person who stops it. Empty means whoever serves it.
        """
        self._stopped_by(by)
        self._detaching = True
        self._sessions.stop_accepting()
        self._wake_soon()

    def _stopped_by(self, name: str) -> None:
        if name:
            self._store.audit.operator = operator(name)

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
        transfers = self._sessions.transfers()
        sites = tuple(replace(site, transfers=transfers.get(site.name, ())) for site in self._snapshot.sites)
        return replace(self._snapshot, mirror=self._store.mirror.view, sites=sites)

    def _refresh(self) -> None:
        """Renew the snapshot, if somebody watches: with many sites this takes a while."""
        if self._changed and self._watched:
            self._snapshot = snapshot(self._coordinator, self._label, self._title)
            self._watched = self._changed = False

    def _wake_soon(self) -> None:
        """Wake the loop, from any thread; nothing where it has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wakeup.set)

    def now(self) -> float:
        """Seconds of the run's clock."""
        return self._clock.now() + self._offset

    # ---- the loop ----

    async def _wait(self, wake_at: float) -> None:
        """Wait until there is something to process, at the latest until a time.

        A timer that ends too early costs one empty round, so a new one is started only to end earlier.
        """
        if self._timer is None or self._timer.done() or wake_at < self._wake_at:
            if self._timer is not None:
                self._timer.cancel()
            self._wake_at = wake_at
            self._timer = asyncio.create_task(self._wake_after(wake_at - self.now()))
        await self._wakeup.wait()
        self._wakeup.clear()

    async def _wake_after(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._wakeup.set()

    async def _round(self) -> None:
        """Process one batch; its effects are committed meanwhile."""
        measured, batch = self._evaluator.collect(), self._sessions.take()
        if self._model_bytes <= SMALL:
            effects = self._process(batch, measured)
        else:
            effects = await self._loop.run_in_executor(self._thread, self._process, batch, measured)
        self._uncommitted.append((effects, batch))
        self._check_committed()
        if self._committing is None:
            self._commit()
        if self._store.audit.due(AUDIT_SECONDS):
            await self._committed()
            await self._loop.run_in_executor(self._writer, self._store.write_audit)
        if self._store.due(self._model_bytes):
            await self._committed()
            await self._checkpoint()

    async def _checkpoint(self) -> None:
        await self._loop.run_in_executor(self._writer, self._store.checkpoint, self._coordinator)

    def _commit(self) -> None:
        """Make the effects of the batches durable, in the writer's thread, and deliver them then."""
        batches, self._uncommitted = self._uncommitted, []
        durable = [effects for effects, _ in batches if effects.durable]
        if not durable:
            self._deliver_batches(batches)
            return
        self._idle.clear()
        self._committing = self._writer.submit(self._store.commit, *durable)

        def tell(_: Future[None]) -> None:
            # No task waits for it, which would take two turns of the loop more.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._end_commit, batches)

        self._committing.add_done_callback(tell)

    def _end_commit(self, batches: list[tuple[Effects, Batch]]) -> None:
        """Deliver what a commit has made durable, and begin the next one."""
        done, self._committing = self._committing, None
        try:
            if done is None:
                # The service has closed meanwhile.
                return
            done.result()
            self._deliver_batches(batches)
            if self._uncommitted:
                self._commit()
        except BaseException as error:
            self._failure = error
            # The loop must wake up to see the error.
            self._wakeup.set()
        finally:
            if self._committing is None:
                self._idle.set()

    def _deliver_batches(self, batches: list[tuple[Effects, Batch]]) -> None:
        for effects, batch in batches:
            self._deliver(effects)
            for inbound in batch.messages:
                inbound.release()

    async def _committed(self) -> None:
        """Wait until nothing is to be committed, and raise the error of a commit."""
        await self._idle.wait()
        self._check_committed()

    def _check_committed(self) -> None:
        """Raise the error of a commit that has failed."""
        if self._failure is not None:
            raise self._failure

    def _process(self, batch: Batch, measured: Measurements) -> Effects:
        """Pass a batch to the coordinator."""
        coordinator = self._coordinator
        with self._busy:
            for site, (at, heartbeat) in batch.heartbeats.items():
                coordinator.heartbeat(at, site, heartbeat)
            messages, self._postponed = [*self._postponed, *batch.messages], []
            # The sites of which a message is postponed: their next ones must wait too.
            later: set[str] = set()
            batch.messages.clear()
            for inbound in messages:
                if inbound.site in later or coordinator.postpones(inbound.site):
                    later.add(inbound.site)
                    self._postponed.append(inbound)
                    continue
                batch.messages.append(inbound)
                if inbound.message is None:
                    coordinator.disconnected(inbound.at, inbound.site)
                else:
                    coordinator.receive(inbound.at, inbound.site, inbound.message, inbound.took)
            coordinator.evaluated(measured)
            coordinator.tick(self.now())
            if self._stop_requested is not None:
                coordinator.stop(self.now(), self._stop_requested)
            if any(not coordinator.postpones(inbound.site) for inbound in self._postponed):
                self._wake_soon()
            self._changed = True
            self._refresh()
            return coordinator.take()

    def _deliver(self, effects: Effects) -> None:
        for row in effects.rows:
            if row.name in ("joined", "left", "lost", "begin", "stop"):
                said = {k: v for k, v in row.flat().items() if k != "name"}
                site = self._coordinator.registry.by_client.get(-1 if row.client is None else row.client)
                log.info("%s", row.name, extra=said if site is None else {**said, "site": site.name})
            elif row.name == "rolled_back":
                self._store.audit.record(SERVER, {"action": "rollback", "version": row.version})
            elif row.name in ("aggregate", "released") and row.data is not None and "epsilon" in row.data:
                said = {name: row.data[name] for name in ("epsilon", "spent")}
                log.info("released", extra={"version": row.version, **said})
        self._sessions.deliver(effects)
        self._tell_evaluations(effects)
        if effects.evaluations:
            self._evaluator.request(effects.evaluations[-1])

    # ---- callbacks ----

    def _tell_evaluations(self, effects: Effects) -> None:
        """Tell the callbacks of the evaluations in effects that are durable."""
        for metric, version in zip(effects.metrics, effects.evaluated, strict=True):
            self._callbacks.on_evaluation(metric, version)

    def _tell_exception(self, error: BaseException) -> None:
        interrupted = isinstance(error, asyncio.CancelledError)
        self._callbacks.on_exception(KeyboardInterrupt(str(error)) if interrupted else error)

    # ---- the end ----

    async def _end(self) -> str:
        """Evaluate the last version, notify the sites, write the final model."""
        reason = self._coordinator.stopped or ""
        actor = SERVER if self._stop_requested is None else self._store.audit.operator
        self._store.audit.record(actor, {"action": "run.end", "reason": reason})
        for inbound in self._postponed:
            inbound.release()
        self._sessions.finish(reason)
        last = self._coordinator.last_evaluation()
        measured = await self._loop.run_in_executor(self._thread, self._evaluator.finish, last)
        effects, model = await self._loop.run_in_executor(self._writer, self._write_end, measured)
        if (choice := self._coordinator.options.share_model) is not None:
            chosen = choose_model(choice, model.sharing(0), self._store.directory)
            self._sessions.share(self._coordinator.info.run, chosen)
        self._tell_evaluations(effects)
        self._callbacks.on_end(reason, model)
        await self._linger()
        return reason

    async def _linger(self) -> None:
        """Wait until the sites know that the run has finished, but not for those that may not come back.

        The time counts while nothing is being sent: a large model may take longer.
        """
        coordinator, now = self._coordinator, self.now()
        sites, end = coordinator.registry.sites.values(), now + self._linger_seconds
        expected = {s.name for s in sites if s.present or not coordinator.may_register(now, s.name)}
        while not (expected <= self._sessions.notified or self._detaching):
            if self._sessions.sending:
                end = self.now() + max(self._linger_seconds, 0.1)
            elif self.now() >= end:
                return
            await self._wait(end)

    def _write_end(self, measured: Measurements) -> tuple[Effects, Model]:
        coordinator = self._coordinator
        with self._busy:
            coordinator.evaluated(measured)
            effects = coordinator.take()
            self._store.commit(effects)
            model = self._store.finish(coordinator, coordinator.summary())
            self._changed = True
        return effects, model

    async def _close(self) -> None:
        self._detaching = True
        self._sessions.close("the server has stopped")
        self._committing = None
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)
        await self._loop.run_in_executor(self._thread, self._evaluator.close)
        await self._loop.run_in_executor(self._thread, self._callbacks.close)
        self._thread.shutdown(wait=True)
        self._writer.shutdown(wait=True)
