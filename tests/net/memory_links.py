"""Links in memory, with faults: cut at any message, messages twice, delays."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from offbeat.net.messages import FromServer, FromSite, Register
from offbeat.net.transport import ChannelClosedError, OnChannel

_END = object()


@dataclass
class Faults:
    """How bad a network is: probabilities for each message, drawn from `chance`."""

    cut: float = 0.0
    twice: float = 0.0
    delay: float = 0.0
    chance: Random = field(default_factory=lambda: Random(0))
    cuts: int = 0
    doubled: int = 0


class _Wire:
    """Both directions of one conversation."""

    def __init__(self) -> None:
        self.up: asyncio.Queue[Any] = asyncio.Queue()
        self.down: asyncio.Queue[Any] = asyncio.Queue()
        self.closed = False

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.up.put_nowait(_END)
            self.down.put_nowait(_END)


class _End:
    def __init__(
        self, wire: _Wire, out: asyncio.Queue[Any], into: asyncio.Queue[Any], faults: Faults
    ) -> None:
        self._wire, self._out, self._in, self._faults = wire, out, into, faults

    async def send(self, message: Any) -> None:
        faults = self._faults
        if faults.delay:
            await asyncio.sleep(faults.delay * faults.chance.random())
        if faults.cut and faults.chance.random() < faults.cut:
            faults.cuts += 1
            if faults.chance.random() < 0.5:
                self._out.put_nowait(message)  # it arrives, but its sender cannot know
            self._wire.close()
        if self._wire.closed:
            raise ChannelClosedError("cut")
        self._out.put_nowait(message)
        if faults.twice and faults.chance.random() < faults.twice and not isinstance(message, Register):
            faults.doubled += 1
            self._out.put_nowait(message)

    async def receive(self) -> Any:
        message = await self._in.get()
        if message is _END:
            self._in.put_nowait(_END)
            raise ChannelClosedError("the other end is gone")
        return message

    async def close(self, reason: str = "") -> None:
        self._wire.close()


class _ServerEnd(_End):
    def __init__(self, site: str, *args: Any) -> None:
        super().__init__(*args)
        self.site = site


class Network:
    """Where servers listen and sites connect, in one event loop."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self._on_link: OnChannel | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._wires: list[_Wire] = []

    async def listen(self, on_link: OnChannel) -> "Network":
        self._on_link = on_link
        return self

    async def close(self) -> None:
        self._on_link = None
        self.cut()
        await asyncio.gather(*self._open, return_exceptions=True)

    def cut(self) -> None:
        """End every link there is."""
        for wire in self._wires:
            wire.close()
        self._wires.clear()

    def connect(self, site: str) -> Callable[[], Any]:
        async def connect() -> Any:
            if self._on_link is None:
                raise ChannelClosedError("nobody listens")
            wire = _Wire()
            self._wires.append(wire)
            server = _ServerEnd(site, wire, wire.down, wire.up, self.faults)
            task = asyncio.create_task(self._on_link(server))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            return _End(wire, wire.up, wire.down, self.faults)

        return connect


Said = FromServer | FromSite
