"""Errors of regression: numbers by hand, scikit-learn's, any division into batches."""

from math import inf, isnan, nan, sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offbeat.metrics import MeanAbsoluteError, RootMeanSquaredError
from tests.metrics.cases import I, cuts, divided, shuffled, t, value
from tests.sampling import examples

CASE = t([[1.0, 2], [3, 4]]), t([[1.0, 4], [0, 4]])  # differences 0 2 3 0


def test_numbers_by_hand():
    assert value(MeanAbsoluteError(), CASE) == 5 / 4
    assert value(RootMeanSquaredError(), CASE) == sqrt(13 / 4)
    assert value(RootMeanSquaredError(), *divided(*CASE, [1])) == sqrt(13 / 4)
    assert value(MeanAbsoluteError(), (t([0.5, 3]), t([1, 1], I))) == 1.25


def test_sums_are_in_float64():
    many = torch.full((3, 100_000), 0.1), torch.zeros(3, 100_000)
    assert value(MeanAbsoluteError(), many) == pytest.approx(float(t([0.1]).double()), rel=1e-12)
    large = t([1e30]), t([0])  # its square is beyond float32
    assert value(RootMeanSquaredError(), large) == pytest.approx(1e30)


@pytest.mark.parametrize("metric", [MeanAbsoluteError(), RootMeanSquaredError()])
def test_extremes_fail_no_evaluation(metric):
    assert isnan(value(metric))
    assert isnan(value(metric, (t([nan]), t([0]))))
    assert value(metric, (t([inf]), t([0]))) == inf


NUMBERS = st.floats(-1e6, 1e6, width=32)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=12), cuts, st.integers(0, 9))
@examples(100)
def test_as_scikit_learn_has_it_in_any_order_and_batches(rows, cuts, seed):
    sk = pytest.importorskip("sklearn.metrics")
    case = t([a for a, _ in rows]), t([b for _, b in rows])
    y, p = (values.double().numpy() for values in case)
    batches = divided(*shuffled(*case, seed), cuts)
    assert value(MeanAbsoluteError(), *batches) == pytest.approx(sk.mean_absolute_error(y, p), rel=1e-12)
    assert value(RootMeanSquaredError(), *batches) == pytest.approx(
        sqrt(sk.mean_squared_error(y, p)), rel=1e-12
    )
