"""The stratified Welch t: tabulated values, and small cases by hand."""

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.verdicts.average import (
    NOTHING,
    Average,
    Sides,
    average,
    column_correlation,
)
from tests.verdicts.samples import sample


def test_one_pair_is_student_s_test() -> None:
    found = average([sample("a", 1.0, 2.0, 3.0)])
    assert found == Average(2.0, pytest.approx(1 / sqrt(3)), pytest.approx(2.0), 1)
    assert found.sides().ahead == pytest.approx((1 - sqrt(12 / 14)) / 2)  # t = √12, 2 degrees of freedom
    assert found.interval(0.95) == pytest.approx((2 - 4.302653 / sqrt(3), 2 + 4.302653 / sqrt(3)), abs=1e-5)


@pytest.mark.parametrize(
    ("freedom", "quantile", "tail"),
    [(2, 4.303, 0.025), (4, 2.776, 0.025), (9, 2.262, 0.025), (2, 6.965, 0.01), (9, 2.821, 0.01)],
)
def test_its_p_values_are_those_of_student_s_table(freedom: float, quantile: float, tail: float) -> None:
    sides = Average(quantile, 1.0, freedom, 1).sides()
    assert tuple(sides) == pytest.approx((tail, 1 - tail), abs=2e-5)


def test_pairs_of_a_column_are_one_block_and_columns_are_strata() -> None:
    one = average([sample("a", 0.0, 2.0, 4.0), sample("a", 2.0, 4.0, 6.0)])  # seed means 1, 3, 5
    assert one == Average(3.0, pytest.approx(2 / sqrt(3)), pytest.approx(2.0), 2)
    two = average([sample("a", 1.0, 3.0, 5.0), sample("b", 11.0, 13.0, 12.0)])
    # variances of the means: 4/3 and 1/3; of their half sum: (4/3 + 1/3) / 4
    # Welch: (5/3)^2 / ((4/3)^2 / 2 + (1/3)^2 / 2)
    assert two == Average(7.5, pytest.approx(sqrt(5 / 12)), pytest.approx(50 / 17), 2)


def test_correlated_columns_count_less() -> None:
    pairs = [sample("a", 1.0, 3.0, 5.0), sample("b", 11.0, 13.0, 15.0)]
    assert column_correlation([pairs]) == pytest.approx(1.0)
    assert column_correlation([[pairs[0], sample("b", 5.0, 3.0, 1.0)]]) == 0.0
    assert column_correlation([pairs[:1], []]) == 0.0
    large = [sample("a", 0.0, 1e6, 2e6), sample("b", 2e6, 1e6, 0.0)]
    assert column_correlation([pairs, large]) == pytest.approx(
        0.0
    )  # claims count alike, whatever their units
    whole = average(pairs, 1.0)
    assert whole is not None
    assert whole.error == pytest.approx(2 / sqrt(3))  # as if they were one column


def test_neither_at_the_target_counts_what_it_is_given_as() -> None:
    pair = sample("a", None, 1.0, 2.0)
    for neither in (0.0, 0.5):
        found = average([pair], neither=neither)
        assert found is not None
        assert found.mean == pytest.approx((neither + 3.0) / 3)


def test_what_does_not_vary_or_has_too_few_seeds_is_not_tested() -> None:
    constant = average([sample("a", 0.5, 0.5, 0.5)])
    assert constant is not None
    assert constant.sides() == NOTHING
    assert (constant.equal(1.0), constant.detectable(0.05)) == (1.0, None)
    assert average([sample("a", 1.0, 2.0)]) is None
    assert average([]) is None
    left = average([sample("a", 1.0, 2.0), sample("b", 1.0, 2.0, 3.0)])
    assert left is not None
    assert left.pairs == 1


def test_two_one_sided_tests() -> None:
    found = Average(0.1, 0.1, 9.0, 1)
    assert found.equal(0.1 + 0.1 * 1.833) == pytest.approx(0.05, abs=1e-4)  # t table: 1.833 at 5 %
    assert Average(-0.1, 0.1, 9.0, 1).equal(0.2833) == pytest.approx(found.equal(0.2833))
    assert found.equal(0.05) > 0.5


def test_the_detectable_effect_has_a_power_of_four_in_five() -> None:
    # paired t, two-sided 5 %, n = 10: d = 1.00 has a power of 0.803 (Cohen's tables: 0.80)
    found = Average(0.0, 1 / sqrt(10), 9.0, 1).detectable(0.05)
    assert found == pytest.approx(0.996, abs=0.005)


def test_a_claim_and_its_reverse_have_each_other_s_sides() -> None:
    there = average([sample("a", 0.3, 0.1, 0.4), sample("b", -0.2, 0.5, 0.1)])
    back = average([sample("a", -0.3, -0.1, -0.4), sample("b", 0.2, -0.5, -0.1)])
    assert there is not None
    assert back is not None
    assert tuple(there.sides()) == pytest.approx(tuple(reversed(back.sides())))
    assert Sides(0.02, 0.98).two_sided == pytest.approx(0.04)
    assert tuple(Sides(0.3, 0.7).times(3.0)) == pytest.approx((0.9, 1.0))


@given(st.lists(st.floats(-10, 10), min_size=3, max_size=9), st.floats(-5, 5))
def test_a_shift_of_all_advantages_shifts_the_margin(values: list[float], shift: float) -> None:
    here = average([sample("a", *values)])
    moved = average([sample("a", *(value + shift for value in values))])
    assert here is not None
    assert moved is not None
    if here.error > 1e-6:
        assert tuple(moved.sides(shift)) == pytest.approx(tuple(here.sides()), abs=1e-4)
