"""s(τ) against numbers worked out by hand."""

import pytest
from pydantic import TypeAdapter

import offbeat as ob
from offbeat.core.errors import UsageError
from offbeat.core.staleness import INVERSE_SQRT, StalenessWeight


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (ob.constant(), [1, 1, 1, 1, 1, 1]),
        (ob.constant(0.25), [0.25] * 6),
        (ob.polynomial(), [1, 0.70710678, 0.57735027, 0.5, 0.44721360, 0.40824829]),
        (ob.polynomial(0.9, 0.5), [0.9, 0.63639610, 0.51961524, 0.45, 0.40249224, 0.36742346]),
        (ob.polynomial(1.0, 1.0), [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6]),
        (ob.polynomial(0.5, 0.0), [0.5] * 6),
        (ob.hinge(), [1, 1, 1, 1, 1, 1 / 11]),
        (ob.hinge(0.5, 2), [1, 1, 1, 2 / 3, 1 / 2, 2 / 5]),
        (ob.hinge(1.0, 0), [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6]),
        (ob.hinge(1.0, 2.5), [1, 1, 1, 1 / 1.5, 1 / 2.5, 1 / 3.5]),
        (ob.age(), [1, 1, 1, 1, 1, 1]),
        (ob.age(0.5), [1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32]),
        (ob.age(1.5), [1, 1.5, 2.25, 3.375, 5.0625, 7.59375]),
        (ob.age(2), [1, 2, 4, 8, 16, 32]),
        (INVERSE_SQRT, [1, 0.70710678, 0.57735027, 0.5, 0.44721360, 0.40824829]),
    ],
    ids=str,
)
def test_weights(weight, expected):
    found = [weight(staleness) for staleness in range(6)]
    assert found == pytest.approx(expected, abs=1e-8)
    assert all(type(value) is float for value in found)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ob.constant(0.0),
        lambda: ob.constant(1.5),
        lambda: ob.polynomial(0.0),
        lambda: ob.polynomial(1.1),
        lambda: ob.polynomial(1.0, -0.1),
        lambda: ob.hinge(0.0),
        lambda: ob.hinge(1.0, -1.0),
        lambda: ob.age(0.0),
        lambda: ob.age(-0.5),
        lambda: ob.age(float("inf")),
    ],
)
def test_weights_out_of_range_are_refused(make):
    with pytest.raises(ValueError, match="should be"):
        make()


def test_an_age_too_great_for_its_gamma_is_told():
    assert ob.age(0.5)(2000) == 0.0
    with pytest.raises(UsageError, match=r"gamma = 2.0 is not allowed: its power of 2000"):
        ob.age(2.0)(2000)


@pytest.mark.parametrize("weight", [ob.constant(0.5), ob.polynomial(), ob.hinge(), ob.age(1.25)], ids=str)
def test_a_weight_comes_back_from_its_options(weight):
    weights: TypeAdapter[StalenessWeight] = TypeAdapter(StalenessWeight)
    assert weights.validate_python(weights.dump_python(weight)) == weight
