"""Intervals of means: values by hand, and what must hold of all of them."""

from itertools import permutations
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat_papers.interval import Interval, interval

VALUES = st.lists(st.floats(-10, 10), min_size=3, max_size=9)


def test_the_interval_is_student_s() -> None:
    half = 4.302653 / sqrt(3)  # 2 degrees of freedom, a deviation of 1
    assert interval([3.0, 1.0, 2.0]) == Interval(2.0, pytest.approx(2 - half), pytest.approx(2 + half), 3)
    assert interval([-1.0]) == Interval(-1.0, -1.0, -1.0, 1)
    assert interval([]) is None


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
