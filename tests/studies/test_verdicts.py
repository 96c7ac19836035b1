"""Verdicts, intervals and ratios: values by hand, and what must hold of all of them."""

from itertools import permutations
from math import log, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.studies.average import Sides
from offbeat.studies.rows import Cost
from offbeat.studies.verdicts import (
    Interval,
    Verdict,
    answer_verdict,
    experiment_verdict,
    interval,
    log_ratio,
)

HELD, NOT, SAME, OPEN, NONE = (
    Verdict.HELD, Verdict.NOT_HELD, Verdict.NO_DIFFERENCE, Verdict.UNDECIDED, Verdict.NOT_RUN,
)  # fmt: skip
VALUES = st.lists(st.floats(-10, 10), min_size=3, max_size=9)


def test_the_interval_is_student_s() -> None:
    half = 4.302653 / sqrt(3)  # 2 degrees of freedom, a deviation of 1
    assert interval([3.0, 1.0, 2.0]) == Interval(2.0, pytest.approx(2 - half), pytest.approx(2 + half), 3)
    assert interval([-1.0]) == Interval(-1.0, -1.0, -1.0, 1)
    assert interval([]) is None


@pytest.mark.parametrize(
    ("better", "other", "advantage"),
    [
        (Cost(50, True), Cost(100, True), log(2)),
        (Cost(100, True), Cost(50, True), -log(2)),
        (Cost(50, True), Cost(100, False), log(2)),  # at least twice as long
        (Cost(120, True), Cost(100, False), None),  # the horizon is 100: which was first is not known
        (Cost(100, False), Cost(100, False), None),
        (Cost(300, False), Cost(100, False), None),
        (Cost(100, False), Cost(40, True), log(0.4)),
        (Cost(0, True), Cost(10, True), log(1000)),
        (Cost(0, True), Cost(0, True), 0.0),
    ],
)
def test_costs_are_restricted_to_a_common_horizon(better: Cost, other: Cost, advantage: float | None) -> None:
    found = log_ratio(better, other)
    assert found == (None if advantage is None else pytest.approx(advantage))


@pytest.mark.parametrize(
    ("sides", "differs", "equal", "verdict"),
    [
        (Sides(0.001, 0.999), 0.05, 1.0, HELD),
        (Sides(0.999, 0.001), 0.05, 1.0, NOT),
        (Sides(0.001, 0.999), 0.051, 1.0, OPEN),  # not after the adjustment for several claims
        (Sides(0.4, 0.6), 0.8, 0.05, SAME),
        (Sides(0.001, 0.999), 0.01, 0.01, HELD),  # a difference that is too small to matter, but known
        (Sides(1.0, 1.0), 1.0, 1.0, OPEN),
    ],
)
def test_the_verdict_on_a_question(sides: Sides, differs: float, equal: float, verdict: Verdict) -> None:
    assert answer_verdict(sides, differs, equal) == verdict


@pytest.mark.parametrize(
    ("claims", "verdict"),
    [
        ([HELD, HELD], HELD),
        ([HELD, NOT, OPEN], NOT),
        ([SAME, NOT], NOT),
        ([HELD, SAME], SAME),
        ([SAME, SAME], SAME),
        ([HELD, SAME, OPEN], OPEN),
        ([HELD, NONE], OPEN),
        ([NONE, NONE], NONE),
        ([], NONE),
    ],
)
def test_the_verdict_on_an_experiment(claims: list[Verdict], verdict: Verdict) -> None:
    assert experiment_verdict(claims) == verdict


@given(VALUES)
def test_the_interval_of_the_reverse_is_the_reverse(values: list[float]) -> None:
    found, mirrored = interval(values), interval([-value for value in values])
    assert found is not None
    assert mirrored is not None
    assert (found.low, found.high, found.mean) == pytest.approx(
        (-mirrored.high, -mirrored.low, -mirrored.mean)
    )
    assert found.low <= found.mean <= found.high


@given(st.lists(st.floats(-10, 10), min_size=3, max_size=4))
def test_the_order_of_the_seeds_changes_nothing(values: list[float]) -> None:
    found = interval(values)
    assert found is not None
    for order in permutations(values):
        other = interval(list(order))
        assert other is not None
        assert (other.low, other.high) == pytest.approx((found.low, found.high))


@given(st.floats(0.1, 100), st.booleans(), st.floats(0.1, 100), st.booleans())
def test_the_ratio_of_costs_is_antisymmetric(a: float, reached: bool, b: float, also: bool) -> None:
    one, other = Cost(a, reached), Cost(b, also)
    there, back = log_ratio(one, other), log_ratio(other, one)
    assert (there is None) == (back is None)
    if there is not None and back is not None:
        assert there == pytest.approx(-back)
        assert (
            there >= 0 or also
        )  # who is behind a run that is censored was not faster: it reached its target
