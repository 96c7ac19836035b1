"""A server of a run: it listens, and serves the run until the run ends or the server is told to leave it."""

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Protocol, Self

from offbeat.callbacks.callback import Callback
from offbeat.callbacks.callback_list import CallbackList
from offbeat.core.errors import OffbeatError, UsageError
from offbeat.core.learner import NoTraining
from offbeat.documents import user_path
from offbeat.experiment import Experiment
from offbeat.net.audit import AuditLog
from offbeat.net.auth.credentials import ServerCredentials
from offbeat.net.clock import Clock, SystemClock
from offbeat.net.grpc.server import listen as listen_on
from offbeat.net.server.durable_store import CHECKPOINT_SECONDS
from offbeat.net.server.finished import FinishedRun, FinishedService
from offbeat.net.server.open_run import open_run
from offbeat.net.server.server_options import ServerOptions
from offbeat.net.server.service import Service
from offbeat.net.threads import in_thread
from offbeat.net.transport import OnChannel
from offbeat.net.wire.limits import Limits
from offbeat.net.wire.unfinished import DIRECTORY, UnfinishedBodies
from offbeat.runs.archive import archive
from offbeat.runs.record import holds_run
from offbeat.units import size_text

log = logging.getLogger(__name__)
MEMORY = 8 << 30
"""Bytes of all the bodies that a server receives at once, unless its model needs more."""
LINGER = 10.0
"""Seconds that a server waits at the end of a run, at most, for sites that have not heard of it."""


class Listener(Protocol):
    """What listens, and can be closed."""

    async def close(self) -> None:
        """Stop listening, and close all connections."""


ListenFactory = Callable[[OnChannel], Awaitable[Listener]]
"""Begins to listen; every connection of a site is passed to the function it is called with."""


def serve(
    experiment: Experiment,
    state: str | Path,
    listen: str | ListenFactory,
    *,
    options: ServerOptions | None = None,
    credentials: ServerCredentials | None = None,
    limits: Limits | None = None,
    callbacks: Sequence[Callback] = (),
    clock: Clock | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    linger: float = LINGER,
    mirror: str | Path | None = None,
    by: str | None = None,
) -> "RunServer":
    """Serve a run.

    The server listens inside `async with serve(…) as server:`, or inside `with`, for which it takes a thread
    of its own. `server.port` is its port. `await server.ended()`, or `server.wait()`, waits for the end.

    Args:
        experiment: What the run is. Its learner is a server's, such as `server_learner` makes: it has the
            model and the server's test data, and no clients.
        state: The run's directory. Where it holds this run already, the run goes on; if it has ended, sites
            are told so, and those that ask for its model get it if the options share it.
        listen: "HOST:PORT" (port 0: a free one), or what opens another transport.
        options: When the run begins, and what the server accepts. None means the defaults.
        credentials: TLS and tokens, for an address. None means none, which is allowed on loopback.
        limits: What a connection may send, for an address. None means what the model and the lease need.
        callbacks: What is called while the run goes on, in this order and in a thread of their own.
        clock: Tells the time. None means the system's clock.
        checkpoint_seconds: Seconds between two checkpoints, at most.
        linger: Seconds that the server waits at the end, at most, for sites that have not heard of it.
        mirror: A second state directory, on another disk, that has all that is acknowledged, and can be
            served in the place of `state`. None means none.
        by: The person who serves the run, for its audit. None means the system's user.

    Raises:
        UsageError: What is asked cannot be served, or the directory holds another run. It is raised where the
            server is entered, as is RunError: the directory holds a run that cannot go on, or the run fails.
    """
    options, audit = options or ServerOptions(), AuditLog(by=by)
    if isinstance(listen, str):
        shown, allowed = credentials or ServerCredentials(), limits or connection_limits(experiment, options)
        listen = partial(_listen, listen, shown, allowed, audit, user_path(state))
    elif credentials is not None or limits is not None:
        raise UsageError("credentials and limits are for an address: leave them out with another transport")

    directory, archive_after = user_path(state), options.archive

    def opened() -> Service | FinishedService:
        _archive(directory, archive_after)
        beside = None if mirror is None else user_path(mirror)
        tells = clock or SystemClock()
        run = open_run(experiment, directory, options, checkpoint_seconds, audit=audit, mirror=beside)
        if isinstance(run, FinishedRun):
            audit.close()
            return FinishedService(run, tells, linger)
        return Service(run, tells, linger, CallbackList(callbacks))

    def at_end() -> None:
        # Nobody goes on with an update of a run that has ended.
        shutil.rmtree(directory / DIRECTORY, ignore_errors=True)
        _archive(directory, archive_after)

    return RunServer(opened, listen, audit, at_end)


