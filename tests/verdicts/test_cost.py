"""Ratios of costs: values by hand, and what must hold of all of them."""

from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.verdicts.cost import Cost, log_ratio


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
