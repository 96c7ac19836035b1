"""The noise of releases: known answers, the distribution of the sampler, its exact branch, bands."""

from math import sqrt

import numpy as np
import pytest

from offbeat.core.errors import UsageError
from offbeat.core.privacy.accounting import coefficients
from offbeat.core.privacy.noise import Integers, banded_noise, discrete_gaussian

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
    """Of vectors that are drawn in whole pieces of 131,072 candidates."""
    assert discrete_gaussian(1000, 40_000, SEED)[:6].tolist() == [-882, 808, -198, 593, -684, 665]


@pytest.mark.parametrize("sigma", [4, 120])
def test_the_distribution_is_the_discrete_gaussian(sigma: int) -> None:
    values = discrete_gaussian(sigma, 200_000, SEED)
    assert 0.7 < chi_square(values, sigma) < 1.4
    assert values.mean() == pytest.approx(0, abs=5 * sigma / sqrt(len(values)))


@pytest.mark.parametrize("sigma", [120, 50_000, 858_993_457])
def test_the_variance_is_the_one_asked_for(sigma: int) -> None:
    values = discrete_gaussian(sigma, 200_000, bytes(32)).astype(np.float64)
    assert values.var() / sigma**2 == pytest.approx(1, abs=5 * sqrt(2 / len(values)))


def test_the_exact_branch_gives_the_same_distribution() -> None:
    values = discrete_gaussian(4, 6_000, SEED, near=0.01)
    assert 0.5 < chi_square(values, 4) < 1.8


def test_the_least_deviation() -> None:
    values = discrete_gaussian(1, 200_000, SEED)
    assert 0.3 < chi_square(values, 1) < 2.0
    assert values.var() == pytest.approx(1, abs=5 * sqrt(2 / len(values)))


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
