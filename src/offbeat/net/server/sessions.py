"""The open links of a server: what sites say is collected here, and what they are told goes out here.

Signs of life are answered at once, whatever else the server is doing.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from offbeat.net.messages import FromSite, Heartbeat, Leave, Register, Rejected, RunFinished
from offbeat.net.server.effects import Effects
from offbeat.net.server.outbound_queue import OutboundQueue
from offbeat.net.transport import ChannelClosedError, ServerChannel

HELLO_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Inbound:
    """What a site said, or (without a message) that its link has ended."""

    at: float
    site: str
    message: FromSite | None
    slot: asyncio.Semaphore | None = None

    def heard(self) -> None:
        """It has been dealt with: the site may say the next thing."""
        if self.slot is not None:
            self.slot.release()


@dataclass(frozen=True, slots=True)
class Batch:
    """What came in since the last time: in order, but for the last sign of life of each site."""

    said: list[Inbound]
    seen: dict[str, tuple[float, Heartbeat]]


class Sessions:
    """Talks to sites. `now` is the run's clock; `stirred` is called when there is something to take.

    `told` are the sites that have heard that the run is over.
    """

    def __init__(self, now: Callable[[], float], stirred: Callable[[], None]) -> None:
        self.told: set[str] = set()
        self._now, self._stirred = now, stirred
        self._open: dict[str, OutboundQueue] = {}
        self._readers: set[asyncio.Task[None]] = set()
        self._batch = Batch([], {})
        self._over: str | None = None
        self._closed = False

    async def on_link(self, link: ServerChannel) -> None:
        """Talk to a site until its link ends."""
        try:
            hello = await asyncio.wait_for(link.receive(), HELLO_SECONDS)
            if not isinstance(hello, Register):
                await link.send(Rejected("a conversation begins with hello", final=False))
            elif self._over is not None:
                await asyncio.wait_for(tell_the_end(link, self._over), HELLO_SECONDS)
                self._heard_of_the_end(link.site)
            elif not self._closed:
                await self._converse(link, hello)
        except (ChannelClosedError, TimeoutError):
            pass
        await link.close()

    def take(self) -> Batch:
        """What came in since the last call."""
        batch, self._batch = self._batch, Batch([], {})
        return batch

    def deliver(self, outcome: Effects) -> None:
        """Send messages, and end links."""
        for site, message in outcome.messages:
            if site in self._open:
                self._open[site].say(message)
        for site, reason in outcome.closed:
            if site in self._open:
                self._open[site].finish(reason)

    def over(self, reason: str) -> None:
        """The run is over: whoever says something from now on hears of it, and who has said something too."""
        self._over = reason
        for said in self._batch.said:
            said.heard()
            if said.message is not None and said.site in self._open:
                self._open[said.site].say(RunFinished(reason))

    def shut(self) -> None:
        """Talk to no new link."""
        self._closed = True

    def cut(self, reason: str) -> None:
        """End every link."""
        self.shut()
        for mailbox in list(self._open.values()):
            mailbox.cut(reason)
        for reader in list(self._readers):
            reader.cancel()

    async def _converse(self, link: ServerChannel, hello: Register) -> None:
        older, mine = self._open.get(link.site), OutboundQueue(link)
        self._open[link.site] = mine
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
            if self._open.get(link.site) is mine:
                del self._open[link.site]
                self._put(Inbound(self._now(), link.site, None))
            await mine.close()

    async def _read(self, link: ServerChannel, mailbox: OutboundQueue, first: FromSite) -> None:
        """Hand over what a site says, one at a time; signs of life are answered here."""
        slot, message = asyncio.Semaphore(1), first
        while True:
            if isinstance(message, Heartbeat):
                self._batch.seen[link.site] = (self._now(), message)
                mailbox.say(Heartbeat())
            elif self._over is not None:
                if isinstance(message, Leave):
                    self._heard_of_the_end(link.site)
                    return
                mailbox.say(RunFinished(self._over))
            else:
                await slot.acquire()
                self._put(Inbound(self._now(), link.site, message, slot))
            del message  # which may be large
            message = await link.receive()

    def _put(self, said: Inbound) -> None:
        self._batch.said.append(said)
        self._stirred()

    def _heard_of_the_end(self, site: str) -> None:
        self.told.add(site)
        self._stirred()


async def tell_the_end(link: ServerChannel, reason: str) -> None:
    """Tell a site that the run is over, until it says that it has heard."""
    await link.send(RunFinished(reason))
    while not isinstance(await link.receive(), Leave):
        pass
