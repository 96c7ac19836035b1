"""How a site reaches its server with a kit, which is read again for each connection: tokens are renewed."""

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from msgspec.structs import replace as replace_struct

from offbeat.documents import user_path
from offbeat.net.auth.credentials import SiteCredentials
from offbeat.net.client.connector import ServerConnector
from offbeat.net.client.site_key import site_key
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
        state: The directory of the site's state, which has its key. None means that the token is not renewed.

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
        state: Path | None = None,
    ) -> None:
        kit = file.read_valid(time.time())
        self.site: str | None = kit.name
        self._file, self._certificate, self._key, self._state = file, certificate, key, state
        self._shown = kit.credentials(certificate, key)
        place = address or kit.address
        self._connector = ServerConnector(place, self._shown, proxy_for(place, proxy), state)

    async def __call__(self) -> ClientChannel:
        """A connection. Raises as `ServerConnector` does."""
        kit = self._file.read()
        try:
            return await self._open(kit)
        except ChannelRefusedError as error:
            with suppress(ChannelRefusedError):
                if kit.previous:
                    return await self._open(replace_struct(kit, token=kit.previous))
            raise type(error)(f"{self._file.path}: {error}") from None

    async def _open(self, kit: Kit) -> ClientChannel:
        credentials = self._credentials(kit)
        channel = await self._connector.open(credentials)
        return RenewingClientChannel(channel, self._file.store) if credentials.renewal_key else channel

    def _credentials(self, kit: Kit) -> SiteCredentials:
        """The credentials of a kit, as this process shows them."""
        renews = self._state is not None and self._file.writable
        # The state is this process's alone once it connects.
        key = site_key(self._state) if renews and self._state is not None else ""
        shown = kit.credentials(self._certificate, self._key)
        return replace(shown, renewal_key=key, process=self._shown.process)


def kit_connector(
    kit: str | Path,
    address: str | None = None,
    proxy: str | None = None,
    *,
    state: str | Path | None = None,
) -> KitConnector:
    """What connects a site with its kit, for `join` and `offbeat.client`.

    Args:
        kit: The kit's file.
        address: "HOST:PORT" in place of the kit's. None means the kit's.
        proxy: URL of the HTTP proxy on the way, or "env". None means none.
        state: The directory of the site's state, the one of `join`. None means that the kit's token is not
            renewed: the key for which it is renewed is there.

    Raises:
        UsageError: The kit cannot be used, or the proxy.
    """
    kept = None if state is None else user_path(state)
    return KitConnector(KitFile(user_path(kit)), address, proxy=proxy, state=kept)
