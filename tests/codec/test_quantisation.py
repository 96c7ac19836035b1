"""The random quantiser and the random choice of coordinates: means, variances, uniformity.

Each statistical test fails with probability at most 1e-9 if the code is right: bounds of Hoeffding and
Bernstein with a union over what is compared. Seeds are fixed, so they pass or fail for good.
"""

from collections import Counter
from itertools import combinations, product
from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given

from offbeat.codec import selection
from offbeat.codec.quantisation import dequantise, norm_of, quantise
from offbeat.codec.selection import largest, random_subset
from offbeat.core.errors import UsageError
from tests.codec.codec_cases import rng, seeds, vectors
from tests.sampling import mostly_thorough

ERROR = 1e-9


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_levels_that_fit_exactly_are_kept():
    # ‖u‖ = 4: ν|u|/‖u‖ = 4 · (2, 2, 2, 2)/4 = 2 exactly, so Z = 2/4 for certain
    norm, signed = quantise(floats(2, -2, 2, -2), 4, rng())
    assert norm == 4.0
    assert signed.tolist() == [2, -2, 2, -2]
    assert dequantise(norm, signed, 4).tolist() == [2, -2, 2, -2]


def test_a_single_value_has_the_highest_level_and_a_zero_vector_none():
    for seed in range(20):
        assert quantise(floats(0, -3, 0), 7, rng(seed))[1].tolist() == [0, -7, 0]
    assert quantise(floats(0, -0.0), 4, rng())[1].tolist() == [0, 0]
    assert np.signbit(dequantise(0.0, quantise(floats(0, -0.0), 4, rng())[1], 4)).sum() == 0


@pytest.mark.parametrize("levels", [1, 4, 200])
def test_unbiased_with_the_variance_that_follows(levels):
    u = rng(1).standard_normal(50).astype(np.float32)
    norm, step, T, g = norm_of(u), norm_of(u) / levels, 4000, rng(2)
    drawn = np.array([dequantise(*quantise(u, levels, g), levels) for _ in range(T)], np.float64)
    # a value is one of two that are `step` apart
    assert np.abs(drawn.mean(axis=0) - u).max() < step * sqrt(log(2 * 50 / ERROR) / (2 * T))
    x = levels * np.abs(u.astype(np.float64)) / norm
    f = x - np.floor(x)
    squares = ((drawn - u) ** 2).mean()  # T · 50 independent ones between 0 and step²
    assert abs(squares / step**2 - (f * (1 - f)).mean()) < sqrt(log(2 / ERROR) / (2 * T * 50))
    assert (f * (1 - f)).sum() * step**2 <= 50 * norm**2 / (4 * levels**2)  # the paper's bound


@given(vector=vectors, seed=seeds)
def test_every_value_is_one_of_its_two_neighbours(vector, seed):
    u = vector.numpy()
    norm, signed = quantise(u, 5, rng(seed))
    if norm == 0:
        assert not signed.any()
        return
    x = 5 * u.astype(np.float64) / norm
    assert np.abs(signed).max() <= 5
    assert (np.abs(signed - x) <= 1 + 1e-9).all()
    assert (signed * x >= 0).all()


def test_the_highest_draw_does_not_give_a_level_too_many():
    class Highest(np.random.Generator):
        def random(self, size):
            return np.full(size, np.nextafter(1, 0))

    # 4 + (1 − 2^−53) is 5 in float64
    assert quantise(floats(1, 0), 4, Highest(np.random.Philox(0)))[1].tolist() == [4, 0]


def test_values_as_large_and_as_small_as_float32_has():
    tiny = np.float32(1e-45)
    assert quantise(floats(tiny, 0), 4, rng())[1].tolist() == [4, 0]
    huge = np.finfo(np.float32).max
    assert quantise(floats(huge, 0), 4, rng())[1].tolist() == [4, 0]
    with pytest.raises(UsageError, match="norm"):
        quantise(floats(huge, huge), 4, rng())


@pytest.mark.parametrize(
    ("count", "block"), mostly_thorough(product([1, 3, 5], [2, 4, 100]), [(3, 2), (1, 4), (5, 4), (3, 100)])
)
def test_every_subset_is_as_likely(monkeypatch, block, count):
    monkeypatch.setattr(selection, "BLOCK", block)
    T, g = 10_000, rng(3)
    seen = Counter(tuple(random_subset(6, count, g).tolist()) for _ in range(T))
    every = list(combinations(range(6), count))
    assert set(seen) <= set(every)
    p, L = 1 / len(every), log(2 * len(every) / ERROR)
    within = sqrt(2 * p * (1 - p) * L / T) + 2 * L / (3 * T)
    assert all(abs(seen[s] / T - p) < within for s in every)


@pytest.mark.parametrize(("size", "count"), [(10**6, 3), (10**6, 10**3), (10**6, 10**5), (10**6, 999_990)])
def test_a_large_subset_ascends_and_is_spread_evenly(size, count):
    chosen = random_subset(size, count, rng(4))
    assert len(chosen) == count
    assert (np.diff(chosen) > 0).all()
    assert chosen[0] >= 0
    assert chosen[-1] < size
    # a sample without replacement deviates less than one with it (Hoeffding 1963)
    assert abs(chosen.mean() / size - 0.5) < sqrt(log(2 / ERROR) / (2 * count))


@given(vector=vectors)
def test_the_largest_are_the_first_of_a_stable_sort(vector):
    u = vector.numpy()
    for k in range(len(u) + 1):
        expected = np.sort(np.argsort(-np.abs(u), kind="stable")[:k])
        assert largest(u, k).tolist() == expected.tolist()
