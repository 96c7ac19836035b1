"""How a site reaches its server with a kit, which is read again for each connection: tokens are renewed."""

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from msgspec.structs import replace as replace_struct

from offbeat.core.errors import UsageError
from offbeat.documents import user_path
from offbeat.net.auth.credentials import SiteCredentials
from offbeat.net.client.connector import ServerConnector
from offbeat.net.kit import Kit, KitFile
from offbeat.net.proxy import proxy_for
from offbeat.net.token_renewal import RenewingClientChannel
from offbeat.net.transport import ChannelRefusedError, ClientChannel


class KitConnector:
    """Opens connections with a kit.

    A server that was restored from a copy knows the token before the last renewal only, so that one is tried
    where the server refuses the last.

    Args:
        file: The kit's file.
        address: "HOST:PORT" in place of the kit's. None means the kit's.
        certificate: The site's certificate, beside its token. None means none.
        key: The certificate's key.
        proxy: URL of the HTTP proxy on the way, or "env". None means none.

    Attributes:
        site: The site's name.

    Raises:
        UsageError: The kit cannot be used, or the proxy.
    """

    def __init__(
        self,
        file: KitFile,
        address: str | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        proxy: str | None = None,
    ) -> None:
        kit = file.read_valid(time.time())
        self.site: str | None = kit.name
        self._file, self._certificate, self._key = file, certificate, key
        place = address or kit.address
        self._connector = ServerConnector(place, self._credentials(kit), proxy_for(place, proxy))
        self._was_connected = False

    async def __call__(self) -> ClientChannel:
        """A connection. Raises as `ServerConnector` does, and `UsageError` for a kit that is refused."""
        kit = self._file.read()
        try:
            return await self._open(kit)
        except ChannelRefusedError as error:
            with suppress(ChannelRefusedError):
                if kit.previous:
                    return await self._open(replace_struct(kit, token=kit.previous))
            if self._was_connected:
                raise
            raise UsageError(f"{self._file.path}: {error}") from None

    async def _open(self, kit: Kit) -> ClientChannel:
        credentials = self._credentials(kit)
        channel = await self._connector.open(credentials)
        self._was_connected = True
        return RenewingClientChannel(channel, self._file.store) if credentials.renews else channel

    def _credentials(self, kit: Kit) -> SiteCredentials:
        return replace(kit.credentials(self._certificate, self._key), renews=self._file.writable)


def kit_connector(kit: str | Path, address: str | None = None, proxy: str | None = None) -> KitConnector:
    """What connects a site with its kit, for `join` and `offbeat.client`.

    Args:
        kit: The kit's file.
        address: "HOST:PORT" in place of the kit's. None means the kit's.
        proxy: URL of the HTTP proxy on the way, or "env". None means none.

    Raises:
        UsageError: The kit cannot be used, or the proxy.
    """
    return KitConnector(KitFile(user_path(kit)), address, proxy=proxy)
