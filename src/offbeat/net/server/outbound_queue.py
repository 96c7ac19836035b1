"""One site's link at the server: what is to be sent waits in a bounded box, and is sent in order."""

import asyncio
from contextlib import suppress

from offbeat.net.messages import FromServer, Heartbeat
from offbeat.net.transport import ChannelClosedError, ServerChannel

MOST_WAITING = 32
"""Messages for a site that does not read; it is cut off then, and told again when it is back."""


class OutboundQueue:
    """Sends to one site without making anybody wait."""

    def __init__(self, link: ServerChannel) -> None:
        self.link = link
        self._box: asyncio.Queue[FromServer | None] = asyncio.Queue(MOST_WAITING + 2)
        self._beating = False
        self._reason = ""
        self._closing: asyncio.Task[None] | None = None
        self._sender = asyncio.create_task(self._send())

    def say(self, message: FromServer) -> None:
        """Send this after what waits already; a site that lets too much wait is cut off."""
        if isinstance(message, Heartbeat):
            if self._beating:
                return
            self._beating = True
        if self._box.qsize() >= MOST_WAITING:
            self.cut("the site reads too slowly")
        elif not self._sender.done():
            self._box.put_nowait(message)

    def finish(self, reason: str) -> None:
        """End the link once what waits is sent."""
        self._reason = reason
        with suppress(asyncio.QueueFull):
            self._box.put_nowait(None)

    def cut(self, reason: str) -> None:
        """End the link now."""
        if self._closing is None:
            self._sender.cancel()
            self._closing = asyncio.create_task(self.link.close(reason))

    async def close(self) -> None:
        """End the link and the sending."""
        self._sender.cancel()
        await asyncio.gather(self._sender, return_exceptions=True)
        if self._closing is not None:
            await asyncio.gather(self._closing, return_exceptions=True)
        else:
            await self.link.close(self._reason)

    async def _send(self) -> None:
        with suppress(ChannelClosedError):
            while (message := await self._box.get()) is not None:
                if isinstance(message, Heartbeat):
                    self._beating = False
                await self.link.send(message)
        await self.link.close(self._reason)
