"""A site's side of a deployed run: connects, trains and delivers its updates whatever happens.

A connection may end at any moment: the site reconnects with exponential backoff, reports the task it holds,
and is told what it has missed. An update is kept until the server has answered it. Lost messages need no
memory of their own: the worker sends them again.
"""

import asyncio
import logging
from collections.abc import Callable
from random import Random

from offbeat.core.errors import RunError, UsageError
from offbeat.core.model import Tensors
from offbeat.net.backoff import GIVE_UP_AFTER, Backoff
from offbeat.net.client.first_batch import DataError
from offbeat.net.client.heartbeats import Liveness
from offbeat.net.client.reconnecting import Connect, reconnecting
from offbeat.net.client.sent_log import SentLog
from offbeat.net.client.store import SiteStore
from offbeat.net.client.worker import Prepare, Worker
from offbeat.net.clock import Clock, SystemClock
from offbeat.net.messages import LABELS_NEEDED, Leave, Register, Registered, Rejected, RunFinished
from offbeat.net.transport import ChannelClosedError, ClientChannel

log = logging.getLogger(__name__)
_NOT_SHARED = (
    "{}: leave keep_model (site.keep_model) out, or have it served with share_model (--set "
    "server.share_model)"
)


class SiteClient:
    """One client of a federation.

    Args:
        connect: Opens a connection to the server.
        prepare: Makes the training context from the server's run spec and the client's number.
        samples: Number of the site's training samples, as it is told.
        labels: Its numbers of samples of each class, told where the algorithm needs them; None to keep them
            private.
        steps_per_epoch: Local steps of an epoch; 0: as the run's batch size gives them.
        held_out: Number of samples that the site holds out, and evaluates models on when it is asked, as it
            is told.
        store: Where state and pending updates are kept; None for memory.
        clock: Source of time.
        give_up_after: Seconds without a server, or in which one message does not get through, after which
            `run` fails; None for never.
        keep: Takes the tensors of the model that the run shares by name, those of the site's own included.
            None means that the site does not ask for it.
        rng: Random generator of the delays between two attempts; no part of any result.
        sent_log: Records what leaves the site. None means that nothing is recorded.
    """

    def __init__(
        self,
        connect: Connect,
        prepare: Prepare,
        samples: int,
        labels: tuple[int, ...] | None = None,
        *,
        steps_per_epoch: int = 0,
        held_out: int = 0,
        store: SiteStore | None = None,
        clock: Clock | None = None,
        give_up_after: float | None = GIVE_UP_AFTER,
        keep: Callable[[Tensors], object] | None = None,
        rng: Random | None = None,
        sent_log: SentLog | None = None,
    ) -> None:
        self._connect, self._clock = connect, clock or SystemClock()
        self._liveness = Liveness(self._clock)
        self._samples, self._labels, self._steps_per_epoch = samples, labels, steps_per_epoch
        self._held_out, self._keep = held_out, keep
        # The run whose server has asked for labels.
        self._run_needs_labels = ""
        self._give_up_after, self._rng = give_up_after, rng or Random()
        self._sent_log = sent_log or SentLog()
        self._worker = Worker(prepare, store or SiteStore(), self._clock)

    async def run(self) -> str:
        """Take part until the run has finished; returns the reason.

        Raises:
            RunError: The server refuses the site, or cannot be reached.
            UsageError: The data do not fit what the server asks for.
        """
        backoff = Backoff(self._give_up_after, self._rng, self._clock.now())
        try:
            known = self._worker.known
            return await reconnecting(
                self._connect, self._hello, self._serve, self._liveness, backoff, known=known,
                sent_log=self._sent_log,
            )  # fmt: skip
        finally:
            self._sent_log.close()
            self._worker.close()

    def _hello(self, labels: tuple[int, ...] = ()) -> Register:
        """The site's registration; with the numbers of samples by class once the site knows the plan."""
        task = self._worker.task
        run = self._worker.run if task is not None else ""
        steps, wants_model = self._steps_per_epoch, self._keep is not None
        return Register(
            self._samples, steps, labels, task, run, self._held_out, wants_model
        )  # fmt: skip

    async def _serve(self, channel: ClientChannel) -> str | None:
        """Serve one connection, to its end or that of the run; returns the reason of the run's end."""
        self._liveness.hear(served=False)
        channel.send(self._hello())
        self._liveness.start_heartbeats(channel, self._worker.heartbeat)
        try:
            return await self._receive(channel)
        except DataError as error:
            channel.send(Leave(error.told))
            raise
        except UsageError as error:
            channel.send(Leave(str(error)))
            raise
        finally:
            self._worker.disconnected()
            await self._liveness.end_heartbeats()
            await channel.close()

    async def _receive(self, channel: ClientChannel) -> str | None:
        # `plan` is the run whose plan is known.
        registered, plan, told_labels = False, "", False
        while True:
            message = await channel.receive()
            self._liveness.hear(served=registered or isinstance(message, Registered))
            match message:
                case RunFinished():
                    await self._keep_model(message)
                    channel.send(Leave("the run has finished"))
                    return message.reason
                case Rejected() if message.reason == LABELS_NEEDED and self._labels:
                    if not told_labels:
                        # A second request answers the site's first message, which had no labels.
                        self._tell_labels(channel, plan)
                    told_labels = True
                case Rejected():
                    if message.final:
                        raise RunError(f"the server refuses this site: {message.reason}")
                    log.warning("the server rejected a message: %s", message.reason)
                    if not registered:
                        raise ChannelClosedError(message.reason)
                case Registered():
                    await self._registered(channel, message)
                    plan = message.run
                    if plan == self._run_needs_labels and not told_labels:
                        self._tell_labels(channel, plan)
                        told_labels = True
                        continue
                    self._worker.resume(channel.send)
                    registered = True
                case _ if registered:
                    # A message before the registration belongs to an earlier connection and is sent again.
                    self._worker.handle(message, channel.took)

    async def _registered(self, channel: ClientChannel, message: Registered) -> None:
        """Take the server's plan. Raises `UsageError` where the site does not take part in it."""
        if self._keep is not None and not message.shares_model:
            raise UsageError(_NOT_SHARED.format("the run does not share its model"))
        log.info("registered: client %d of run %s", message.client, message.run)
        self._sent_log.registered(message.run, message.client, message.plan)
        self._liveness.lease = message.lease
        self._liveness.start_heartbeats(channel, self._worker.heartbeat)
        await self._worker.prepare(message)

    def _tell_labels(self, channel: ClientChannel, plan: str) -> None:
        """Tell the server the numbers of samples by class. Raises `UsageError` where its plan needs none."""
        if not plan or not self._worker.may_tell_labels:
            why = "and its plan allows none" if plan else "before it has told its plan"
            raise UsageError(
                f"the server asks for the numbers of samples by class {why}: they stay here; ask its operator"
            )
        self._run_needs_labels = plan
        channel.send(self._hello(self._labels or ()))

    async def _keep_model(self, finished: RunFinished) -> None:
        """Keep the model that the run shares, if the site asks. Raises `RunError` where it has not come."""
        if self._keep is None:
            return
        if finished.model is None:
            what = f"the run has ended ({finished.reason}), and does not share its model"
            raise RunError(_NOT_SHARED.format(what))
        await asyncio.to_thread(self._keep, self._worker.own_tensors(finished.run, finished.model))
