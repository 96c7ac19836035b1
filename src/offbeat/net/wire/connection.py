"""A connection over a pair of frame streams: the same at both ends, whatever carries the frames.

One task writes, one reads. Both queues are bounded: a peer that reads too slowly is disconnected, and while
too many of its messages are unprocessed, no more is read. The first failure is the reason of the end, which
every later call reports.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, Protocol, TypeVar

from offbeat.net.messages import FromServer, FromSite
from offbeat.net.transport import (
    ChannelClosedError,
    CloseReason,
    ProtocolError,
    Transfer,
)
from offbeat.net.wire.deadline import Deadline
from offbeat.net.wire.limits import LEAST_CHUNK, Limits
from offbeat.net.wire.rate_limit import MemoryBudget, TokenBucket
from offbeat.net.wire.reader import MessageReader
from offbeat.net.wire.unfinished import SAVE_EVERY, IncomingBody, UnfinishedBodies
from offbeat.net.wire.writer import MOST_WINDOW, MessageWriter

Out = TypeVar("Out", FromSite, FromServer)
In = TypeVar("In", FromSite, FromServer)
ACKNOWLEDGED_SHARE, ACKNOWLEDGE_EVERY = 32, 5.0
"""The part of what was acknowledged, half of a window, and the seconds, after which more is: on a slow
line a window takes longer than a peer waits."""
MOST_BODIES = 2
"""Unprocessed messages with a body, at most."""
_LOST = ("", "slow", "deadline", "replaced", "credential", "revoked", "ours")
"""Kinds of ends that say nothing against what had come before."""


class FrameStream(Protocol):
    """Carries frames whole and in order."""

    async def read(self) -> bytes:
        """The next frame. Raises `ChannelClosedError` at the end of the stream, or where it broke."""

    async def write(self, frame: bytes) -> None:
        """Send a frame; waits while the peer reads too slowly. Raises `ChannelClosedError`."""


class Connection(Generic[Out, In]):
    """A connection with the site named `site`; `still_valid` checks its credential before each message.

    It reads and writes from the start, so it is made where an event loop runs. `unfinished` keeps a body
    whose connection ends before it has come whole.
    """

    def __init__(
        self,
        site: str,
        stream: FrameStream,
        reader: MessageReader[In],
        limits: Limits,
        budget: MemoryBudget,
        unfinished: UnfinishedBodies,
        still_valid: Callable[[], bool] = lambda: True,
    ) -> None:
        self.site = site
        self._unfinished, self._saved = unfinished, 0.0
        self._keeping: asyncio.Task[None] | None = None
        self._stream, self._limits, self._budget = stream, limits, budget
        self._reader: MessageReader[In] = reader
        self._still_valid = still_valid
        self._writer = MessageWriter()
        # Messages wait here until `forward` is called.
        self._inbox: deque[tuple[In, Callable[[], None], float]] = deque()
        self._put: Callable[[In, Callable[[], None]], None] | None = None
        self._took = 0.0
        self._unprocessed = self._bodies = 0
        self._reserved, self._without_chunk = 0, 0.0
        # Bytes of bodies that have come.
        self._received = 0
        self._acknowledged_at = 0.0
        # An event is set when something has changed in its direction.
        self._in, self._out = asyncio.Event(), asyncio.Event()
        # It is set once the connection is being closed. Who waits for that is not woken by every message.
        self._ends = asyncio.Event()
        # Why the connection is being closed. Empty means that it is open.
        self._closing = ""
        self._ending: CloseReason | None = None
        self._messages = TokenBucket(limits.messages_per_second)
        self._bytes = TokenBucket(limits.bytes_per_second) if limits.bytes_per_second else None
        self._drain: asyncio.TimerHandle | None = None
        self._reading, self._writing = Deadline(self._nothing_comes), Deadline(self._nothing_goes)
        # A peer that takes small messages and acknowledges no chunk is ended, too.
        self._arriving, self._awaited = Deadline(self._nothing_arrives), False
        # What was under way at the end.
        self._transfers: tuple[Transfer, ...] = ()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]

    @property
    def ending(self) -> CloseReason | None:
        """The reason of the end, if the connection has ended."""
        return self._ending

    @property
    def sending(self) -> bool:
        """Whether a queued message has not been sent whole."""
        return not self._writer.empty

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """The messages with tensors that are on their way, to the peer and from it."""
        return tuple(each for each in self._under_way() if each.done < each.size)

    @property
    def took(self) -> float:
        """Seconds in which the tensors of the last message came, over however many connections."""
        return self._took

    async def tell_unfinished(self) -> None:
        """Tell the peer, with the next message, what is here of bodies that it has not sent whole."""
        if self._unfinished.has(self.site):
            self._writer.tell(await asyncio.to_thread(self._unfinished.told, self.site))

    def send(self, message: Out) -> None:
        """Queue a message. A peer that lets the queue grow full is disconnected.

        Does nothing on a closed connection: `receive` and `forward` report the end.
        """
        if self._over:
            return
        if len(self._writer) >= self._limits.queue:
            self.abort(CloseReason("the peer reads too slowly", "slow"))
            return
        self._writer.put(message)
        self._out.set()

    async def receive(self) -> In:
        """The next message. Raises `ChannelClosedError`, after the messages that came before the end."""
        await _until(self._in, lambda: bool(self._inbox) or self._over)
        if not self._inbox:
            raise self._closed()
        message, release, self._took = self._inbox.popleft()
        release()
        return message

    async def forward(self, put: Callable[[In, Callable[[], None]], None]) -> None:
        """Pass every message to `put` as it comes, with a function to call once it has been processed.

        Raises `ChannelClosedError` at the end of the connection.
        """
        while self._inbox:
            message, release, self._took = self._inbox.popleft()
            put(message, release)
        self._put = put
        await self._ends.wait()
        raise self._closed()

    async def registered(self) -> In | None:
        """Wait for the first message, as long as the limits allow; None where the connection has ended."""
        try:
            async with asyncio.timeout(self._limits.handshake):
                await _until(self._in, lambda: bool(self._inbox) or self._over)
        except TimeoutError:
            self.abort(CloseReason(f"no register within {self._limits.handshake:g} s", "deadline"))
        return self._inbox[0][0] if self._inbox and self._ending is None else None

    def end(self, reason: str = "") -> None:
        """Close the connection once the queue is sent, or has not been for too long; does not wait."""
        if not self._over:
            self._closing = reason or "it was closed here"
            late = CloseReason(reason or "it was closed here before all was sent")
            self._drain = asyncio.get_running_loop().call_later(self._limits.drain, self.abort, late)
            self._changed()

    async def close(self, reason: str = "") -> None:
        """Close the connection once the queue is sent, and wait for the end."""
        self.end(reason)
        await self.ended()

    def abort(self, ending: CloseReason) -> None:
        """End the connection now, if it has not ended."""
        if self._ending is None:
            self._ending = ending
            self._changed()

    async def ended(self) -> CloseReason:
        """Wait for the end; then nothing is read or written, and messages not received are dropped."""
        await _until(self._in, lambda: self._ending is not None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._drain is not None:
            self._drain.cancel()
        self._reading.close()
        self._writing.close()
        self._arriving.close()
        # A closed connection keeps no tensors.
        self._transfers = self._under_way()
        self._tasks, self._writer = [], MessageWriter()
        if (body := self._reader.drop()) is not None:
            end = self._unfinished.keep if self._is_of_use(body) else self._unfinished.forget
            self._keeping = asyncio.create_task(_after(self._keeping, partial(end, self.site, body)))
        if self._keeping is not None:
            # The next connection is told what was kept here, so the end waits for it.
            await asyncio.shield(self._keeping)
        self._budget.give(self._reserved)
        self._reserved = 0
        while self._inbox:
            self._inbox.popleft()[1]()
        assert self._ending is not None
        return self._ending

    @property
    def _over(self) -> bool:
        return self._ending is not None or bool(self._closing)

    def _closed(self) -> ChannelClosedError:
        error = ChannelClosedError(self._closing) if self._ending is None else self._ending.error
        error.transfers = self._transfers or self._under_way()
        return error

    def _under_way(self) -> tuple[Transfer, ...]:
        """The last message with a body that was sent, and the one that is being received."""
        return tuple(filter(None, (self._writer.transfer, self._reader.transfer)))

    def _is_of_use(self, body: IncomingBody) -> bool:
        """Whether a peer could go on with a body: one that has broken the protocol begins anew."""
        broken = self._ending is not None and self._ending.kind not in _LOST
        return body.received >= LEAST_CHUNK and not broken

    def _changed(self) -> None:
        self._ends.set()
        self._in.set()
        self._out.set()

    async def _write(self) -> None:
        try:
            while True:
                await _until(self._out, lambda: bool(self._closing) or not self._writer.empty)
                if self._writer.empty:
                    self.abort(CloseReason(self._closing))
                    return
                self._writing.begin(self._limits.stall)
                await _until(self._out, lambda: self._writer.ready)
                await self._stream.write(self._writer.frame())
                self._writing.end()
                self._writer.written()
                self._await_acknowledgement()
        except ChannelClosedError as error:
            self.abort(CloseReason.of(error))
        except (ValueError, TypeError) as error:
            self.abort(CloseReason(f"a message cannot be sent: {error}", "ours"))

    async def _read(self) -> None:
        try:
            while True:
                await self._take(await self._next_frame())
        except ChannelClosedError as error:
            self.abort(CloseReason.of(error))
        except ProtocolError as error:
            self.abort(CloseReason(str(error), error.kind))

    async def _next_frame(self) -> bytes:
        """The next frame; the peer has `stall` seconds for each chunk, whatever it sends between two."""
        if not self._reader.under_way:
            self._reading.begin(self._limits.silence)
            frame = await self._stream.read()
        else:
            before = asyncio.get_running_loop().time()
            self._reading.begin(self._limits.stall - self._without_chunk)
            frame = await self._stream.read()
            self._without_chunk += asyncio.get_running_loop().time() - before
        self._reading.end()
        return frame

    def _nothing_comes(self) -> None:
        """End the connection of a peer that has sent nothing for too long."""
        if self._reader.under_way:
            reason = f"the peer has sent nothing of an announced body for {self._limits.stall:g} s"
            self.abort(CloseReason(reason, "slow"))
        else:
            reason = f"the peer has sent no message for {self._limits.silence:g} s"
            self.abort(CloseReason(reason, "deadline"))

    def _nothing_goes(self) -> None:
        """End the connection of a peer that has read nothing for too long."""
        self.abort(CloseReason(f"the peer has read nothing for {self._limits.stall:g} s", "slow"))

    def _nothing_arrives(self) -> None:
        """End the connection of a peer that has acknowledged nothing for too long."""
        reason = f"the peer has acknowledged nothing of a body for {2 * self._limits.stall:g} s"
        self.abort(CloseReason(reason, "slow"))

    def _await_acknowledgement(self) -> None:
        """Give the peer its time from the moment at which a chunk has to wait.

        It is longer than that of one that reads nothing, which is ended for this reason.
        """
        if self._writer.waits and not self._awaited:
            self._awaited = True
            self._arriving.begin(2 * self._limits.stall)

    async def _take(self, frame: bytes) -> None:
        read = self._reader.feed(frame)
        if read.chunk or read.announced is not None:
            self._without_chunk = 0.0
        await self._throttle(len(frame), len(read.messages))
        if read.unfinished:
            self._writer.peer_has(read.unfinished)
        if read.acknowledged is not None and self._writer.acknowledged(read.acknowledged):
            self._awaited = False
            self._arriving.end()
            self._await_acknowledgement()
            self._out.set()
        if read.announced is not None:
            await self._budget.take(read.announced.size)
            self._reserved = read.announced.size
            await self._begin(read.announced)
        if read.chunk:
            self._received += read.chunk
            self._acknowledge()
        if self._reader.body is not None:
            await self._save(self._reader.body)
        if read.whole is not None and (read.whole.file is not None or self._unfinished.has(self.site)):
            await asyncio.to_thread(self._unfinished.forget, self.site, read.whole)
        if not read.messages:
            return
        if not self._still_valid():
            raise ProtocolError(f"the credential of {self.site} is no longer valid", "credential")
        for message, size in read.messages:
            if size:
                self._reserved = 0
            self._unprocessed += 1
            self._bodies += size > 0
            if self._over:
                self._release(size)
                continue
            release, took = partial(self._release, size), 0.0
            if size and read.whole is not None:
                took = max(0.0, time.time() - read.whole.began)
            if self._put is None:
                self._inbox.append((message, release, took))
            else:
                self._took = took
                self._put(message, release)
        self._in.set()
        await _until(self._in, lambda: self._ending is not None or self._has_room())

    def _acknowledge(self) -> None:
        """Tell the peer how much of its bodies has come, when that is due: it sends only so much without."""
        answered = self._writer.answered
        now, new = asyncio.get_running_loop().time(), self._received - answered
        share = min(max(LEAST_CHUNK, answered // ACKNOWLEDGED_SHARE), MOST_WINDOW // 2)
        late = self._reader.under_way and now - self._acknowledged_at >= ACKNOWLEDGE_EVERY
        due = new >= share or late
        self._writer.acknowledge(self._received, due=due)
        if due:
            self._acknowledged_at = now
            self._out.set()

    async def _begin(self, body: IncomingBody) -> None:
        """Fill in what is here of a body that was announced, or forget what it takes the place of."""
        self._saved = self._acknowledged_at = asyncio.get_running_loop().time()
        if self._reader.resumes:
            fill = partial(self._unfinished.resume, self.site)
            await asyncio.to_thread(self._reader.resume, fill)
            return
        if self._unfinished.has(self.site):
            await asyncio.to_thread(self._unfinished.supersede, self.site, body.kind)

    async def _save(self, body: IncomingBody) -> None:
        """Write what has come of a body that takes long, so that it outlives this process."""
        now = asyncio.get_running_loop().time()
        if now - self._saved >= SAVE_EVERY:
            self._saved = now
            save = partial(self._unfinished.save, self.site, body)
            # The thread goes on where the connection ends meanwhile; what the end does comes after it.
            self._keeping = asyncio.create_task(_after(self._keeping, save))
            await asyncio.shield(self._keeping)

    def _release(self, size: int) -> None:
        """A message of `size` bytes has been processed."""
        self._unprocessed -= 1
        self._bodies -= size > 0
        self._budget.give(size)
        self._in.set()

    def _has_room(self) -> bool:
        return self._unprocessed < self._limits.queue and self._bodies < MOST_BODIES

    async def _throttle(self, size: int, whole: int) -> None:
        """Wait if the peer is too fast; messages count when they are whole."""
        wait = self._messages.take(float(whole)) if whole else 0.0
        if self._bytes is not None:
            wait = max(wait, self._bytes.take(float(size)))
        if wait:
            await asyncio.sleep(wait)


async def _after(before: asyncio.Task[None] | None, act: Callable[[], None]) -> None:
    """Do something in a thread, after what another task does."""
    if before is not None:
        await before
    await asyncio.to_thread(act)


async def _until(change: asyncio.Event, ready: Callable[[], bool]) -> None:
    """Wait until `ready`, which is asked again after each change."""
    while not ready():
        change.clear()
        await change.wait()
