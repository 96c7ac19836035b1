"""Renewal of a site's token over the connection that is open: the server's end and the site's.

The server makes another token when two thirds of its life are over, and sends it when it is durable. The site
stores it before it answers. Who dies in between can log in with the token before, which ends when the new one
is used to log in, or at its own expiry.
"""

import asyncio
import logging
from collections.abc import Callable
from copy import copy
from functools import partial

from offbeat.core.errors import OffbeatError, reason_of
from offbeat.net.auth.site_token import SiteToken
from offbeat.net.clock import Clock
from offbeat.net.messages import FromServer, FromSite, Rejected, Renewal, Renewed
from offbeat.net.transport import (
    ChannelClosedError,
    ChannelRefusedError,
    ClientChannel,
    Put,
    ServerChannel,
    Transfer,
)

log = logging.getLogger(__name__)
LONGEST_SLEEP = 60.0
"""Seconds after which a server looks at the clock again: it may have been set."""


class RenewingServerChannel:
    """The server's end of a connection whose site stores renewed tokens.

    Args:
        channel: The connection.
        token: The token that it counts on.
        clock: Source of time.
    """

    def __init__(self, channel: ServerChannel, token: SiteToken, clock: Clock) -> None:
        self._channel, self._token, self._clock = channel, token, clock
        self._answered = asyncio.Event()
        self.send, self.end, self.close = channel.send, channel.end, channel.close

    @property
    def site(self) -> str:
        """The name that the site's credential proves."""
        return self._channel.site

    @property
    def sending(self) -> bool:
        """Whether a queued message has not been sent whole."""
        return self._channel.sending

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """The messages with tensors that are on their way, to the site and from it."""
        return self._channel.transfers

    @property
    def took(self) -> float:
        """Seconds in which the tensors of the last message came, over however many connections."""
        return self._channel.took

    async def renew(self) -> None:
        """Renew the token whenever it is due, until the connection ends: then the caller cancels this."""
        while True:
            while (left := self._token.due_in) > 0:
                await self._clock.sleep(min(left, LONGEST_SLEEP))
            renewal = await asyncio.to_thread(self._token.renew)
            if renewal is None:
                await self._clock.sleep(LONGEST_SLEEP)
                continue
            self._answered.clear()
            self._channel.send(Renewal(*renewal))
            await self._answered.wait()
            log.info("the token is renewed", extra={"site": self.site})

    async def receive(self) -> FromSite:
        """The next message but `Renewed`. Raises `ChannelClosedError`."""
        while isinstance(message := await self._channel.receive(), Renewed):
            self._stored()
        return message

    async def forward(self, put: Put) -> None:
        """Pass every message but `Renewed` to `put`. Raises `ChannelClosedError`."""
        await self._channel.forward(partial(self._put, put))

    def _put(self, put: Put, message: FromSite, release: Callable[[], None]) -> None:
        if isinstance(message, Renewed):
            self._stored()
            release()
        else:
            put(message, release)

    def _stored(self) -> None:
        self._token.stored()
        self._answered.set()


class RenewingClientChannel:
    """The site's end: it stores a renewed token, then says so.

    Args:
        channel: The connection.
        store: Stores a token, and when it expires, durably. It raises `OSError` or `OffbeatError` where it
            cannot: then the server is not answered, and the token before stays in use.
    """

    def __init__(self, channel: ClientChannel, store: Callable[[str, int], None]) -> None:
        self._channel, self._store, self._has_another = channel, store, False
        self.send, self.close = channel.send, channel.close

    def over(self, watch: Callable[[ClientChannel], ClientChannel]) -> "RenewingClientChannel":
        """The same over a watched connection, which then sees the answers of this end too."""
        watched = copy(self)
        watched._channel = channel = watch(self._channel)
        watched.send, watched.close = channel.send, channel.close
        return watched

    @property
    def took(self) -> float:
        """Seconds in which the tensors of the last message came, over however many connections."""
        return self._channel.took

    async def receive(self) -> FromServer:
        """The next message but `Renewal`.

        Raises:
            ChannelClosedError: The connection has ended. It is no refusal where another token is stored, with
                which the next connection begins: this one may have slept until its own had expired.
        """
        try:
            while isinstance(message := await self._channel.receive(), Renewal):
                await self._renewed(message)
        except ChannelRefusedError as error:
            raise (ChannelClosedError(str(error)) if self._has_another else error) from None
        if self._has_another and isinstance(message, Rejected) and message.final:
            raise ChannelClosedError(message.reason)
        return message

    async def _renewed(self, renewal: Renewal) -> None:
        try:
            await asyncio.to_thread(self._store, renewal.token, renewal.expires)
        except (OffbeatError, OSError) as error:
            log.warning("the server has renewed the token, and it cannot be stored: %s", reason_of(error))
            return
        self._has_another = True
        self._channel.send(Renewed())
        log.info("the token is renewed")
