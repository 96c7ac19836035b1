"""Leases of sites: how long a site may be silent before it is gone.

Every sign of life begins a site's lease anew, also while it has no connection. A lease that ends is an event
for the algorithm: the site has left. While the server itself was away, it could not hear its sites; so that
time is not held against them.
"""

from collections.abc import Iterable
from math import inf

from offbeat.net.server.site_registry import SiteRecord


def silent_sites(sites: Iterable[SiteRecord], lease: float, now: float) -> list[SiteRecord]:
    """The sites of the fleet whose lease has ended.

    Args:
        sites: The sites.
        lease: Seconds of silence after which a site is gone.
        now: The time, in seconds of the run's clock.
    """
    return [site for site in sites if site.present and now - site.last_seen >= lease]


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


def next_lease_end(sites: Iterable[SiteRecord], lease: float) -> float:
    """When the first lease of the fleet ends, in seconds of the run's clock; infinite without a site."""
    return min((site.last_seen + lease for site in sites if site.present), default=inf)
