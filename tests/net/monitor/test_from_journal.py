"""A run's directory tells what its server would have shown."""

from pathlib import Path

import pytest
from msgspec.structs import replace

import offbeat as ob
from offbeat.algorithms.privacy.private import complete_privacy
from offbeat.core.journal import Row
from offbeat.core.privacy.ledger import ReleasePlan
from offbeat.net.monitor.from_journal import JournalView, metrics_since, snapshot_of, timeline_since
from offbeat.runs.record import RunRecord, read_run
from offbeat.runs.store import RunStore
from tests.net.replayed_run import NAMES, Played, recorded


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return recorded(tmp_path_factory.mktemp("recorded") / "run")


def test_totals_are_those_of_the_summary(source: RunRecord) -> None:
    snapshot, summary = snapshot_of(source), source.meta["summary"]
    assert snapshot.version == summary["versions"]
    assert snapshot.arrived == summary["tasks"] == sum(site.updates for site in snapshot.sites)
    for name in ("aggregated", "dropped", "lost", "bytes_up", "bytes_down"):
        assert getattr(snapshot, name) == summary[name], name
    assert snapshot.stopped == source.stop_reason
    assert snapshot.now == source.duration
    assert [site.name for site in snapshot.sites] == [f"client {c}" for c in range(4)]
    assert summary["running"] > snapshot.running == 0  # it has ended
    assert {(site.state, site.task) for site in snapshot.sites} == {("idle", None)}


def test_sites_at_every_moment(source: RunRecord, tmp_path: Path) -> None:
    played = Played(source, tmp_path / "state")
    for t in range(0, 300, 7):
        played.until(float(t))
        there = {c: (t < 60 or t >= 90) if c == 2 else True for c in range(4)}
        snapshot = played.snapshot()
        for site in snapshot.sites:
            assert (site.state != "away") == there[site.client]
            assert (site.task is not None) == (site.state == "training")
            assert 0 <= site.last_seen <= t
        from_disk = snapshot_of(read_run(played.directory))
        assert {s.name for s in from_disk.sites} == set(NAMES.values())
        assert [s.state for s in from_disk.sites] == [s.state for s in snapshot.sites]
        assert (from_disk.arrived, from_disk.lost) == (snapshot.arrived, snapshot.lost)


def books(*rows: Row) -> JournalView:
    made = JournalView("run", "label", "name", {0: "north"})
    for row in rows:
        made.feed(row)
    return made


META = {"label": "x", "algorithm": {"name": "fedbuff"}, "seed": 0, "clients": 3}
JOINED = Row(0, 0.0, "event", "joined", 0, data={"samples": 5, "steps_per_epoch": 1})
TRAIN = Row(1, 0.0, "command", "train", 0, 4, 0, 0, None, 10)


def test_a_held_update_waits_until_it_is_sent_or_not_wanted():
    ready = Row(2, 5.0, "event", "ready", 0, 4, 0, 0, None, 10, {"seconds": 5.0})
    assert books(JOINED, TRAIN, ready).snapshot().sites[0].state == "waiting"
    gone = Row(3, 6.0, "command", "discard", 0, 4, data={"reason": "no"})
    assert books(JOINED, TRAIN, ready, gone).snapshot().sites[0].state == "idle"


def test_the_speed_and_the_staleness_of_the_last_update():
    arrived = Row(2, 5.0, "event", "arrived", 0, 4, 0, 3, 3, 10, {"seconds": 5.0})
    site = books(JOINED, TRAIN, arrived).snapshot().sites[0]
    assert (site.speed, site.staleness, site.updates, site.last_seen) == (2.0, 3, 1, 5.0)
    assert (site.name, site.samples, site.state, site.task) == ("north", 5, "idle", None)


def test_an_update_of_another_task_does_not_end_the_one_in_hand():
    newer = replace(TRAIN, seq=2, t=5.0, task=5)
    late = Row(3, 6.0, "event", "arrived", 0, 4, 0, 0, 0, 10, {"seconds": 6.0})
    site = books(JOINED, TRAIN, newer, late).snapshot().sites[0]
    assert (site.state, site.task, site.updates) == ("training", 5, 1)


