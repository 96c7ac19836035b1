"""The two ends of the network and the live page, which need the extra `offbeat[net]`."""

from collections import Counter
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offbeat.cli.place import PAGE_TOKEN
from offbeat.core.errors import UsageError
from offbeat.net.credentials import ServerCredentials, SiteCredentials
from offbeat.net.limits import Limits
from offbeat.net.link import OnLink
from offbeat.net.service import Service

if TYPE_CHECKING:
    from offbeat.net.grpc_server import Listener


def check_free(option: str, address: str) -> None:
    """Whether one could listen there now: asked before anything is made. Raises `UsageError`."""
    try:
        from offbeat.net import grpc_server
    except ImportError as error:
        raise _no_extra(error) from None
    try:
        grpc_server.check_free(address)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None


def listen_at(
    address: str, credentials: ServerCredentials, limits: Limits, on_link: OnLink
) -> Awaitable["Listener"]:
    """A server's door, open."""
    try:
        from offbeat.net.grpc_server import listen
    except ImportError as error:
        raise _no_extra(error) from None
    return listen(address, credentials, limits, on_link)


def connect_to(address: str, credentials: SiteCredentials, limits: Limits) -> Awaitable[Any]:
    """A site's link to the server."""
    try:
        from offbeat.net.grpc_site import connect
    except ImportError as error:
        raise _no_extra(error) from None
    return connect(address, credentials, limits)


def dashboard_of(
    address: str, state: Path, service: Service | None, door: Any,
    cert: Path | None, key: Path | None, unencrypted: bool,
) -> Any:  # fmt: skip
    """The live page of what is served from a state directory, as a context. Raises `UsageError`."""
    try:
        from offbeat.net.access import PageToken
        from offbeat.net.certificates import page_tls
        from offbeat.net.dashboard import Listen, Watched, dashboard
    except ImportError as error:
        raise _no_extra(error) from None
    from offbeat.net.address import split
    from offbeat.net.recorded import snapshot_of
    from offbeat.runs.record import read_run

    host, port = split(address)
    tls = page_tls(cert, key) if cert is not None and key is not None else None
    token = PageToken(state / PAGE_TOKEN)

    def snapshot() -> Any:
        if service is None:  # the run is over: its directory is all there is
            return snapshot_of(read_run(state))
        shown = service.snapshot()
        return replace(shown, rejected=dict(Counter(door.rejected) + Counter(shown.rejected)))

    return dashboard(Watched(snapshot, state), Listen(host, port, token, tls, unencrypted))


def _no_extra(error: ImportError) -> UsageError:
    return UsageError(f"{error.name} is not installed: pip install 'offbeat[net]'")
