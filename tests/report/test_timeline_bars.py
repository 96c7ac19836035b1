"""What clients were doing when, and the totals taken from it."""

import pytest

from offbeat.report import read_activity
from offbeat.report.timeline_bars import Tracker, TrainingSpan, WaitingSpan
from tests.report.report_fakes import FakeRun, command, event, figure_1


def by_hand() -> FakeRun:
    """Two clients over 100 s.

    Client 0 joins at 0: waits 0-10, trains 10-40 (arrives), waits 40-50, trains 50-100 (unfinished).
    Client 1 joins at 20: trains 20-50 (lost), waits 50-60, trains 60-70 and leaves.
    """
    rows = [
        event(0.0, "joined", client=0),
        command(10.0, "train", client=0, task=1, base=0, steps=5),
        event(20.0, "joined", client=1),
        command(20.0, "train", client=1, task=2, base=0, steps=5),
        event(40.0, "arrived", client=0, task=1, base=0, version=3, staleness=3, steps=5),
        event(50.0, "lost", client=1, task=2, reason="link"),
        command(50.0, "train", client=0, task=3, base=3, steps=5),
        command(60.0, "train", client=1, task=4, base=3, steps=5),
        event(70.0, "left", client=1, task=4),
    ]
    return FakeRun(written=rows, duration=100.0)


def test_idle_share_counts_presence_from_joining_to_leaving() -> None:
    activity = read_activity(by_hand())
    assert activity.busy == 30 + 50 + 30 + 10
    assert activity.present == 100 + 50
    assert activity.idle_share == pytest.approx(1 - 120 / 150)


def test_tasks_and_staleness_count_arrivals_only() -> None:
    activity = read_activity(by_hand())
    assert activity.tasks == {0: 1}
    assert activity.staleness == {3: 1}
    assert activity.mean_staleness == 3.0


def test_an_empty_journal_has_no_means() -> None:
    activity = read_activity(FakeRun())
    assert (activity.arrived, activity.versions) == (0, 0)
    assert activity.idle_share is None
    assert activity.mean_staleness is None


def test_figure_1_totals() -> None:
    activity = read_activity(figure_1())
    assert activity.tasks == {1: 3, 2: 3, 3: 3, 4: 2, 5: 2}
    assert activity.versions == 7
    assert activity.staleness == {0: 4, 1: 2, 2: 3, 3: 2, 4: 2}
    assert activity.mean_staleness == pytest.approx(22 / 13)
    assert activity.idle_share == 0.0
    assert activity.busy == 5 * 28 * 60.0


def test_a_task_trained_over_an_open_one_replaces_it() -> None:
    tracker = Tracker()
    tracker.feed(command(0.0, "train", client=0, task=1))
    first = tracker.feed(command(5.0, "train", client=0, task=2))
    late = tracker.feed(event(6.0, "arrived", client=0, task=1))
    assert isinstance(first, TrainingSpan)
    assert (first.task, first.end, first.outcome) == (1, 5.0, "replaced")
    assert late is None
    (running,) = tracker.finish(9.0)
    assert isinstance(running, TrainingSpan)
    assert (running.task, running.start, running.end, running.outcome) == (2, 5.0, 9.0, "running")


def test_rows_without_a_client_and_waits_of_no_length_give_no_span() -> None:
    tracker = Tracker()
    assert tracker.feed(event(0.0, "begin")) is None
    tracker.feed(event(0.0, "joined", client=0))
    assert tracker.feed(command(0.0, "train", client=0, task=1)) is None
    tracker.feed(event(3.0, "arrived", client=0, task=1))
    assert tracker.feed(command(4.0, "train", client=0, task=2)) == WaitingSpan(0, 3.0, 4.0)
