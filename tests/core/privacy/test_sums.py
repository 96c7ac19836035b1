"""The integer grid of the sums: known answers, no overflow, unbiased rounding, small errors."""

from math import sqrt

import numpy as np
import pytest

from offbeat.core.errors import UsageError
from offbeat.core.privacy.sums import CHUNK, SumGrid, _normals, _uniforms, integer_weight, largest_weight

SEED = bytes(range(32))


def test_the_randomness_of_known_bytes() -> None:
    assert _uniforms(SEED, 0, CHUNK)[:3] == pytest.approx([0.35594279, 0.00066662, 0.42075244], abs=5e-9)
    assert _normals(SEED, 0, CHUNK)[:2] == pytest.approx([-0.86077842, -0.60595689], abs=5e-9)


def test_uniform_and_normal_numbers_are_what_their_names_say() -> None:
    u, g = _uniforms(SEED, 1, CHUNK), _normals(SEED, 1, CHUNK)
    assert 0 < u.min() < u.max() < 1
    assert u.mean() == pytest.approx(0.5, abs=5 / sqrt(12 * CHUNK))
    assert u.var() == pytest.approx(1 / 12, rel=0.02)
    assert g.mean() == pytest.approx(0.0, abs=5 / sqrt(CHUNK))
    assert g.var() == pytest.approx(1.0, rel=0.03)
    assert np.abs(g).max() < 6.77


@pytest.mark.parametrize(
    ("bits", "importance", "weight"),
    [(0, 0.3, 1), (0, 1.0, 1), (2, 1.0, 3), (4, 1.0, 15), (4, 0.5, 8), (4, 1e-9, 1), (6, 0.25, 16)],
)
def test_importances_are_rounded_to_integer_weights(bits: int, importance: float, weight: int) -> None:
    assert integer_weight(importance, bits) == weight
    assert largest_weight(bits) == max(1, 2**bits - 1)


@pytest.mark.parametrize(("most", "bits"), [(3, 0), (64, 0), (10, 4), (64, 4), (1000, 4), (4096, 6)])
@pytest.mark.parametrize("sign", [1, -1])
def test_no_sum_overflows(most: int, bits: int, sign: int) -> None:
    """All updates have all of their norm in one coordinate, the largest weight, and an extreme dither."""
    grid = SumGrid(most, bits, clip=0.5, parameters=4, dithered=True)
    delta = np.zeros(4, np.float32)
    delta[1] = sign * 3.0  # is clipped
    largest = max(abs(int(grid.round(delta, bytes([k]) * 32)[1])) for k in range(20))
    assert largest <= grid.clip / grid.step + 1 + grid.largest_dither
    assert grid.weight * int(grid.clip / grid.step + 1 + grid.largest_dither) < 2**31
    assert grid.weight * largest > 0.9 * 2**31 * (1 - grid.weight * grid.largest_dither / 2**31)


def test_a_grid_on_which_rounding_would_be_felt_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 512 are needed: lower most or weight_bits"):
        SumGrid(4096, 6, clip=1.0, parameters=1000, dithered=True)


@pytest.mark.parametrize("bits", [0, 4])
def test_rounding_is_unbiased(bits: int) -> None:
    grid = SumGrid(64, bits, clip=1.0, parameters=3, dithered=True)
    delta = np.array([0.3, -0.2000001, 1e-9], np.float32)
    drawn = np.array([grid.round(delta, n.to_bytes(32, "big")) for n in range(2000)])
    exact = delta.astype(np.float64) / grid.step
    spread = sqrt(1 / 4 + grid.dither**2 + 1 / 12)
    assert drawn.mean(axis=0) == pytest.approx(exact, abs=5 * spread / sqrt(2000))


@pytest.mark.parametrize(("most", "bits", "error"), [(10, 0, 1e-5), (64, 0, 5e-5), (10, 4, 5e-3)])
def test_the_sum_is_near_the_real_one(most: int, bits: int, error: float) -> None:
    """Relative to the sum with the same weights c̃/q."""
    rng, size = np.random.default_rng(0), 20_000
    grid = SumGrid(most, bits, clip=1.0, parameters=size, dithered=True)
    total, exact = np.zeros(size, np.int64), np.zeros(size)
    for k in range(most):
        delta = rng.standard_normal(size).astype(np.float32)
        delta *= np.float32(0.9 / np.linalg.norm(delta))
        weight = integer_weight(rng.uniform(0.2, 1), bits)
        total += weight * grid.round(delta, bytes([k]) * 32)
        exact += weight / grid.q * delta.astype(np.float64)
    found = grid.step * total / grid.q
    assert np.linalg.norm(found - exact) < error * np.linalg.norm(exact)


def test_norms_of_rounded_updates_are_bounded_and_what_is_not_finite_is_zeros() -> None:
    grid = SumGrid(10, 0, clip=1.0, parameters=1000, dithered=False)
    delta = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    y = grid.round(delta, SEED)
    assert sqrt(float((y.astype(np.float64) ** 2).sum())) <= grid.bound
    assert np.linalg.norm(grid.step * y) == pytest.approx(1.0, rel=1e-6)  # it was clipped
    for value in (np.nan, np.inf, -np.inf):
        delta[7] = value
        assert not grid.round(delta, SEED).any()


@pytest.mark.parametrize("parameters", [1, 4, 200])
def test_the_bound_of_a_rounded_update_by_its_formula(parameters: int) -> None:
    """Y² = (C/γ)² + L/4 + C/γ + √L/2."""
    grid = SumGrid(4096, 6, clip=1.0, parameters=parameters, dithered=False)
    c = grid.clip / grid.step
    assert grid.bound**2 - c**2 == pytest.approx(parameters / 4 + c + sqrt(parameters) / 2, abs=1e-4)


def test_rounding_at_the_clip_is_refused_less_than_half_of_the_time() -> None:
    """Without C/γ + √L/2 of Y² the norms that are too long would make clipped updates shorter."""
    grid = SumGrid(4096, 6, clip=1.0, parameters=100, dithered=False)
    delta, scale = np.ones(100, np.float32), grid.clip / grid.step / 10  # of norm C
    seeds = [bytes([k]) * 32 for k in range(200)]
    refused = [seed for seed in seeds if grid._rounded(delta, scale, seed, 0) is None]
    assert 0 < len(refused) < 20
    for seed in refused:  # and is done again
        assert np.linalg.norm(grid.round(delta, seed).astype(np.float64)) <= grid.bound


def test_a_factor_comes_before_the_clip() -> None:
    grid = SumGrid(10, 0, clip=1.0, parameters=2, dithered=False)
    delta = np.array([3.0, 4.0], np.float32)
    assert grid.step * grid.round(delta, SEED, 0.1) == pytest.approx([0.3, 0.4], abs=1e-6)
    assert grid.step * grid.round(delta, SEED, 10.0) == pytest.approx([0.6, 0.8], abs=1e-6)


def test_the_same_bytes_give_the_same_integers_and_others_do_not() -> None:
    grid = SumGrid(10, 4, clip=1.0, parameters=100, dithered=True)
    delta = np.full(100, 0.01, np.float32)
    assert (grid.round(delta, SEED) == grid.round(delta, SEED)).all()
    assert (grid.round(delta, SEED) != grid.round(delta, bytes(32))).any()


def test_the_bound_is_hardly_above_the_clip() -> None:
    for bits in (0, 4):
        grid = SumGrid(10, bits, clip=0.5, parameters=10**6, dithered=True)
        assert 0 <= grid.step * grid.bound / grid.clip - 1 <= 3e-7
