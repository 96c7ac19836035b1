"""How a site reaches its server: an address and the site's credentials, or a way of its own."""

from offbeat.core.errors import UsageError
from offbeat.net.auth.credentials import SiteCredentials
from offbeat.net.client.reconnecting import Connect
from offbeat.net.grpc.client import connect
from offbeat.net.transport import ClientChannel
from offbeat.net.wire.limits import Limits


def connector(
    server: str | Connect, name: str | None = None, credentials: SiteCredentials | None = None
) -> Connect:
    """What opens connections to a server.

    Args:
        server: "HOST:PORT", or a function that opens a connection, which is returned.
        name: The site's name, where no credential says it.
        credentials: The site's credentials, which then have its name. None means none but the name.

    Raises:
        UsageError: Name or credentials are given with a function, which has them itself, or both are given
            and name two sites.
    """
    if not isinstance(server, str):
        if name is not None or credentials is not None:
            raise UsageError(
                "name and credentials are for an address: leave them out with a function that connects"
            )
        return server
    shown = credentials or SiteCredentials(name)
    if name is not None and shown.name not in (None, name):
        raise UsageError(f"name = {name!r}, and the credentials are of {shown.name!r}: leave one of them out")

    async def open_connection() -> ClientChannel:
        return await connect(server, shown, Limits())

    return open_connection
