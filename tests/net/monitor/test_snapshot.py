"""What a snapshot says of the sites that are not there."""

from dataclasses import replace

from offbeat.net.monitor.snapshot import HelpersView, SiteView, Snapshot, ended, with_enrolled

COUNTS = dict.fromkeys(
    ("now", "version", "running", "arrived", "aggregated", "dropped", "lost", "bytes_up", "bytes_down"), 0
)


def shown(*sites: SiteView, **more: object) -> Snapshot:
    return replace(Snapshot("run", "label", "fedavg", **COUNTS, rejected={}, sites=sites), **more)


def states(snapshot: Snapshot) -> dict[str, str]:
    return {site.name: site.state for site in snapshot.sites}


def test_enrolled_sites_are_expected_until_they_come_and_revoked_once_they_are_enrolled_no_more() -> None:
    sites = SiteView(0, "north", "training"), SiteView(1, "south", "away"), SiteView(2, "east", "idle")
    found = with_enrolled(shown(*sites), {"north", "west"})
    assert states(found) == {"north": "training", "south": "revoked", "east": "revoked", "west": "expected"}
    assert (found.there, found.sites[3].client, found.sites[3].last_seen) == (1, -1, None)


def test_after_the_end_no_site_has_a_task_and_nobody_waits_for_its_messages() -> None:
    site = SiteView(0, "north", "training", task=3, steps_done=2, steps=5, updates=1, last_seen=4.0)
    found = ended(site)
    assert (found.state, found.task, found.steps, found.last_seen) == ("idle", None, 0, None)
    assert (ended(replace(site, state="away")).state, found.updates) == ("away", 1)


def test_where_sites_need_no_token_only_those_that_came_are_known() -> None:
    snapshot = shown(SiteView(0, "north", "away"))
    assert with_enrolled(snapshot, None) is snapshot
    assert states(with_enrolled(snapshot, ())) == {"north": "revoked"}, "the last one that had a token"


def test_a_run_says_how_many_sites_it_waits_for_until_it_begins() -> None:
    waits = shown(SiteView(0, "north", "idle"), SiteView(1, "south", "away"), begins_with=3)
    assert waits.waits_for == "waiting for 3 sites, 1 there"
    assert replace(waits, begins_with=None).waits_for is None
    assert replace(waits, stopped="stopped").waits_for is None


def test_a_helper_is_no_site_that_is_expected() -> None:
    helpers = HelpersView("helpers: ha, hb", 2, names=("ha", "hb"))
    found = with_enrolled(shown(SiteView(0, "north", "idle"), helpers=helpers), {"north", "ha", "hb", "west"})
    assert states(found) == {"north": "idle", "west": "expected"}


def test_a_run_waits_for_its_helpers_too() -> None:
    waits = shown(SiteView(0, "north"), begins_with=1, helpers=HelpersView("helpers: ha", formed=False))
    assert waits.waits_for == "waiting for 1 sites, 0 there, and for all helpers"
    formed = replace(waits, helpers=HelpersView("helpers: ha"))
    assert formed.waits_for == "waiting for 1 sites, 0 there"
