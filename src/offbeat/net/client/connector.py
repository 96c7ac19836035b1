"""How a site reaches its server: an address and the site's credentials, or a way of its own."""

import asyncio
from pathlib import Path

from offbeat.core.errors import UsageError
from offbeat.net.auth.credentials import SiteCredentials
from offbeat.net.client.reconnecting import Connect
from offbeat.net.grpc.client import connect
from offbeat.net.probe import UnreachableError, probe
from offbeat.net.proxy import Proxy, proxy_for
from offbeat.net.transport import ChannelClosedError, ChannelRefusedError, ClientChannel
from offbeat.net.wire.limits import Limits
from offbeat.net.wire.unfinished import DIRECTORY, UnfinishedBodies

_MOST_PROBES = 8
"""Different failures that are probed between two connections."""


def connector(
    server: str | Connect,
    name: str | None = None,
    credentials: SiteCredentials | None = None,
    proxy: str | None = None,
    state: Path | None = None,
) -> Connect:
    """A function that opens connections to a server.

    Args:
        server: "HOST:PORT" or "unix:PATH", or a function that opens a connection, which is returned.
        name: The site's name, where no credential says it.
        credentials: The site's credentials, which then have its name. None means none but the name.
        proxy: URL of the HTTP proxy on the way, "http://USER:PASSWORD@HOST:PORT", or "env" for that of the
            environment. None means none.
        state: The directory of the site's state, which keeps what came of a model until the rest comes. None
            means that it is kept in memory.

    Raises:
        UsageError: Name, credentials or proxy are given with a function, which has them itself, or name and
            credentials are given and name two sites, or the proxy is none.
    """
    if not isinstance(server, str):
        if name is not None or credentials is not None or proxy is not None:
            raise UsageError(
                "name and credentials are for an address, as is a proxy: leave them out with a function that "
                "connects"
            )
        return server
    shown = credentials or SiteCredentials(name)
    if name is not None and shown.name not in (None, name):
        raise UsageError(f"name = {name!r}, and the credentials are of {shown.name!r}: leave one of them out")
    return ServerConnector(server, shown, proxy_for(server, proxy), state)


class ServerConnector:
    """Opens connections to an address, and explains the first failure of each kind.

    Args:
        address: "HOST:PORT" or "unix:PATH".
        credentials: The site's credentials.
        proxy: The proxy on the way. None means none.
        state: The directory of the site's state. None means none.

    Attributes:
        site: The site's name. None means that nothing here has it.

    Raises:
        UsageError: The site's certificate cannot be read.
    """

    def __init__(
        self,
        address: str,
        credentials: SiteCredentials,
        proxy: Proxy | None = None,
        state: Path | None = None,
    ) -> None:
        self.site = credentials.site
        self._unfinished = UnfinishedBodies(None if state is None else state / DIRECTORY)
        self._address, self._credentials, self._proxy = address, credentials, proxy
        # The probe's reason for each failure, by the failure in gRPC's words.
        self._reasons: dict[str, str] = {}

    async def __call__(self) -> ClientChannel:
        """A connection. Raises as `open` does."""
        return await self.open(self._credentials)

    async def open(self, credentials: SiteCredentials) -> ClientChannel:
        """A connection with other credentials of the site.

        Raises:
            ChannelClosedError: The server cannot be reached now.
            ChannelRefusedError: It refuses the site.
            UsageError: The site's options cannot work.
            RunError: The server, or the proxy, is set up so that no attempt can work.
        """
        try:
            channel = await connect(self._address, credentials, Limits(), self._proxy, self._unfinished)
        except ChannelRefusedError:
            raise
        except ChannelClosedError as error:
            raise ChannelClosedError(await self._explained(str(error), credentials)) from None
        self._reasons.clear()
        return channel

    async def _explained(self, failure: str, credentials: SiteCredentials) -> str:
        """A failure in the probe's words; a failure that was probed before is not probed again."""
        if failure not in self._reasons and len(self._reasons) < _MOST_PROBES:
            self._reasons[failure] = failure
            try:
                await asyncio.to_thread(probe, self._address, credentials, self._proxy)
            except UnreachableError as error:
                if (final := error.final) is not None:
                    raise final from None
                self._reasons[failure] = error.reason
        return self._reasons.get(failure, failure)
