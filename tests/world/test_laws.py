"""Laws: their clipping, their moments, and what is refused.

A mean of n draws is compared with its expectation to within 5 standard errors: at a fixed seed this
either holds for good or not at all; for a seed drawn at random it would fail once in 1.7 million.
"""

from math import exp, log, pi, sqrt

import numpy as np
import pytest

from offbeat.core.errors import UsageError
from offbeat.world.laws import (
    Constant,
    Exponential,
    LogNormal,
    MeanRatio,
    Normal,
    Pareto,
    Ratio,
    Uniform,
    Zipf,
    check_length,
    of_client,
)

N = 40_000


def draws(law, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return np.array([law.draw(generator) for _ in range(N)])


def check(values: np.ndarray, mean: float, std: float) -> None:
    assert abs(values.mean() - mean) < 5 * std / sqrt(len(values))


@pytest.mark.parametrize(
    ("law", "mean", "std"),
    [
        (Normal(2.0, 0.1), 2.0, 0.2),
        (Exponential(3.0), 3.0, 3.0),
        (Uniform(1.0, 4.0), 2.5, 3 / sqrt(12)),
        (Ratio(0.5, 5.0), 1.5, 2 / sqrt(12)),  # U(0.5, 2.5)
        (MeanRatio(1.5, 5.0), 1.5, 2 / sqrt(12)),  # the same
        (Pareto(2.0, 5.0), 2.5, sqrt(5 / 3) / 4 * 2),  # shape·min/(shape − 1)
        (LogNormal(2.0, 0.5), 2 * exp(0.125), 2 * exp(0.125) * sqrt(exp(0.25) - 1)),
        (Zipf(0.5, 5.0), 0.5 * (pi**4 / 90) / 1.0369277551, 0.5 * 0.40),  # ζ(4)/ζ(5)
    ],
    ids=str,
)
def test_means(law, mean, std):
    values = draws(law)
    check(values, mean, std)
    assert not np.allclose(values, draws(law, seed=1))
    assert (values == draws(law)).all()


@pytest.mark.parametrize(
    ("law", "std"),
    [
        (Normal(2.0, 0.1), 0.2),
        (Uniform(1.0, 4.0), 3 / sqrt(12)),
        (Exponential(3.0), 3.0),
        (Ratio(0.5, 5.0), 2 / sqrt(12)),
    ],
    ids=str,
)
def test_spreads(law, std):
    assert draws(law).std() == pytest.approx(std, rel=0.05)  # over 6 standard errors even for Exponential


def test_tails():
    """P(x > v) at some v, each a mean of 0s and 1s."""
    for law, v, p in [
        (Pareto(2.0, 1.5), 8.0, 4.0**-1.5),
        (Exponential(2.0), 6.0, exp(-3)),
        (LogNormal(3.0, 2.0), 3.0, 0.5),
        (Zipf(1.0, 2.0), 1.5, 1 - 6 / pi**2),
        (Zipf(1.0, 2.0), 2.5, 1 - 7.5 / pi**2),
        (Normal(1.0, 0.3), 1.3, 0.15865525),
    ]:
        check(draws(law) > v, p, sqrt(p * (1 - p)))


def test_ranges_and_clipping():
    assert set(draws(Constant(2.5))) == {2.5}
    normal = draws(Normal(2.0, 1.0))
    assert normal.min() == 0.1  # 5 % of the mean
    check(normal == 0.1, 0.17105613, 0.38)  # Φ(−0.95)
    assert draws(Normal(2.0)).std() == pytest.approx(0.6, rel=0.05)
    clipped = draws(Exponential(4.0, minimum=0.25))
    assert clipped.min() == 1.0
    check(clipped == 1.0, 1 - exp(-0.25), 0.42)
    assert draws(Exponential(4.0)).min() > 0
    assert draws(Uniform(1.0, 4.0)).min() >= 1.0
    assert draws(Uniform(1.0, 4.0)).max() <= 4.0
    ratio = draws(Ratio(0.5, 110.0))
    assert 0.5 <= ratio.min() < 1.0 < 50 < ratio.max() <= 55.0
    assert set(draws(Ratio(0.5, 1.0))) == {0.5}
    assert np.array_equal(draws(MeanRatio(1.5, 5.0)), draws(Ratio(0.5, 5.0)))
    assert set(draws(MeanRatio(1.5, 1.0))) == {1.5}
    assert draws(Pareto(2.0)).min() >= 2.0
    assert draws(LogNormal(2.0)).min() > 0
    assert set(draws(LogNormal(2.0, 0.0))) == {2.0}
    zipf = draws(Zipf(0.5))
    assert zipf.min() == 0.5
    assert (zipf * 2 == np.round(zipf * 2)).all()
    assert np.median(np.log(draws(LogNormal(3.0, 2.0)))) == pytest.approx(log(3), abs=0.1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constant(0.0),
        lambda: Constant(float("inf")),
        lambda: Constant(float("nan")),
        lambda: Normal(-1.0),
        lambda: Normal(1.0, -0.1),
        lambda: Exponential(1.0, 1.5),
        lambda: Uniform(0.0, 1.0),
        lambda: Ratio(1.0, 0.5),
        lambda: MeanRatio(1.0, 0.5),
        lambda: MeanRatio(float("inf"), 5.0),
        lambda: Pareto(1.0, 0.0),
        lambda: LogNormal(1.0, -1.0),
        lambda: Zipf(1.0, 1.0),
        lambda: Zipf(1.0, float("inf")),
        lambda: Ratio(1.0, float("inf")),
    ],
)
def test_parameters_out_of_range_are_refused(make):
    with pytest.raises(ValueError, match="should be"):
        make()


def test_a_ratio_whose_slowest_is_infinite_is_refused():
    with pytest.raises(ValueError, match=r"fastest = 1e\+300 times ratio = 1e\+09 is infinite"):
        Ratio(1e300, 1e9)
    with pytest.raises(ValueError, match=r"mean = 1e\+308 makes the slowest infinite"):
        MeanRatio(1e308, 5.0)
    assert np.isfinite(draws(MeanRatio(8e307, 1e308))).all()


def test_the_quantity_of_one_client():
    generator = np.random.default_rng(0)
    assert of_client(3, 7, generator) == 3.0
    assert of_client(2.5, 7, generator) == 2.5
    assert of_client([1.0, 2.0, 4.0], 2, generator) == 4.0
    assert of_client(Constant(6.0), 7, generator) == 6.0


def test_a_list_has_one_entry_per_client():
    check_length("x", [1.0, 2.0], 2)
    check_length("x", 3.0, 2)
    check_length("x", Constant(1.0), 2)
    with pytest.raises(UsageError, match=r"world\.x lists 2 values for 3 clients"):
        check_length("world.x", [1.0, 2.0], 3)
