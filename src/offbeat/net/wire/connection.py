"""One conversation over a pair of streams of frames: the same at both ends, whatever carries the frames.

A task writes, a task reads. `send` waits while the outbox is full, which is while the peer reads too
slowly; the reader waits while nobody takes the messages that came, which makes the peer wait. The first
thing that goes wrong is how the conversation ended: every later call says so.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from offbeat.net.messages import FromServer, FromSite
from offbeat.net.transport import ChannelClosedError
from offbeat.net.wire.fields import ProtocolError
from offbeat.net.wire.limits import Limits
from offbeat.net.wire.rate_limit import MemoryBudget, TokenBucket
from offbeat.net.wire.reader import MessageReader
from offbeat.net.wire.writer import MessageWriter

Out = TypeVar("Out", FromSite, FromServer)
In = TypeVar("In", FromSite, FromServer)


class FrameStream(Protocol):
    """What carries frames, whole and in order."""

    async def read(self) -> bytes | None:
        """The next frame; none: the peer has ended the stream. Raises `ChannelClosedError` if it broke."""

    async def write(self, frame: bytes) -> None:
        """Hand a frame over; waits while the peer reads too slowly. Raises `ChannelClosedError`."""


@dataclass(frozen=True, slots=True)
class CloseReason:
    """How a conversation ended: `kind` is a word to count by, "" if nothing is wrong."""

    reason: str
    kind: str = ""


class Connection(Generic[Out, In]):
    """A link. `site` is the name of the site; `still_valid` is asked before each message is passed on."""

    def __init__(
        self,
        site: str,
        pipe: FrameStream,
        receiver: MessageReader[In],
        limits: Limits,
        pool: MemoryBudget,
        still_valid: Callable[[], bool] = lambda: True,
    ) -> None:
        self._site, self._pipe, self._limits = site, pipe, limits
        self._receiver: MessageReader[In] = receiver
        self._pool, self._still_valid = pool, still_valid
        self._outbox = MessageWriter()
        self._inbox: deque[tuple[In, int]] = deque()
        self._reserved, self._without_chunk = 0, 0.0
        self._in, self._out = asyncio.Event(), asyncio.Event()  # something has changed on this way, or all
        self._closing: str | None = None
        self._ending: CloseReason | None = None
        self._messages = TokenBucket(limits.messages_per_second)
        self._bytes = TokenBucket(limits.bytes_per_second) if limits.bytes_per_second else None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def site(self) -> str:
        """The site's name."""
        return self._site

    @property
    def ending(self) -> CloseReason | None:
        """How it ended, if it has."""
        return self._ending

    def start(self) -> None:
        """Begin to read and to write."""
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]

    async def send(self, message: Out) -> None:
        """Hand a message over; waits while the peer reads too slowly. Raises `ChannelClosedError`."""
        await _until(self._out, lambda: self._over or len(self._outbox) < self._limits.queue)
        self._refuse_if_over()
        self._outbox.put(message)
        self._out.set()

    async def receive(self) -> In:
        """The next message. Raises `ChannelClosedError`, after the messages that came before the end."""
        await _until(self._in, lambda: bool(self._inbox) or self._over)
        if not self._inbox:
            self._refuse_if_over()
        message, size = self._inbox.popleft()
        self._in.set()
        await self._pool.give(size)
        return message

    async def greeted(self) -> None:
        """Wait until a first message is there, or the end."""
        await _until(self._in, lambda: bool(self._inbox) or self._over)

    async def close(self, reason: str = "") -> None:
        """End the conversation when what was handed over is sent, or has not been for too long."""
        if self._closing is None:
            self._closing = reason
            self._changed()
            try:
                async with asyncio.timeout(self._limits.drain):
                    await _until(self._in, lambda: self._ending is not None)
            except TimeoutError:
                self.end(CloseReason(reason or "it was closed here before all was sent"))
        await self.ended()

    def end(self, ending: CloseReason) -> None:
        """End the conversation now, if it has not ended."""
        if self._ending is None:
            self._ending = ending
            self._changed()

    async def ended(self) -> CloseReason:
        """Wait for the end; then nothing is read or written any more."""
        await _until(self._in, lambda: self._ending is not None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks, self._outbox = [], MessageWriter()  # who keeps a dead link keeps no tensors
        self._receiver.drop()
        reserved, self._reserved = self._reserved, 0
        await self._pool.give(reserved)
        assert self._ending is not None
        return self._ending

    async def release(self) -> None:
        """Forget the messages that nobody has taken."""
        sizes = sum(size for _, size in self._inbox)
        self._inbox.clear()
        await self._pool.give(sizes)

    @property
    def _over(self) -> bool:
        return self._ending is not None or self._closing is not None

    def _refuse_if_over(self) -> None:
        if self._ending is not None:
            raise ChannelClosedError(self._ending.reason)
        if self._closing is not None:
            raise ChannelClosedError(self._closing or "it was closed here")

    def _changed(self) -> None:
        self._in.set()
        self._out.set()

    async def _write(self) -> None:
        try:
            while True:
                await _until(self._out, lambda: not self._outbox.empty or self._closing is not None)
                if self._outbox.empty:
                    self.end(CloseReason(self._closing or "it was closed here"))
                    return
                frame = self._outbox.frame()
                self._out.set()
                async with asyncio.timeout(self._limits.stall):
                    await self._pipe.write(frame)
        except TimeoutError:
            self.end(CloseReason(f"the peer has read nothing for {self._limits.stall:g} s", "slow"))
        except ChannelClosedError as error:
            self.end(CloseReason(str(error)))
        except (ValueError, TypeError) as error:
            self.end(CloseReason(f"a message cannot be sent: {error}", "ours"))

    async def _read(self) -> None:
        try:
            while True:
                frame = await self._next_frame()
                if frame is None:
                    self.end(CloseReason("the peer has ended the conversation"))
                    return
                await self._take(frame)
        except TimeoutError:
            said = f"the peer has sent nothing of an announced body for {self._limits.stall:g} s"
            self.end(CloseReason(said, "slow"))
        except ChannelClosedError as error:
            self.end(CloseReason(str(error)))
        except ProtocolError as violation:
            self.end(CloseReason(str(violation), violation.kind))

    async def _next_frame(self) -> bytes | None:
        """The next frame; the peer has `stall` seconds for each chunk, whatever it says between two."""
        if not self._receiver.under_way:
            return await self._pipe.read()
        before = asyncio.get_running_loop().time()
        async with asyncio.timeout(self._limits.stall - self._without_chunk):
            frame = await self._pipe.read()
        self._without_chunk += asyncio.get_running_loop().time() - before
        return frame

    async def _take(self, frame: bytes) -> None:
        read = self._receiver.feed(frame)
        if read.has_chunk or read.announced:
            self._without_chunk = 0.0
        await self._throttle(len(frame), len(read.messages))
        if read.announced:
            await self._pool.take(read.announced)
            self._reserved = read.announced
        if not read.messages:
            return
        if not self._still_valid():
            raise ProtocolError(f"the credential of {self._site} is no longer valid", "credential")
        for message, size in read.messages:
            if size:
                self._reserved = 0
            self._inbox.append((message, size))
        self._in.set()
        await _until(self._in, lambda: self._ending is not None or self._has_room())

    def _has_room(self) -> bool:
        bodies = sum(size > 0 for _, size in self._inbox)
        return len(self._inbox) < self._limits.queue and bodies < 2

    async def _throttle(self, size: int, whole: int) -> None:
        """Wait if the peer is too fast; messages count when they are whole."""
        wait = self._messages.take(float(whole)) if whole else 0.0
        if self._bytes is not None:
            wait = max(wait, self._bytes.take(float(size)))
        if wait:
            await asyncio.sleep(wait)


async def _until(change: asyncio.Event, ready: Callable[[], bool]) -> None:
    """Wait until something is so, which is asked anew after each change."""
    while not ready():
        change.clear()
        await change.wait()
