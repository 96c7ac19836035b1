"""A site's side of a deployed run: connects, does its work, and delivers it whatever happens.

A conversation may end at any moment: the site comes back after a pause that grows, says what it has in hand,
and is told what it has missed. An update is kept until the server has answered it. Messages that were lost
need no memory: what is in hand (`work`) says them again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

from offbeat.core.errors import RunError, UsageError
from offbeat.net.backoff import GIVE_UP_AFTER, Backoff
from offbeat.net.client.store import SiteStore
from offbeat.net.client.worker import Prepare, Worker
from offbeat.net.clock import Clock, SystemClock
from offbeat.net.messages import FromSite, Leave, Register, Registered, Rejected, RunFinished
from offbeat.net.transport import ChannelClosedError, ChannelRefusedError, ClientChannel

Connect = Callable[[], Awaitable[ClientChannel]]
log = logging.getLogger(__name__)


class SiteClient:
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
        patience: float | None = GIVE_UP_AFTER,
        chance: Random | None = None,
    ) -> None:
        self._connect, self._clock = connect, clock or SystemClock()
        self._samples, self._labels = samples, labels
        self._patience, self._chance = patience, chance or Random()  # pauses only: not part of any result
        self._work = Worker(prepare, store or SiteStore(), self._clock, self._say)
        self._outgoing: asyncio.Queue[FromSite] | None = None  # while there is a conversation
        self._lease, self._heard = 60.0, 0.0
        self._served = 0.0  # when a server that has welcomed the site was last heard
        self._leaving, self._welcomed = asyncio.Event(), asyncio.Event()

    async def run(self) -> str:
        """Take part until the run is over; returns why it ended.

        Raises `RunError` where the server refuses the site, or is not found, `UsageError` where what the
        server asks for cannot be done with the data.
        """
        patience = Backoff(self._patience, self._chance, self._clock.now())
        try:
            while True:
                reason = "the link was closed"
                try:
                    link = await self._connect()
                    over = await self._converse(link)
                    if over is not None:
                        return over
                except ChannelRefusedError as error:
                    raise RunError(str(error)) from None
                except OSError as error:  # of which LinkClosedError is one
                    reason = str(error) or type(error).__name__
                patience.heard(self._served)
                await self._clock.sleep(patience.failed(self._clock.now(), reason))
        finally:
            self._work.close()

    def leave(self) -> None:
        """Say goodbye and end, as soon as there is a server to say it to."""
        self._leaving.set()

    async def _converse(self, link: ClientChannel) -> str | None:
        """Talk until the link ends, or the run (then returns why)."""
        holding = self._work.holding
        self._outgoing, self._welcomed = asyncio.Queue(), asyncio.Event()
        self._heard = max(self._heard, self._clock.now())
        run = self._work.run if holding is not None else ""
        self._outgoing.put_nowait(Register(self._samples, 0, self._labels, holding, run))
        helpers = [asyncio.create_task(c) for c in (self._send(link), self._beats(link), self._goodbye(link))]
        try:
            return await self._listen(link)
        except UsageError as error:
            with suppress(ChannelClosedError):
                await link.send(Leave(str(error)))
            raise
        finally:
            self._outgoing = None
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await link.close()

    async def _listen(self, link: ClientChannel) -> str | None:
        welcomed = False
        while True:
            message = await link.receive()
            self._heard = self._clock.now()
            self._served = self._heard if welcomed else self._served
            match message:
                case RunFinished():
                    with suppress(ChannelClosedError):
                        await link.send(Leave("the run is over"))
                    return message.reason
                case Rejected():
                    if message.final:
                        raise RunError(f"the server refuses this site: {message.reason}")
                    log.warning("the server did not accept a message: %s", message.reason)
                    if not welcomed:
                        raise ChannelClosedError(message.reason)
                case Registered():
                    log.info("the server is there: client %d of run %s", message.client, message.run)
                    self._lease = message.lease
                    self._welcomed.set()
                    await self._work.welcome(message)
                    welcomed = True
                    self._served = self._heard
                case _ if welcomed:  # what comes before is of an earlier conversation, and will be said again
                    self._work.hear(message)

    def _say(self, message: FromSite) -> None:
        """Send it, if there is a conversation: if not, what is in hand will be said in the next one."""
        if self._outgoing is not None:
            self._outgoing.put_nowait(message)

    # ---- beside the listening ----

    async def _send(self, link: ClientChannel) -> None:
        outgoing = self._outgoing
        assert outgoing is not None
        try:
            while True:
                await link.send(await outgoing.get())
        except ChannelClosedError:
            await link.close()

    async def _beats(self, link: ClientChannel) -> None:
        """Signs of life: as the last lease asks for, and from the welcome on as the new one does."""
        before = asyncio.create_task(self._beat(link))
        try:
            await self._welcomed.wait()
        finally:
            before.cancel()
            await asyncio.gather(before, return_exceptions=True)
        await self._beat(link)

    async def _beat(self, link: ClientChannel) -> None:
        """Signs of life; a server that gives none for a whole lease is not there."""
        while True:
            await self._clock.sleep(self._lease / 3)
            if self._clock.now() - self._heard > self._lease:
                await link.close("the server is silent")
                return
            self._say(self._work.beat())

    async def _goodbye(self, link: ClientChannel) -> None:
        await self._leaving.wait()
        with suppress(ChannelClosedError):
            await link.send(Leave("left"))
        raise asyncio.CancelledError
