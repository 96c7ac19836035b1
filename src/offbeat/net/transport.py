"""A conversation between the server and one site: what a transport must offer.

A transport carries messages whole and in order, or ends the link. It authenticates the site before the
server hears of it, and it refuses what is too large before it takes memory for it.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from offbeat.net.messages import FromServer, FromSite


class ChannelClosedError(ConnectionError):
    """The conversation has ended; its text says how."""


class ChannelRefusedError(ChannelClosedError):
    """The peer does not take what was shown or said, and trying again as it is will not help."""


class ServerChannel(Protocol):
    """The server's end."""

    @property
    def site(self) -> str:
        """The name that the site's credential proves."""

    async def send(self, message: FromServer) -> None:
        """Hand a message over; waits while the site reads too slowly. Raises `ChannelClosedError`."""

    async def receive(self) -> FromSite:
        """The next message. Raises `ChannelClosedError`."""

    async def close(self, reason: str = "") -> None:
        """End the conversation."""


class ClientChannel(Protocol):
    """The site's end."""

    async def send(self, message: FromSite) -> None:
        """Hand a message over; waits while the server reads too slowly. Raises `ChannelClosedError`."""

    async def receive(self) -> FromServer:
        """The next message. Raises `ChannelClosedError`."""

    async def close(self, reason: str = "") -> None:
        """End the conversation."""


OnChannel = Callable[[ServerChannel], Awaitable[None]]
"""What a server does with a link that a transport has opened; the link ends when it returns."""
