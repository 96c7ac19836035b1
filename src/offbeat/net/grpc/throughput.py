"""How fast bytes go to a server and back: a method beside the run's, for `offbeat check`.

A site with a credential sends some megabytes, hears that they have come, and gets as many. The server takes
one such call at a time, and few of a site in an hour, so a run goes on beside it.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from time import monotonic

from offbeat.net.auth.credentials import SiteCredentials
from offbeat.net.grpc.call import broken, open_channel
from offbeat.net.grpc.protocol import ADMITTED, STATUS, VERSION
from offbeat.net.grpc.stream import BROKEN, Call, Context
from offbeat.net.proxy import Proxy
from offbeat.net.transport import ChannelClosedError, CloseReason
from offbeat.net.versions import METADATA
from offbeat.net.wire.limits import Limits

THROUGHPUT = f"/offbeat.v{VERSION}.Throughput/Measure"
MOST_BYTES = 4 * 2**20
"""Bytes in one direction, at most."""
MOST_SECONDS = 3.0
"""Seconds in which bytes are sent in one direction, at most."""
_CHUNK = 2**16
_PAUSE = 10.0
"""Seconds between the end of a site's measurement and its next one."""
_AN_HOUR = 12
"""Measurements of one site in an hour, at most: they keep others from theirs for 4 minutes of it."""
_MOST_SITES = 10_000
"""Sites whose measurements are remembered. A server that asks for no proof meets any number of names."""
_DEADLINE = 20.0
_BUSY = "the server measures the throughput of a site at this moment, or has just done so: try again in 10 s"
_OFTEN = "the server has measured the throughput of {} {} times in an hour, the most: try again in {} min"


class BusyError(ChannelClosedError):
    """The server does not measure now; the text says when it may again."""


class ThroughputService:
    """Serves measurements, one at a time."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock, self._busy = clock, False
        self._ended: dict[str, deque[float]] = {}

    async def serve(self, context: Context, site: str) -> CloseReason:
        """Serve a call of a site that has shown its credential; returns how it has ended."""
        if (refusal := self._refusal(site)) is not None:
            return CloseReason(refusal, "busy")
        self._busy = True
        try:
            async with asyncio.timeout(_DEADLINE):
                return await self._exchange(context)
        except TimeoutError:
            return CloseReason(f"the measurement has taken longer than {_DEADLINE:g} s", "slow")
        finally:
            self._busy = False
            # The site that was measured last is remembered longest.
            self._ended[site] = ended = self._ended.pop(site, deque(maxlen=_AN_HOUR))
            ended.append(self._clock())
            if len(self._ended) > _MOST_SITES:
                del self._ended[next(iter(self._ended))]

    def _refusal(self, site: str) -> str | None:
        """Why a site is not measured now; None means that it is."""
        ended = self._ended.get(site, deque())
        now = self._clock()
        if self._busy or (ended and now - ended[-1] < _PAUSE):
            return _BUSY
        if len(ended) == _AN_HOUR and (left := 3600 - (now - ended[0])) > 0:
            return _OFTEN.format(site, _AN_HOUR, ceil(left / 60))
        return None

    async def _exchange(self, context: Context) -> CloseReason:
        await context.send_initial_metadata((*ADMITTED, *METADATA))
        received = 0
        try:
            while isinstance(chunk := await context.read(), bytes):
                received += len(chunk)
                if received > MOST_BYTES:
                    return CloseReason(f"a measurement has more than {MOST_BYTES} bytes", "size")
            await context.write(b"\0")
            await _send(context)
        except BROKEN:
            return CloseReason("the connection is lost")
        return CloseReason("")


@dataclass(frozen=True, slots=True)
class Throughput:
    """Bytes per second to the server, and from it."""

    up: float
    down: float


async def measure(
    address: str, credentials: SiteCredentials, limits: Limits, proxy: Proxy | None = None
) -> Throughput:
    """Measure the throughput to a server and back.

    Raises:
        BusyError: The server measures another site, or has measured this one a moment ago or too often.
        ChannelClosedError: The server refuses it, or the connection breaks.
        UsageError: The address or a file of the credentials cannot be used.
    """
    channel = open_channel(address, credentials, limits, proxy)
    call: Call = channel.stream_stream(THROUGHPUT)(metadata=(*credentials.metadata(), *METADATA))
    try:
        async with asyncio.timeout(_DEADLINE + limits.handshake):
            if not set(ADMITTED) <= set(await call.initial_metadata()):
                raise await _refusal(call)
            return await _timed(call)
    except TimeoutError:
        raise ChannelClosedError(f"{address} has not answered within {_DEADLINE:g} s") from None
    except BROKEN:
        raise await _refusal(call) from None
    finally:
        call.cancel()
        await channel.close()


async def _timed(call: Call) -> Throughput:
    begun = monotonic()
    sent = await _send(call)
    await call.done_writing()
    if not isinstance(await call.read(), bytes):
        raise await broken(call)
    came, received = monotonic(), 0
    while isinstance(chunk := await call.read(), bytes):
        received += len(chunk)
    return Throughput(sent / (came - begun), received / max(monotonic() - came, 1e-6))


async def _refusal(call: Call) -> ChannelClosedError:
    """The error of a call that is over."""
    with suppress(TimeoutError, *BROKEN):
        async with asyncio.timeout(1.0):
            if await call.code() is STATUS["busy"]:
                return BusyError(await call.details())
    return await broken(call)


async def _send(call: Call | Context) -> int:
    """Send bytes for a while; returns how many."""
    chunk, sent, end = os.urandom(_CHUNK), 0, monotonic() + MOST_SECONDS
    while sent < MOST_BYTES and monotonic() < end:
        await call.write(chunk)
        sent += _CHUNK
    return sent
