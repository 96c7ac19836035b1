"""When a model is measured: the moments, counted by hand."""

import pytest

from offbeat.core.errors import UsageError
from offbeat.core.limits import Every
from offbeat.sim.evaluation_times import TimedEvaluations


def test_by_the_clock_each_moment_comes_once_and_not_at_the_limit():
    made = TimedEvaluations(Every(seconds=2.0))
    assert not made.first
    assert list(made.due(0.0, 4.0)) == [0.0, 2.0]
    assert list(made.due(4.0, 4.0)) == []
    assert list(made.due(4.0, 4.5)) == [4.0]
    assert not made.every.after(2)


def test_by_versions_the_initial_one_is_measured_and_the_last_not_twice():
    made = TimedEvaluations(Every(versions=3))
    assert made.first
    assert list(made.due(0.0, 100.0)) == []
    assert [made.every.after(version) for version in (1, 2, 3)] == [False, False, True]
    row = made.add(1.5, 3, 7, 80, 90, {"loss": 0.5, "accuracy": 0.25, "norm": 2.0})
    assert tuple(row) == (0, 1.5, 3, 7, 80, 90, 0.5, 0.25, {"norm": 2.0})
    assert not made.last(1.5, 3)
    assert made.last(1.5, 4)


def test_never_is_never():
    made = TimedEvaluations(Every())
    assert not made.first
    assert not made.last(1.0, 1)


def test_evaluations_without_end_are_refused():
    with pytest.raises(UsageError, match=r"evaluate.seconds = 1 would measure .* from 5 to 1e\+30 seconds"):
        list(TimedEvaluations(Every(seconds=1.0)).due(5.0, 1e30))
