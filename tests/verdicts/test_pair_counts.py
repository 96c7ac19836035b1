"""Partial conjunctions by hand, and how many pairs are ahead."""

import pytest

from offbeat.verdicts.average import NOTHING, PairSample, Sides, average
from offbeat.verdicts.pair_counts import at_least, each_pair, pairs_ahead
from tests.verdicts.samples import sample


def test_every_pair_is_the_intersection_union_test_and_one_reversed_refutes_it() -> None:
    pairs = [Sides(0.001, 0.999), Sides(0.01, 0.99), Sides(0.99, 0.01)]
    assert at_least(pairs, 3) == Sides(0.99, pytest.approx(0.03))  # Holm: three times the smallest
    assert at_least(pairs, 1) == Sides(pytest.approx(0.003), pytest.approx(0.999))
    assert at_least(pairs, 2) == Sides(
        pytest.approx(0.02), 1.0
    )  # two of the three: twice the second smallest
    assert at_least([*pairs[:2], NOTHING], 3).ahead == 1.0  # what is not tested does not hold


def test_of_one_pair_all_are_one() -> None:
    assert at_least([Sides(0.2, 0.8)], 1) == Sides(0.2, 0.8)


def test_a_pair_s_error_is_at_least_that_of_all() -> None:
    calm, wild, short = sample("a", 1.0, 1.0, 1.0), sample("b", -3.0, 0.0, 3.0), sample("c", 1.0)
    first, second, third = each_pair([calm, wild, short], 0.0)
    assert first is not None
    assert second is not None
    assert third is None
    assert first.error == pytest.approx(second.error / 2**0.5)
    assert second.error == pytest.approx(3 / 3**0.5)
    assert average([calm]) is not None


def test_pairs_ahead_are_counted() -> None:
    clear = [sample(str(k), 1.0 + 0.01 * k, 1.1, 0.9 - 0.02 * k) for k in range(6)]
    found = pairs_ahead(clear, 0.0, average(clear))
    assert found is not None
    assert (round(found.expected, 2), found.low, found.high, found.of) == (6.0, 6, 6, 6)
    assert found.most.ahead < 1e-4
    mixed = [
        sample(str(k), *(sign * value for value in (1.0, 1.1, 0.9))) for k, sign in enumerate((1, 1, -1, -1))
    ]
    found = pairs_ahead(mixed, 0.0, average(mixed))
    assert found is not None
    assert (round(found.expected, 2), found.low, found.high) == (2.0, 2, 2)
    assert tuple(found.most) == pytest.approx((1.0, 1.0))
    beyond = pairs_ahead(clear, 2.0, average(clear))
    assert beyond is not None
    assert beyond.expected < 0.01


def test_a_count_knows_that_the_mean_is_not_known() -> None:
    equal = [sample(str(k), -0.9, 0.1, 1.1) for k in range(5)]  # no spread over pairs: all ahead or none
    found = pairs_ahead(equal, 0.0, average(equal))
    assert found is not None
    assert (found.low, found.high) == (0, 5)
    mean = average(equal)
    assert mean is not None
    assert tuple(found.most) == pytest.approx(tuple(mean.sides()), abs=0.02)  # a step of the quantiles


def test_a_mirrored_claim_has_the_other_count() -> None:
    pairs = [sample(str(k), 0.2 * k - 0.3, 0.1, 0.3 - 0.1 * k) for k in range(4)]
    back = [PairSample(p.block, {s: -v for s, v in p.advantages.items() if v is not None}) for p in pairs]
    found, mirrored = (pairs_ahead(each, 0.0, average(each)) for each in (pairs, back))
    assert found is not None
    assert mirrored is not None
    assert found.expected == pytest.approx(4 - mirrored.expected)
    assert tuple(found.most) == pytest.approx(tuple(reversed(mirrored.most)))


def test_what_does_not_vary_is_not_counted() -> None:
    pairs = [sample("a", 1.0, 1.0, 1.0)]
    assert pairs_ahead(pairs, 0.0, average(pairs)) is None
    assert pairs_ahead([], 0.0, None) is None
