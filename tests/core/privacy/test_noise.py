"""The noise of releases: known answers, the distribution of the samplers, exact decisions, bands."""

from decimal import ROUND_FLOOR, Decimal
from hashlib import sha256
from math import inf, sqrt

import numpy as np
import pytest

from offbeat.core.errors import UsageError
from offbeat.core.privacy.accounting import coefficients
from offbeat.core.privacy.noise import (
    Integers,
    _magnitudes,
    _MoreBits,
    banded_noise,
    discrete_gaussian,
)

SEED = bytes(range(32))


def chi_square(values: Integers, sigma: int) -> float:
    """χ² per degree of freedom against the discrete Gaussian, over integers expected at least 20 times."""
    v = np.arange(-8 * sigma, 8 * sigma + 1)
    p = np.exp(-(v**2) / (2 * sigma**2))
    expected = len(values) * p / p.sum()
    observed = np.bincount(values + 8 * sigma, minlength=len(v))
    kept = expected >= 20
    rest = np.array([[observed[~kept].sum(), expected[~kept].sum()]])
    cells = np.concatenate([np.stack([observed[kept], expected[kept]], 1), rest])
    return float(((cells[:, 0] - cells[:, 1]) ** 2 / np.maximum(cells[:, 1], 1e-9)).sum() / (len(cells) - 1))


def test_the_noise_of_known_bytes() -> None:
    """Of a vector that is drawn in several pieces: recorded runs go on with the same noise."""
    drawn = discrete_gaussian(1000, 200_000, SEED)
    assert drawn[:6].tolist() == [736, 2947, -326, -289, 86, 3347]
    assert sha256(drawn.astype("<i8").tobytes()).hexdigest().startswith("57060194a694bb81")


@pytest.mark.parametrize("sigma", [4, 120])
def test_the_distribution_is_the_discrete_gaussian(sigma: int) -> None:
    values = discrete_gaussian(sigma, 200_000, SEED)
    assert 0.7 < chi_square(values, sigma) < 1.4
    assert values.mean() == pytest.approx(0, abs=5 * sigma / sqrt(len(values)))


@pytest.mark.parametrize("sigma", [120, 50_000, 858_993_457, 1 << 41])
def test_the_variance_is_the_one_asked_for(sigma: int) -> None:
    values = discrete_gaussian(sigma, 20_000 if sigma > 1 << 40 else 200_000, bytes(32)).astype(np.float64)
    assert values.var() / sigma**2 == pytest.approx(1, abs=5 * sqrt(2 / len(values)))


def test_the_least_deviation() -> None:
    values = discrete_gaussian(1, 200_000, SEED)
    assert 0.3 < chi_square(values, 1) < 2.0
    assert values.var() == pytest.approx(1, abs=5 * sqrt(2 / len(values)))


@pytest.mark.parametrize("sigma", [1, 4, 1000, 858_993_457, 1 << 41])
def test_decisions_in_floating_point_are_those_of_exact_arithmetic(sigma: int) -> None:
    exact = discrete_gaussian(sigma, 300, SEED, margin=inf)
    assert (exact == discrete_gaussian(sigma, 300, SEED)).all()


def test_numbers_at_the_limits_of_a_decision_are_decided_by_more_bits() -> None:
    """A word on the edge between two integers becomes one or the other, by bits that it does not have."""
    t, margin = 2, 1.0
    edge = int((Decimal(2) ** 64 * (Decimal(-5) / t).exp()).to_integral_value(ROUND_FLOOR))
    words = np.full(64, edge, np.uint64)
    found = {float(y) for y in _magnitudes(t, words, _MoreBits(SEED, 0), margin)}
    assert found == {4.0, 5.0}


def test_the_smallest_and_largest_words_give_finite_numbers() -> None:
    t, words = 1 << 41, np.array([0, 1, 2**48 - 1, 2**48, 2**64 - 1], np.uint64)
    found = _magnitudes(t, words, _MoreBits(SEED, 0), 1.0)
    below = -t * np.log((words.astype(np.float64) + 1) / 2.0**64)
    above = -t * np.log(np.maximum(words.astype(np.float64), 2.0**-128) / 2.0**64)
    assert (np.floor(below) - 1 <= found).all()
    assert (found <= above + 1).all()


@pytest.mark.parametrize("sigma", [0, -4, 0.5, 0.999, 1.5, float("nan"), float("inf"), -float("inf")])
def test_a_deviation_below_the_least_is_refused(sigma: float) -> None:
    with pytest.raises(UsageError, match=rf"sigma = {sigma} is not allowed: give an integer of at least 1$"):
        discrete_gaussian(sigma, 10, SEED)  # type: ignore[arg-type]


def test_the_same_bytes_give_the_same_vector_and_others_another() -> None:
    first = discrete_gaussian(10_000, 300, SEED)
    assert (first == discrete_gaussian(10_000, 300, SEED)).all()
    assert abs(np.corrcoef(first, discrete_gaussian(10_000, 300, bytes(32)))[0, 1]) < 0.3


def test_bands_take_earlier_noise_back() -> None:
    """e = C⁻¹ z: what C_b makes of all e is the independent noise."""
    bands, sigma, size = 4, 1000, 50
    f, past, drawn, independent = coefficients(bands), [], [], []
    for release in range(9):
        seed = bytes([release]) * 32
        e = banded_noise(sigma, past, f, size, seed)
        independent.append(banded_noise(sigma, [], f, size, seed))
        drawn.append(e)
        past = [e, *past][: bands - 1]
    for release, z in enumerate(independent):
        again = sum(f[k] * drawn[release - k] for k in range(min(bands, release + 1)))
        assert again == pytest.approx(z, abs=1e-9 * sigma)
