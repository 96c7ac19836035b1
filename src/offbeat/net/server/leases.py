"""Leases of sites: how long a site may be silent before it is gone.

Every sign of life begins a site's lease anew, also while it has no connection. A lease that ends is an event
for the algorithm: the site has left. While the server itself was away, it could not hear its sites; so that
time is not held against them.
"""

from collections.abc import Iterable, Mapping

from offbeat.core.events import ClientId
from offbeat.net.server.lazy_heap import LazyHeap
from offbeat.net.server.site_registry import SiteRecord


class Leases:
    """The leases of the fleet. A sign of life costs nothing, and the first end O(log n).

    Args:
        sites: The sites by client. `last_seen` of a site that is present never decreases.
        lease: Seconds of silence after which a site is gone.
    """

    def __init__(self, sites: Mapping[ClientId, SiteRecord], lease: float) -> None:
        self._sites, self._lease = sites, lease
        self._ends = LazyHeap(self._end)

    def _end(self, client: ClientId) -> float | None:
        site = self._sites[client]
        return site.last_seen + self._lease if site.present else None

    def begin(self, client: ClientId) -> None:
        """Begin the lease of a site that has joined the fleet."""
        self._ends.add(client)

    def first_end(self) -> float:
        """When the first lease ends, in seconds of the run's clock; infinite without a site."""
        return self._ends.first()

    def silent_sites(self, now: float) -> list[SiteRecord]:
        """The sites of the fleet whose lease has ended, by client.

        Args:
            now: The time, in seconds of the run's clock.
        """
        return [self._sites[client] for client in sorted(self._ends.due(now))]


def extend_leases(sites: Iterable[SiteRecord], seconds: float, now: float) -> None:
    """Extend every lease of the fleet by the seconds in which the server was away."""
    for site in sites:
        if site.present:
            site.last_seen = min(now, site.last_seen + seconds)


def renew_leases(sites: Iterable[SiteRecord], now: float) -> None:
    """Begin every lease of the fleet anew, after a restart of the server."""
    for site in sites:
        if site.present:
            site.last_seen = now
