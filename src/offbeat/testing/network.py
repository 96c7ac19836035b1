"""A network in memory, in one event loop, with faults: for tests of servers and sites without sockets."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from msgspec.structs import replace
from torch import Tensor

from offbeat.net.messages import Register, UpdateSubmission
from offbeat.net.transport import (
    ChannelClosedError,
    ClientChannel,
    OnChannel,
    Put,
    ServerChannel,
    Transfer,
)

__all__ = ["Faults", "MemoryNetwork"]

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
        self.all = [self.up, self.down]
        self.closed = False

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            for queue in self.all:
                queue.put_nowait(_END)


class _Channel:
    """One end of a channel."""

    def __init__(
        self, queues: _Queues, out: asyncio.Queue[Any], into: asyncio.Queue[Any], faults: Faults, site: str
    ) -> None:
        self._queues, self._out, self._in, self._faults = queues, out, into, faults
        self._site = site
        self._outbound: asyncio.Queue[Any] = asyncio.Queue()
        queues.all.append(self._outbound)
        self._sender = asyncio.ensure_future(self._send_all())

    @property
    def site(self) -> str:
        """The site's name."""
        return self._site

    @property
    def sending(self) -> bool:
        """Whether a message is queued."""
        return not self._outbound.empty()

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """Nothing: messages arrive whole."""
        return ()

    @property
    def took(self) -> float:
        """No time: messages arrive whole."""
        return 0.0

    def send(self, message: Any) -> None:
        """Queue a message."""
        self._outbound.put_nowait(message)

    async def receive(self) -> Any:
        """The next message."""
        message = await self._in.get()
        if message is _END:
            self._in.put_nowait(_END)
            raise ChannelClosedError("the other end is gone")
        return message

    async def forward(self, put: Put) -> None:
        """Pass every message to `put` as it comes."""
        while True:
            put(await self.receive(), lambda: None)

    def end(self, reason: str = "") -> None:
        """Close both ends once the queue is sent; does not wait."""
        self._outbound.put_nowait(_END)

    async def close(self, reason: str = "") -> None:
        """Close both ends once the queue is sent."""
        self.end()
        await asyncio.wait({self._sender})

    async def _send_all(self) -> None:
        """Move messages to the other end, with faults."""
        faults = self._faults
        while (message := await self._outbound.get()) is not _END and not self._queues.closed:
            if faults.delay:
                await asyncio.sleep(faults.delay * faults.rng.random())
            if faults.cut and faults.rng.random() < faults.cut:
                faults.cuts += 1
                if faults.rng.random() < 0.5:
                    # The message arrives, but its sender cannot know.
                    self._out.put_nowait(_sent(message))
                break
            self._out.put_nowait(_sent(message))
            if (
                faults.duplicate
                and faults.rng.random() < faults.duplicate
                and not isinstance(message, Register)
            ):
                faults.duplicates += 1
                self._out.put_nowait(_sent(message))
        self._queues.close()


def _sent(message: Any) -> Any:
    """A message as it arrives: an update in memory of its own, to which the server may write."""
    if isinstance(message, UpdateSubmission) and isinstance(message.delta, Tensor):
        return replace(message, delta=message.delta.clone())
    return message


class MemoryNetwork:
    """A transport in memory: one server listens, any number of sites connect.

    `listen` is what `offbeat.net.serve` takes, `connect(name)` what `offbeat.net.join` takes.
    `on_channel` serves each new channel; it is `None` while nobody listens.
    """

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.on_channel: OnChannel | None = None
        self._served: dict[str, tuple[_Queues, asyncio.Task[None]]] = {}
        self._open: list[_Queues] = []

    async def listen(self, on_channel: OnChannel) -> "MemoryNetwork":
        """Serve each channel that is opened from now on with `on_channel`."""
        self.on_channel = on_channel
        return self

    async def close(self) -> None:
        """Stop listening and close all channels."""
        self.on_channel = None
        self.cut()
        await asyncio.gather(*(task for _, task in self._served.values()), return_exceptions=True)

    def cut(self) -> None:
        """Close all channels; sites may connect again."""
        for queues in self._open:
            queues.close()
        self._open.clear()

    async def _serve(
        self,
        channel: ServerChannel,
        on_channel: OnChannel,
        older: tuple[_Queues, "asyncio.Task[None]"] | None,
    ) -> None:
        """Serve a channel after an older one of the same site has ended."""
        if older is not None:
            older[0].close()
            await asyncio.wait({older[1]})
        await on_channel(channel)

    def connect(self, site: str) -> Callable[[], Awaitable[ClientChannel]]:
        """A function that opens a channel as `site`; it raises `ChannelClosedError` without a listener."""

        async def connect() -> ClientChannel:
            if self.on_channel is None:
                raise ChannelClosedError("nobody listens")
            queues = _Queues()
            self._open.append(queues)
            server = _Channel(queues, queues.down, queues.up, self.faults, site)
            task = asyncio.create_task(self._serve(server, self.on_channel, self._served.get(site)))
            self._served[site] = queues, task
            return _Channel(queues, queues.up, queues.down, self.faults, site)

        return connect
