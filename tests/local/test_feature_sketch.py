"""All that a client tells of its features is of enough samples, and the same in any order of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.local.feature_sketch import FeatureSketch, rounded_off, sketch_digest, told_counts
from tests.sampling import examples

LEAST = 4


def sketch(*values: float, least: int = LEAST, rounded: bool = True) -> FeatureSketch:
    return FeatureSketch.of(np.array(values, np.float64), least, rounded=rounded)


def digest(*values: float) -> str:
    return sketch_digest(len(values), np.zeros(0), [sketch(*values)])


@examples(60)
@given(
    st.lists(st.one_of(st.integers(-3, 40).map(float), st.floats(-1e3, 1e3)), min_size=1, max_size=90),
    st.integers(1, 6),
)
def test_each_interval_has_enough_values_and_the_share_below_is_right_within_the_doubt(
    values: list[float], least: int
) -> None:
    found = sketch(*values, least=least, rounded=False)
    if len(values) < least:
        assert found.present == 0
        return
    counts = found.leaves[:, 2] * len(values)
    assert (counts > least - 1e-6).all()
    assert counts.sum() == pytest.approx(len(values))
    places = np.unique(
        np.clip(found.leaves[:, :2], *(found.mean + 4 * np.sqrt(found.variance) * np.array([-1, 1])))
    )
    places = (places[1:] + places[:-1]) / 2
    truth = np.array([np.mean(np.array(values) < place) for place in places])
    assert (np.abs(found.below(places) - truth) <= found.doubt(places) + 1e-9).all()


@pytest.mark.parametrize(
    ("many", "few"),
    [
        ([0.0] * 57, [1.0] * 3),  # a rare category, a rare dose, a value of another unit
        ([0.0] * 59, [7.3]),
        ([0.0] * 30 + [2.0] * 29, [0.7]),
        (np.linspace(40, 70, 58).tolist(), [1e6, 3e6]),
        (np.linspace(40, 70, 58).tolist(), [-1e6]),
    ],
)
def test_few_values_aside_of_all_others_are_not_told(many: list[float], few: list[float]) -> None:
    found = sketch(*many, *few)
    assert min(many) - 2 * np.ptp(many) <= found.mean <= max(many) + 2 * np.ptp(many)
    others = [value + 1e-3 * (1 if value >= 0 else -1) * abs(value) for value in few]
    assert digest(*many, *few) == digest(*many, *others)


@pytest.mark.parametrize(
    ("lack", "told"), [(0, 1.0), (1, 1.0), (3, 1.0), (4, 0.933), (56, 0.0667), (57, 0.0)]
)
def test_few_missing_values_and_few_present_ones_are_not_told(lack: int, told: float) -> None:
    assert sketch(*[np.nan] * lack, *np.arange(60.0 - lack)).present == told


@pytest.mark.parametrize(
    ("counts", "told"),
    [([30, 30], [30, 30]), ([57, 3], [60, 0]), ([30, 1, 2, 27], [33, 0, 0, 27]), ([3, 3, 1], [0, 0, 0])],
)
def test_a_rare_class_counts_with_the_largest(counts: list[int], told: list[int]) -> None:
    assert told_counts(np.array(counts, np.float64), LEAST).tolist() == told


def test_the_order_of_samples_and_features_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(50, 10, (40, 3))
    told = [
        sketch_digest(40, np.zeros(0), [FeatureSketch.of(c, LEAST, rounded=False) for c in table.T])
        for table in (x, x[rng.permutation(40)], x[:, [2, 0, 1]], x + np.array([0, 0, 1]))
    ]
    assert told[0] == told[1] == told[2] != told[3]


def test_a_constant_feature() -> None:
    found = sketch(*[7.0] * 9)
    assert (found.mean, found.variance) == (7.0, 0.0)
    assert found.below(np.array([6.9, 7.1])).tolist() == [0.0, 1.0]
    assert found.doubt(np.array([6.9, 7.1])).tolist() == [0.0, 0.0]


def test_numbers_are_rounded_to_three_significant_digits() -> None:
    assert [rounded_off(v) for v in (0.0, 1234.5, -0.00098765, 7.0)] == [0.0, 1230.0, -0.000988, 7.0]