def _archive(directory: Path, seconds: float | None) -> None:
    """Compress old journal rows. The log says where that fails: a run needs it for nothing but its disk."""
    if seconds is None or not holds_run(directory):
        return
    try:
        found = archive(directory, seconds)
    except OffbeatError as error:
        log.warning("the journal rows of %s are not archived: %s", directory, error)
        return
    if found.rows:
        sizes = size_text(found.before), size_text(found.after)
        log.info("archived %d journal rows; run.db: %s before, %s now", found.rows, *sizes)


def connection_limits(experiment: Experiment, options: ServerOptions) -> Limits:
    """The limits of connections that the model and the lease of a run need."""
    learner = experiment.learner or NoTraining(options.clients)
    model = learner.initial(experiment.seed).sharing(experiment.algorithm.objective.shared_vectors)
    # Two bodies of the model at least can come at once, whatever its size.
    memory = max(MEMORY, 2 * model.layout.nbytes)
    silence = max(Limits().silence, 2 * options.lease)
    return Limits(layout=model.layout, body=memory, payload=memory, memory=memory, silence=silence)


async def _listen(
    address: str,
    credentials: ServerCredentials,
    limits: Limits,
    audit: AuditLog,
    directory: Path,
    on_channel: OnChannel,
) -> Listener:
    unfinished = UnfinishedBodies(directory / DIRECTORY)
    return await listen_on(address, credentials, limits, on_channel, audit, unfinished)


class RunServer:
    """A server that listens while it is entered; `serve` makes it.

    Attributes:
        service: What serves the run. None before the server is entered.
        listener: What listens. None before the server is entered.
        audit: The run's audit.
    """

    def __init__(
        self,
        opened: Callable[[], Service | FinishedService],
        listen: ListenFactory,
        audit: AuditLog,
        at_end: Callable[[], None],
    ) -> None:
        self._opened, self._listen, self.audit, self._at_end = opened, listen, audit, at_end
        self.service: Service | FinishedService | None = None
        self.listener: Listener | None = None
        self._run: asyncio.Task[str | None] | None = None
        self._begun = False
        self._thread: Future[str | None] | None = None

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        return int(getattr(self.listener, "port", 0))

    def leave(self, by: str = "") -> None:
        """Leave the run as it is: served again, it goes on. May be called in any thread.

        Args:
            by: The person who stops it, for the audit. Empty means whoever serves it.
        """
        if self.service is not None:
            self.service.detach(by)

    def finish(self, reason: str = "stopped", by: str = "") -> None:
        """End the run; its current model is the final one. May be called in any thread.

        Args:
            reason: Why.
            by: The person who ends it, for the audit. Empty means whoever serves it.
        """
        if self.service is not None:
            self.service.finish(reason, by)

    # ---- in an event loop ----

    async def __aenter__(self) -> Self:
        """Open the run, and listen."""
        service = self.service = self._opened()
        try:
            self.listener = await self._listen(service.on_channel)
        except BaseException:
            await service.abandon()
            raise
        self._run = asyncio.create_task(self._serve(service, self.listener))
        return self

    async def ended(self) -> str | None:
        """Wait for the end; returns its reason. None means that the server was told to leave the run."""
        if self._run is None:
            raise UsageError("the server does not listen yet: enter it first, with async with")
        return await self._run

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the run if it has not ended, and stop listening."""
        assert self._run is not None
        assert self.service is not None
        assert self.listener is not None
        if isinstance(error, asyncio.CancelledError):
            self._run.cancel()
        self.leave()
        (failed,) = await asyncio.gather(self._run, return_exceptions=True)
        # A task that is cancelled before its first step never runs.
        if not self._begun:
            await self.service.abandon()
            await self.listener.close()
        if error is None and isinstance(failed, BaseException):
            raise failed

    async def _serve(self, service: Service | FinishedService, listener: Listener) -> str | None:
        self._begun = True
        try:
            reason = await service.run()
        finally:
            await listener.close()
        if reason is not None and isinstance(service, Service):
            await asyncio.to_thread(self._at_end)
        return reason

    # ---- in a thread of its own ----

    def __enter__(self) -> Self:
        """As `async with`, in a thread of its own."""
        listening = Event()

        async def run() -> str | None:
            try:
                async with self:
                    listening.set()
                    return await self.ended()
            finally:
                listening.set()

        self._thread = in_thread(run())
        listening.wait()
        # Without a task the server could not be entered.
        if self._run is None:
            self._thread.result()
        return self

    def wait(self, timeout: float | None = None) -> str | None:
        """Wait for the end, as `ended` does, of a server that was entered by `with`.

        Args:
            timeout: Seconds after which to raise `TimeoutError`. None means never.
        """
        if self._thread is None:
            raise UsageError("wait() is for a server that was entered by with: await server.ended()")
        return self._thread.result(timeout)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the run if it has not ended, and stop listening."""
        self.leave()
        try:
            self.wait()
        except BaseException:
            if error is None:
                raise
