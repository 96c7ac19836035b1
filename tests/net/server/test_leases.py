"""When a silent site is gone, by hand."""

from math import inf

from offbeat.net.server.leases import extend_leases, next_lease_end, renew_leases, silent_sites
from offbeat.net.server.site_registry import SiteRecord


def sites() -> list[SiteRecord]:
    heard = {"north": 0.0, "south": 20.0}
    present = [SiteRecord(name, n, present=True, last_seen=t) for n, (name, t) in enumerate(heard.items())]
    return [*present, SiteRecord("gone", 2, last_seen=-1.0)]


def names(found: list[SiteRecord]) -> list[str]:
    return [site.name for site in found]


def test_a_site_is_gone_once_it_is_silent_for_a_lease() -> None:
    fleet = sites()
    assert next_lease_end(fleet, 30.0) == 30.0
    assert names(silent_sites(fleet, 30.0, 29.9)) == []
    assert names(silent_sites(fleet, 30.0, 30.0)) == ["north"]
    assert names(silent_sites(fleet, 30.0, 50.0)) == ["north", "south"]


def test_a_site_that_has_left_has_no_lease() -> None:
    assert next_lease_end(sites()[2:], 30.0) == inf
    assert silent_sites(sites()[2:], 30.0, 1e9) == []


def test_time_in_which_the_server_was_away_is_not_held_against_sites() -> None:
    fleet = sites()
    extend_leases(fleet, 25.0, 40.0)
    assert [site.last_seen for site in fleet[:2]] == [25.0, 40.0]  # not later than now
    renew_leases(fleet, 60.0)
    assert next_lease_end(fleet, 30.0) == 90.0
    assert fleet[2].last_seen == -1.0  # who had left was not heard because of that
