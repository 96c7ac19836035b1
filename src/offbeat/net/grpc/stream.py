"""The frames of a gRPC call: the same at both ends."""

import asyncio
from collections.abc import Awaitable, Callable

from grpc import aio

from offbeat.net.transport import ChannelClosedError

Call = aio.StreamStreamCall[bytes, bytes]
Context = aio.ServicerContext[bytes, bytes]
BROKEN = (aio.AioRpcError, aio.BaseError, aio.InternalError, aio.UsageError, asyncio.InvalidStateError)
"""Errors that gRPC raises for a call that is over."""


class GrpcStream:
    """A `FrameStream` on a call; `end` makes an error from gRPC's, or from None at the call's end."""

    def __init__(
        self, call: Call | Context, end: Callable[[Exception | None], Awaitable[ChannelClosedError]]
    ) -> None:
        self._call, self._end = call, end

    async def read(self) -> bytes:
        """The next frame. Raises `ChannelClosedError`."""
        try:
            frame = await self._call.read()
        except BROKEN as error:
            raise await self._end(error) from None
        if isinstance(frame, bytes):
            return frame
        raise await self._end(None)

    async def write(self, frame: bytes) -> None:
        """Send a frame. Raises `ChannelClosedError`."""
        try:
            await self._call.write(frame)
        except BROKEN as error:
            raise await self._end(error) from None
