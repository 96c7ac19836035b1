"""When a silent site is gone, by hand."""

from math import inf

from offbeat.net.server.leases import Leases, extend_leases, renew_leases
from offbeat.net.server.site_registry import SiteRecord


def sites() -> list[SiteRecord]:
    heard = {"north": 0.0, "south": 20.0}
    present = [SiteRecord(name, n, present=True, last_seen=t) for n, (name, t) in enumerate(heard.items())]
    return [*present, SiteRecord("gone", 2, last_seen=-1.0)]


def leases(fleet: list[SiteRecord]) -> Leases:
    made = Leases({site.client: site for site in fleet}, 30.0)
    for site in fleet:
        made.begin(site.client)
    return made


def names(found: list[SiteRecord]) -> list[str]:
    return [site.name for site in found]


def test_a_site_is_gone_once_it_is_silent_for_a_lease() -> None:
    fleet = leases(sites())
    assert fleet.first_end() == 30.0
    assert names(fleet.silent_sites(29.9)) == []
    assert names(fleet.silent_sites(30.0)) == ["north"]
    assert names(fleet.silent_sites(50.0)) == ["north", "south"]
    assert names(fleet.silent_sites(50.0)) == ["north", "south"]  # until they have left


def test_a_site_that_has_left_has_no_lease() -> None:
    assert leases(sites()[2:]).first_end() == inf
    assert leases(sites()[2:]).silent_sites(1e9) == []


def test_a_site_that_comes_back_has_one_lease() -> None:
    fleet = sites()
    made = leases(fleet)
    fleet[0].present = False
    assert made.first_end() == 50.0
    fleet[0].present, fleet[0].last_seen = True, 25.0
    made.begin(0)
    made.begin(0)
    assert made.first_end() == 50.0
    assert names(made.silent_sites(60.0)) == ["north", "south"]


def test_time_in_which_the_server_was_away_is_not_held_against_sites() -> None:
    fleet = sites()
    extend_leases(fleet, 25.0, 40.0)
    assert [site.last_seen for site in fleet[:2]] == [25.0, 40.0]  # not later than now
    renew_leases(fleet, 60.0)
    assert leases(fleet).first_end() == 90.0
    assert fleet[2].last_seen == -1.0  # who had left was not heard because of that
