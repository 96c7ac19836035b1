"""The numbers of privacy: grid, rounding, noise and accounting, against known answers."""

from math import floor, sqrt

import numpy as np
import pytest

from offbeat.core import sums
from offbeat.core.accounting import (
    Spent,
    coefficients,
    epsilon_of,
    largest_mu,
    multiplier_for,
    overlaps,
    strict_epsilon_of,
    strict_largest_mu,
)
from offbeat.core.errors import UsageError
from offbeat.core.noise import banded_noise, discrete_gaussian
from offbeat.core.sums import SumGrid, integer_weight

SEED = bytes(range(32))


def test_uniform_and_normal_numbers_of_a_known_seed():
    assert sums._uniforms(SEED, 0, 3) == pytest.approx([0.35594279, 0.00066662, 0.42075244], abs=1e-8)
    assert sums._normals(SEED, 0, sums.CHUNK)[:2] == pytest.approx([-0.86077842, -0.60595689], abs=1e-8)


@pytest.mark.parametrize(("most", "bits"), [(3, 0), (64, 0), (10, 4), (64, 4), (1000, 4), (4096, 6)])
def test_no_sum_overflows_with_everything_at_its_greatest(most: int, bits: int):
    grid = SumGrid(most, bits, 1.0, 1, True)
    largest = floor(1.0 / grid.step + 1 - 2.0**-33) + grid.largest_dither
    assert grid.weight * largest <= 2**31 - 1


def test_a_grid_on_which_rounding_would_be_felt_is_refused():
    with pytest.raises(UsageError, match="at least 512 are needed: lower most or weight_bits"):
        SumGrid(4096, 6, 1.0, 1000, True)


def test_a_rounded_update_is_clipped_and_on_average_right():
    rng = np.random.default_rng(0)
    delta = rng.standard_normal(2000).astype(np.float32)
    grid = SumGrid(10, 4, 1.0, 2000, True)
    clipped = delta / np.linalg.norm(delta.astype(float)) / grid.step
    rounded = [grid.round(delta, bytes([i, *SEED[1:]])) for i in range(200)]
    error = np.mean(rounded, axis=0) - clipped
    assert float(np.abs(error).max()) < 5 * sqrt(grid.dither**2 + 1 / 4) / sqrt(200)
    plain = SumGrid(10, 4, 1.0, 2000, False)
    clipped *= grid.step / plain.step
    assert float(np.abs(plain.round(delta, SEED) - clipped).max()) < 1.001
    assert np.linalg.norm(plain.round(delta, SEED).astype(float)) <= plain.bound


def test_what_is_not_finite_becomes_zeros_and_factors_come_before_the_clip():
    grid = SumGrid(3, 0, 1.0, 4, False)
    assert not grid.round(np.array([1, np.nan, 0, 2], np.float32), SEED).any()
    small = np.array([0.5, -0.25, 0.125, 0], np.float32)
    exact = small.astype(float) / grid.step
    assert grid.round(small, SEED, 0.5) == pytest.approx(exact / 2, abs=1)
    assert grid.round(small, SEED, 1e9) == pytest.approx(exact / np.linalg.norm(small.astype(float)), abs=1)


@pytest.mark.parametrize(
    ("importance", "bits", "weight"), [(1.0, 4, 15), (0.5, 4, 8), (1e-9, 4, 1), (0.3, 0, 1), (1.0, 0, 1)]
)
def test_integer_weights(importance: float, bits: int, weight: int):
    assert integer_weight(importance, bits) == weight


def test_epsilon_of_gaussian_privacy():
    """The figures agree with dp-accounting's PLD accountant to five digits."""
    mus, known = (0.5, 1, 2, 3, 5), [1.9931, 4.3772, 9.9973, 16.6755, 33.1037]
    assert [epsilon_of(mu, 1e-5) for mu in mus] == pytest.approx(known, abs=1e-4)
    uneven = sqrt(sum(mu * mu for mu in (0.3, 0.11, 0.5, 0.27, 0.4)))
    assert epsilon_of(uneven, 1e-5) == pytest.approx(3.21782, abs=1e-4)
    found = [largest_mu(epsilon, 1e-5) for epsilon in (1, 2, 4, 8)]
    assert found == pytest.approx([0.2681, 0.5016, 0.9249, 1.6660], abs=1e-4)
    assert all(1.05 < strict_epsilon_of(mu, 1e-5) / epsilon_of(mu, 1e-5) < 1.1 for mu in mus)
    assert strict_epsilon_of(strict_largest_mu(4, 1e-5), 1e-5) == pytest.approx(4)
    assert epsilon_of(0.0, 1e-5) == strict_epsilon_of(0.0, 1e-5) == 0.0


def test_what_a_client_spends_in_bands_is_the_norm_of_a_dense_matrix_product():
    rng = np.random.default_rng(3)
    for _ in range(50):
        bands, releases = int(rng.integers(1, 9)), 40
        alpha = np.where(rng.random(releases) < 0.3, rng.random(releases), 0.0)
        alpha[-bands:] = 0.0  # what is charged counts the rows of releases to come
        spent, h = Spent(), overlaps(bands)
        for release in np.flatnonzero(alpha):
            spent.charge(int(release), float(alpha[release]), h)
        dense = sum(f * np.eye(releases, k=-k) for k, f in enumerate(coefficients(bands)))  # C_b
        assert spent.mu == pytest.approx(float(np.linalg.norm(dense @ alpha)), abs=1e-9)
    ones = np.ones(7)
    expected = float(np.linalg.norm(np.convolve(ones, coefficients(3))[:9])) / 2.0
    assert multiplier_for(7, 2.0, 3) == pytest.approx(expected)


def test_discrete_gaussians_of_a_known_seed():
    assert discrete_gaussian(1000, 6, SEED).tolist() == [-882, 808, -198, 593, -684, 665]


@pytest.mark.parametrize(
    ("sigma", "near"), [(4, 2.0**-40), (4, 0.001), (120, 2.0**-40), (858_993_457, 2.0**-40)]
)
def test_discrete_gaussians_have_their_variance(sigma: int, near: float):
    count = 5_000 if near > 1e-6 else 100_000
    values = discrete_gaussian(sigma, count, SEED, near) / sigma
    assert abs(float(values.mean())) < 5 / sqrt(count)
    assert float(values.var()) == pytest.approx(1.0, abs=5 * sqrt(2 / count))


def test_discrete_gaussians_have_their_probabilities():
    values, sigma = discrete_gaussian(4, 400_000, SEED), 4
    x = np.arange(-14, 15)
    p = np.exp(-((x / sigma) ** 2) / 2)
    expected = 400_000 * p / np.exp(-((np.arange(-60, 61) / sigma) ** 2) / 2).sum()
    counts = np.array([(values == k).sum() for k in x])
    assert 0.4 < float(((counts - expected) ** 2 / expected).sum() / (len(x) - 1)) < 1.8


def test_banded_noise_is_the_inverse_of_the_bands():
    """e = C⁻¹ z: C_b times the noise of several releases is independent noise."""
    f, past, independent = coefficients(3), list[np.ndarray](), list[np.ndarray]()
    for release in range(5):
        seed = bytes([release, *SEED[1:]])
        e = banded_noise(10, past[:2], f, 50, seed)
        independent.append(banded_noise(10, [], f, 50, seed))
        past = [e, *past]
        restored = sum(factor * own for factor, own in zip(f, past, strict=False))
        assert restored == pytest.approx(independent[-1], abs=1e-12 * 100)