def test_updates_that_were_refused_are_counted_by_reason():
    lost = Row(2, 5.0, "event", "lost", 0, 4, data={"reason": "rejected: NaN in delta"})
    snapshot = books(JOINED, TRAIN, lost).snapshot()
    assert snapshot.rejected == {"NaN in delta": 1}
    assert (snapshot.lost, snapshot.sites[0].state) == (1, "idle")


def test_who_comes_back_with_its_task_is_at_work():
    left = Row(2, 5.0, "event", "left", 0, 4, data={"reason": "lease"})
    back = replace(JOINED, seq=3, t=9.0, task=4)
    assert books(JOINED, TRAIN, left).snapshot().sites[0].state == "away"
    site = books(JOINED, TRAIN, left, back).snapshot().sites[0]
    assert (site.state, site.task) == ("training", 4)


def test_pages_of_a_journal_leave_nothing_out(source: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = timeline_since(source, -1)["rows"]
    monkeypatch.setattr("offbeat.net.monitor.from_journal.TIMELINE_ROWS", 7)
    since, paged = -1, []
    while (page := timeline_since(source, since))["next"] != since:
        since = page["next"]
        paged += page["rows"]
    assert paged == whole
    monkeypatch.setattr("offbeat.net.monitor.from_journal.EVALUATIONS", 3)
    assert [row["seq"] for row in metrics_since(source, 4)["rows"]] == [5, 6, 7]


def test_an_empty_run_is_shown_too(tmp_path: Path) -> None:
    ob.simulate(ob.fedasync(steps=1), ob.World(1.0, 1), until=ob.Until(tasks=1), out=tmp_path / "run")
    played = Played(read_run(tmp_path / "run"), tmp_path / "state")
    record = read_run(played.directory)
    assert timeline_since(record) == {"next": -1, "rows": []}
    assert metrics_since(record) == {"next": -1, "rows": [], "metrics": {}}
    assert snapshot_of(record).sites == ()
    assert record.last_evaluation() is None


def test_alarms_follow_from_the_journal() -> None:
    view = JournalView("r", "l", "a", {})
    view.feed(Row(0, 1.0, "event", "lost", 0, 4, data={"reason": "rejected: the norm of its buffers is …"}))
    view.feed(Row(1, 2.0, "event", "skipped", version=3, data={"reason": "its values are not finite"}))
    view.feed(Row(2, 3.0, "event", "rolled_back", version=7, data={"to": 2, "reason": "collapsed"}))
    found = view.snapshot()
    assert (found.version, found.guarded, found.skipped, found.rollbacks) == (7, 1, 1, 1)
    assert found.alarms == [
        "updates refused by the guard: 1",
        "versions skipped: 1",
        "returns to an earlier version: 1",
    ]


def test_the_helpers_of_a_directory_are_known_before_and_after_their_committee(tmp_path: Path) -> None:
    """A run has recorded its plan; the journal has its committees."""
    privacy = ob.Privacy(clip=1.0, least=3, secure=ob.Secure(helpers=("ha", "hb")))
    plan = ReleasePlan(complete_privacy(privacy, ob.fedbuff(size=3, steps=1), 3), 10, 3)
    RunStore.create(tmp_path / "run", {**META, "privacy": plan.recorded}, ()).close()
    helpers = snapshot_of(read_run(tmp_path / "run")).helpers
    assert helpers is not None
    assert (helpers.names, helpers.formed) == (("ha", "hb"), False)
    assert helpers.text == "helpers: ha, hb; the committee is formed when all are there"


def test_a_committee_that_others_replace_and_a_release_that_the_run_s_end_cuts_off() -> None:
    view = JournalView("run", "label", "name", {0: "north"}, helpers=("ha", "hb"), helped_by={"ha", "hb"})
    view.feed(Row(0, 0.0, "event", "committee", data={"helpers": [["ha", "00"], ["hc", "11"]]}))
    view.feed(Row(1, 1.0, "event", "skipped", version=1, data={"reason": "its step is absurd"}))
    view.feed(Row(2, 2.0, "event", "skipped", version=2, data={"reason": "the run has ended: stopped"}))
    found = view.snapshot()
    assert found.helpers is not None
    assert (found.helpers.text, found.helpers.formed) == ("helpers: ha, hc", True)
    assert found.helpers.names == ("ha", "hb", "hc")
    assert found.skipped == 1
