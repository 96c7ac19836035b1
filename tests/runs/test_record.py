"""Which directories hold a run, and the clock by which their times count."""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import offbeat as ob
from offbeat.core.errors import DamageError
from offbeat.models import MLP
from offbeat.net.monitor.from_journal import snapshot_of
from offbeat.report import make_curves, make_table, make_timeline
from offbeat.report.curves import in_shown_units
from offbeat.runs.extension import reached
from offbeat.runs.record import RunRecord, read_run
from tests.runs.served_runs import served_like


def test_a_run_that_died_before_its_first_checkpoint_is_missed_if_its_database_is_gone(
    tmp_path: Path,
) -> None:
    (tmp_path / "run.db-wal").write_bytes(b"")
    with pytest.raises(DamageError, match=r"run\.db is missing"):
        read_run(tmp_path)


@pytest.fixture
def simulated(tmp_path: Path) -> RunRecord:
    """A simulation of three clients in which versions are evaluated."""
    source = ob.load("digits", samples=120, test_samples=40)
    data = ob.federate(source, None, np.array_split(np.arange(120), 3))
    learner = ob.TorchLearner(lambda: MLP(64, 10), data, ob.Training(lr=0.5))
    until, world = ob.Until(tasks=24), ob.World([1.0, 1.5, 2.0])
    ob.simulate(ob.fedbuff(size=2, steps=10), world, learner, until=until, out=tmp_path / "simulated")
    return read_run(tmp_path / "simulated")


def test_times_count_from_the_moment_that_a_server_had_its_sites(
    simulated: RunRecord, tmp_path: Path
) -> None:
    served = served_like(simulated, tmp_path / "served", 13.0)
    counted = served.from_begin()
    assert served.begun == 13.0
    assert served.duration == simulated.duration + 13.0, "what is recorded stays"
    assert counted.duration == pytest.approx(simulated.duration)
    assert [m["t"] for m in counted.metrics] == pytest.approx([m["t"] for m in simulated.metrics])
    assert [row.t for row in counted.rows()] == pytest.approx([row.t for row in simulated.rows()])
    assert counted.from_begin() == counted


def test_a_simulation_begins_with_its_clock(simulated: RunRecord) -> None:
    assert simulated.from_begin() is simulated
    assert simulated.begun == 0


def test_a_server_that_waits_for_its_sites_has_no_time_yet(simulated: RunRecord, tmp_path: Path) -> None:
    waiting = served_like(simulated, tmp_path / "served", 30.0, begun=False)
    assert waiting.begun is None
    assert waiting.from_begin().duration == 0
    assert {row.t for row in waiting.from_begin().rows()} == {0}
    assert waiting.from_begin().status == "running"


def test_a_journal_without_the_event_counts_from_its_first_task(simulated: RunRecord, tmp_path: Path) -> None:
    served = served_like(simulated, tmp_path / "served", 13.0)
    with closing(sqlite3.connect(tmp_path / "served/run.db")) as database, database:
        database.execute("DELETE FROM journal WHERE name = 'begin'")
        database.execute("DELETE FROM checksums")  # which would tell
    assert served.from_begin().duration == pytest.approx(simulated.duration)


def test_a_server_counts_as_a_simulation_does_in_reports(simulated: RunRecord, tmp_path: Path) -> None:
    pair = [simulated, served_like(simulated, tmp_path / "served", 13.0)]
    table = make_table(pair, target=0.2)
    mine, theirs = table.rows
    assert mine.time is not None
    assert theirs.time is not None
    assert theirs.time.mean == pytest.approx(mine.time.mean)
    assert mine.idle is not None
    assert theirs.idle is not None
    assert theirs.idle.mean == pytest.approx(mine.idle.mean)
    assert table.notes[0].startswith("Time: time of the first evaluation at 20 % accuracy")
    title, _, curves = in_shown_units(make_curves(pair, "time", "accuracy"))
    assert title == "time (s)"
    assert curves[1].x == pytest.approx(curves[0].x)


def test_its_timeline_has_no_time_before_it_began(simulated: RunRecord, tmp_path: Path) -> None:
    served = make_timeline(served_like(simulated, tmp_path / "served", 13.0))
    alone = make_timeline(simulated)
    assert served.until == pytest.approx(alone.until)
    assert served.training[0].start == alone.training[0].start == 0
    assert (served.clock, alone.clock) == ("time", "virtual time")
    assert (len(served.waiting), len(served.training)) == (len(alone.waiting), len(alone.training))


def test_its_status_and_its_limits_count_from_there_too(simulated: RunRecord, tmp_path: Path) -> None:
    served = served_like(simulated, tmp_path / "served", 13.0)
    snapshot = snapshot_of(served)
    assert snapshot.now == served.duration, "the server's own clock"
    assert snapshot.seconds == pytest.approx(simulated.duration)
    assert reached(served, ob.Until(seconds=simulated.duration + 1)) is None
    assert reached(served, ob.Until(seconds=simulated.duration - 1)) is not None
