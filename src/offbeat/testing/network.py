"""A network in memory, in one event loop, with faults: for tests of servers and sites without sockets."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from offbeat.net.messages import Register
from offbeat.net.transport import ChannelClosedError, ClientChannel, OnChannel

_END = object()


@dataclass
class Faults:
    """Faults of a network, drawn from `rng` for each message.

    Args:
        cut: Probability in [0, 1] that a message's channel closes; half of such messages still arrive.
        duplicate: Probability in [0, 1] that a message arrives twice; a `Register` never does.
        delay: Longest delay of a message in seconds; each is uniform in [0, delay].
        rng: Source of the draws.
        cuts: Number of channels closed so far.
        duplicates: Number of messages that arrived twice so far.
    """

    cut: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    rng: Random = field(default_factory=lambda: Random(0))
    cuts: int = 0
    duplicates: int = 0


class _Queues:
    """Both directions of one channel."""

    def __init__(self) -> None:
        self.up: asyncio.Queue[Any] = asyncio.Queue()
        self.down: asyncio.Queue[Any] = asyncio.Queue()
        self.closed = False

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.up.put_nowait(_END)
            self.down.put_nowait(_END)


class _Channel:
    """One end of a channel."""

    def __init__(
        self, queues: _Queues, out: asyncio.Queue[Any], into: asyncio.Queue[Any], faults: Faults, site: str
    ) -> None:
        self._queues, self._out, self._in, self._faults = queues, out, into, faults
        self._site = site

    @property
    def site(self) -> str:
        """The site's name."""
        return self._site

    async def send(self, message: Any) -> None:
        """Put a message into the other end's queue, or have a fault."""
        faults = self._faults
        if faults.delay:
            await asyncio.sleep(faults.delay * faults.rng.random())
        if faults.cut and faults.rng.random() < faults.cut:
            faults.cuts += 1
            if faults.rng.random() < 0.5:
                self._out.put_nowait(message)  # it arrives, but its sender cannot know
            self._queues.close()
        if self._queues.closed:
            raise ChannelClosedError("cut")
        self._out.put_nowait(message)
        if faults.duplicate and faults.rng.random() < faults.duplicate and not isinstance(message, Register):
            faults.duplicates += 1
            self._out.put_nowait(message)

    async def receive(self) -> Any:
        """The next message."""
        message = await self._in.get()
        if message is _END:
            self._in.put_nowait(_END)
            raise ChannelClosedError("the other end is gone")
        return message

    async def close(self, reason: str = "") -> None:
        """Close both ends."""
        self._queues.close()


class MemoryNetwork:
    """A transport in memory: one server listens, any number of sites connect.

    `listen` is what `offbeat.net.serve` takes, `connect(name)` what `offbeat.net.join` takes.
    `on_channel` serves each new channel; it is `None` while nobody listens.
    """

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.on_channel: OnChannel | None = None
        self._served: set[asyncio.Task[None]] = set()
        self._open: list[_Queues] = []

    async def listen(self, on_channel: OnChannel) -> "MemoryNetwork":
        """Serve each channel that is opened from now on with `on_channel`."""
        self.on_channel = on_channel
        return self

    async def close(self) -> None:
        """Stop listening and close all channels."""
        self.on_channel = None
        self.cut()
        await asyncio.gather(*self._served, return_exceptions=True)

    def cut(self) -> None:
        """Close all channels; sites may connect again."""
        for queues in self._open:
            queues.close()
        self._open.clear()

    def connect(self, site: str) -> Callable[[], Awaitable[ClientChannel]]:
        """What opens a channel in the name of `site`; it raises `ChannelClosedError` if nobody listens."""

        async def connect() -> ClientChannel:
            if self.on_channel is None:
                raise ChannelClosedError("nobody listens")
            queues = _Queues()
            self._open.append(queues)
            server = _Channel(queues, queues.down, queues.up, self.faults, site)
            served = asyncio.ensure_future(self.on_channel(server))
            self._served.add(served)
            served.add_done_callback(self._served.discard)
            return _Channel(queues, queues.up, queues.down, self.faults, site)

        return connect
