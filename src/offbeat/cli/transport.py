"""The two ends of the network and the live page, which need the extra `offbeat[net]`."""

from collections import Counter
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offbeat.cli.state_dir import PAGE_TOKEN
from offbeat.core.errors import UsageError
from offbeat.net.auth.credentials import ServerCredentials, SiteCredentials
from offbeat.net.server.service import Service
from offbeat.net.transport import OnChannel
from offbeat.net.wire.limits import Limits

if TYPE_CHECKING:
    from offbeat.net.grpc.server import GrpcListener


def check_free(option: str, address: str) -> None:
    """Whether one could listen there now: asked before anything is made. Raises `UsageError`."""
    try:
        from offbeat.net.grpc import server
    except ImportError as error:
        raise _no_extra(error) from None
    try:
        server.check_free(address)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None


def listen_at(
    address: str, credentials: ServerCredentials, limits: Limits, on_link: OnChannel
) -> Awaitable["GrpcListener"]:
    """A server's door, open."""
    try:
        from offbeat.net.grpc.server import listen
    except ImportError as error:
        raise _no_extra(error) from None
    return listen(address, credentials, limits, on_link)


def connect_to(address: str, credentials: SiteCredentials, limits: Limits) -> Awaitable[Any]:
    """A site's link to the server."""
    try:
        from offbeat.net.grpc.client import connect
    except ImportError as error:
        raise _no_extra(error) from None
    return connect(address, credentials, limits)


def dashboard_of(
    address: str, state: Path, service: Service | None, door: Any,
    cert: Path | None, key: Path | None, unencrypted: bool,
) -> Any:  # fmt: skip
    """The live page of what is served from a state directory, as a context. Raises `UsageError`."""
    try:
        from offbeat.net.auth.access import PageToken
        from offbeat.net.auth.tls import page_tls
        from offbeat.net.monitor.http import MonitorAddress, Watched, dashboard
    except ImportError as error:
        raise _no_extra(error) from None
    from offbeat.net.address import split
    from offbeat.net.monitor.from_journal import snapshot_of
    from offbeat.runs.record import read_run

    host, port = split(address)
    tls = page_tls(cert, key) if cert is not None and key is not None else None
    token = PageToken(state / PAGE_TOKEN)

    def snapshot() -> Any:
        if service is None:  # the run is over: its directory is all there is
            return snapshot_of(read_run(state))
        shown = service.snapshot()
        return replace(shown, rejected=dict(Counter(door.rejected) + Counter(shown.rejected)))

    return dashboard(Watched(snapshot, state), MonitorAddress(host, port, token, tls, unencrypted))


def _no_extra(error: ImportError) -> UsageError:
    return UsageError(f"{error.name} is not installed: pip install 'offbeat[net]'")
