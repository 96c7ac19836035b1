"""The statistics of verdicts: values by hand, and what must hold of all of them."""

from itertools import permutations
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.studies.rows import Cost
from offbeat.studies.verdicts import (
    Interval,
    Verdict,
    claim_verdict,
    experiment_verdict,
    interval,
    log_ratio,
    pair_verdict,
)

HELD, NOT, OPEN, NONE = Verdict.HELD, Verdict.NOT_HELD, Verdict.UNDECIDED, Verdict.NOT_RUN
ADVANTAGES = st.lists(st.floats(-10, 10), min_size=3, max_size=9)


def test_the_interval_of_three_seeds_goes_from_the_smallest_to_the_largest() -> None:
    # 27 resamples, each constant one with a share of 1/27 = 3.7 % > 2.5 %
    assert interval([3.0, 1.0, 2.0]) == Interval(2.0, 1.0, 3.0, 3)
    assert interval([-1.0]) == Interval(-1.0, -1.0, -1.0, 1)
    assert interval([]) is None


def test_the_interval_of_four_seeds_by_hand() -> None:
    # 256 resamples of (0, 0, 0, 4): the mean is the number of 4s, which is binomial (4, 1/4):
    # 81, 108, 54, 12, 1 of 256. Place floor(0.025 * 255) = 6 from below
    # is 0; from above it is 3, which has the places 1 to 12.
    found = interval([0.0, 4.0, 0.0, 0.0])
    assert found == Interval(1.0, 0.0, 3.0, 4)


def test_ten_seeds_are_resampled_from_a_fixed_stream() -> None:
    values = [float(k) for k in range(10)]
    found = interval(values)
    assert found == interval(values)
    assert found is not None
    # mean 4.5, the standard error of the resampled mean is sqrt(8.25 / 10) = 0.908
    assert found.low == pytest.approx(4.5 - 1.96 * 0.908, abs=0.1)
    assert found.high == pytest.approx(4.5 + 1.96 * 0.908, abs=0.1)


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
    ("advantages", "margin", "verdict"),
    [
        ([0.1, 0.2, 0.3], 0.0, HELD),
        ([-0.1, -0.2, -0.3], 0.0, NOT),
        ([0.1, 0.2, -0.05], 0.0, OPEN),
        ([0.1, 0.2, 0.0], 0.0, OPEN),
        ([0.1, 0.2, 0.3], 0.2, OPEN),
        ([-0.1, 0.05, 0.0], -0.2, HELD),  # not worse by more than 0.2
        ([0.1, 0.2], 0.0, NONE),
        ([], 0.0, NONE),
        ([0.1, 0.2, None], 0.0, OPEN),  # three were run, two say something
        ([0.1, 0.2, None, 0.3], 0.0, HELD),
        ([None, None, None], 0.0, OPEN),
    ],
)
def test_the_verdict_on_a_pair(advantages: list[float | None], margin: float, verdict: Verdict) -> None:
    assert pair_verdict(advantages, margin) == verdict


@pytest.mark.parametrize(
    ("pairs", "verdict"),
    [
        ([HELD], HELD),
        ([HELD, HELD], HELD),
        ([HELD, OPEN], OPEN),
        ([HELD, NONE], OPEN),  # what was not run is not held
        ([NOT, NOT, HELD], NOT),
        ([NOT, HELD], OPEN),  # half is not more than half
        ([NOT, NONE, NONE], OPEN),
        ([NONE, NONE], NONE),
    ],
)
def test_the_verdict_on_a_claim(pairs: list[Verdict], verdict: Verdict) -> None:
    assert claim_verdict(pairs) == verdict


def test_the_verdict_on_an_experiment() -> None:
    assert experiment_verdict([HELD, HELD]) == HELD
    assert experiment_verdict([HELD, NOT, OPEN]) == NOT
    assert experiment_verdict([HELD, NONE]) == OPEN
    assert experiment_verdict([NONE, NONE]) == experiment_verdict([]) == NONE


@given(ADVANTAGES, st.floats(0, 1))
def test_a_claim_and_its_reverse_are_never_both_held(advantages: list[float], margin: float) -> None:
    reverse = [-advantage for advantage in advantages]
    found, mirrored = interval(advantages), interval(reverse)
    assert found is not None
    assert mirrored is not None
    assert (found.low, found.high, found.mean) == (-mirrored.high, -mirrored.low, -mirrored.mean)
    assert [pair_verdict(advantages), pair_verdict(reverse)].count(HELD) < 2
    assert {pair_verdict(advantages, margin), pair_verdict(reverse, margin)} != {HELD}


@given(st.lists(st.floats(-10, 10), min_size=3, max_size=4))
def test_the_order_of_the_seeds_changes_nothing(advantages: list[float]) -> None:
    assert len({interval(list(order)) for order in permutations(advantages)}) == 1


@given(ADVANTAGES)
def test_the_mean_is_within_its_interval(advantages: list[float]) -> None:
    found = interval(advantages)
    assert found is not None
    assert found.low - 1e-9 <= found.mean <= found.high + 1e-9


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
