"""The live page of `offbeat serve`."""

from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from offbeat.net.grpc.server import GrpcListener
    from offbeat.net.monitor.http import MonitorAddress
    from offbeat.net.monitor.scrapes import Scrapes
    from offbeat.net.monitor.snapshot import Snapshot
    from offbeat.net.server.serve import RunServer


def dashboard_of(
    place: "MonitorAddress", state: Path, server: "RunServer", scrapes: "Scrapes | None" = None
) -> AbstractAsyncContextManager[str]:
    """The live page of a state directory; the context gives the page's address.

    Args:
        place: Where the page listens.
        state: The state directory.
        server: The run's server.
        scrapes: Notes the scrapes of the page's metrics. None means that nobody reads them.

    Raises:
        UsageError: The page cannot listen there.
    """
    from offbeat.net.auth.tokens import Tokens
    from offbeat.net.monitor.from_journal import snapshot_of
    from offbeat.net.monitor.http import Watched, dashboard
    from offbeat.net.monitor.scrapes import Scrapes
    from offbeat.net.monitor.snapshot import with_enrolled
    from offbeat.net.refusal_log import RefusalLog
    from offbeat.net.server.finished import FinishedService
    from offbeat.runs.record import read_run

    if place.token is not None:
        # The run's audit has who made the page's token.
        place = replace(place, token=Tokens(place.token.path, on_change=server.audit.tokens))
    refusals = RefusalLog("page ")

    service, listener = server.service, cast("GrpcListener", server.listener)

    def snapshot() -> "Snapshot":
        if service is None or isinstance(service, FinishedService):
            # The run is over: its directory is all there is.
            return with_enrolled(snapshot_of(read_run(state)), listener.enrolled())
        current = service.snapshot()
        counts = Counter(listener.rejected) + refusals.counts + Counter(current.rejected)
        current = with_enrolled(current, listener.enrolled())
        sites = tuple(replace(site, allowed=listener.samples(site.name)) for site in current.sites)
        return replace(current, rejected=dict(counts), sites=sites)

    def unready() -> str:
        if service is None or isinstance(service, FinishedService):
            return "ended"
        return service.unready

    def expires_in() -> Mapping[str, float]:
        return listener.expires_in()

    return dashboard(Watched(snapshot, state, unready, expires_in, scrapes or Scrapes()), place, refusals)
