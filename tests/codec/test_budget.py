"""Equation 10: r against brute force, exact at its edges, and right where it is large."""

import doctest
from itertools import pairwise
from math import comb, fsum, log2, pi

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.codec import budget
from offbeat.codec.budget import bits_needed, index_bits, largest_r, largest_sparse, sparse_bits, value_bits


def fits(d: int, r: int, c: int, bits: int) -> bool:
    """C(d, r) ≤ 2^(bits − 32 − c r), in integers."""
    spare = bits - 32 - c * r
    return spare >= 0 and comb(d, r) <= 2**spare


@pytest.mark.parametrize("levels", [1, 2, 4, 7, 8, 100])
def test_r_is_the_largest_that_fits_for_every_small_d_and_every_budget(levels):
    c = value_bits(levels)
    for d in range(41):
        for bits in range(32 + c * d + d + 3):
            expected = max((r for r in range(d + 1) if fits(d, r, c, bits)), default=0)
            assert largest_r(d, bits, levels) == expected, (d, bits)


def test_the_bits_of_a_level_and_a_sign():
    assert [value_bits(v) for v in (1, 2, 3, 4, 7, 8)] == [2, 3, 3, 4, 4, 5]


def test_the_papers_numbers():
    # MNIST's CNN, ν = 4: all coordinates at 32 + 4 · 21,840 bits; one bit less and the indices are to be paid
    assert largest_r(21_840, 87_392, 4) == 21_840
    assert largest_r(21_840, 87_391, 4) < 16 * 21_841 // 17 < 21_840
    assert largest_r(21_840, 31, 4) == 0
    assert largest_r(21_840, None, 4) == 21_840


@given(d=st.integers(1, 10**8), levels=st.integers(1, 1000), share=st.floats(0, 1.1))
def test_r_fits_and_the_next_does_not(d, levels, share):
    c = value_bits(levels)
    bits = int(share * (32 + c * d))
    r = largest_r(d, bits, levels)
    assert r == 0 or bits_needed(d, r, levels) <= bits
    if r < d:
        assert bits < 32 + c * d
        assert bits_needed(d, r + 1, levels) > bits


@given(d=st.integers(1, 10**6), levels=st.integers(1, 100), data=st.data())
def test_more_bits_never_keep_less(d, levels, data):
    few, many = sorted(data.draw(st.tuples(*[st.integers(0, 12 * d + 40)] * 2)))
    assert largest_r(d, few, levels) <= largest_r(d, many, levels)


@pytest.mark.parametrize("d", [1, 2, 17, 100, 1000])
@pytest.mark.parametrize("levels", [1, 4])
def test_the_cost_rises_to_one_top_and_falls_to_r_equal_d(d, levels):
    c = value_bits(levels)
    top = 2**c * (d + 1) // (2**c + 1)
    cost = [bits_needed(d, r, levels) for r in range(d + 1)]
    # equal neighbours only where (d − r + 1)/r is exactly 2^−c, so where the top is r = 2^c (d + 1)/(2^c + 1)
    steps = [after - before for before, after in pairwise(cost)]
    assert min(steps[:top], default=0) > -1e-9
    assert max(steps[top:], default=-1) < 0


@pytest.mark.parametrize("d", [4, 2**20, 2**27])
def test_a_power_of_two_is_named_by_whole_bits(d):
    assert index_bits(d, 1) == index_bits(d, d - 1) == log2(d)
    assert index_bits(d, 0) == index_bits(d, d) == 0
    assert largest_r(d, 32 + 4 + d.bit_length() - 1, 4) == 1
    assert largest_r(d, 32 + 4 + d.bit_length() - 2, 4) == 0


@pytest.mark.parametrize(("d", "r"), [(100, 33), (1000, 500), (20_000, 7_000)])
def test_log_gamma_against_integers(d, r):
    assert index_bits(d, r) == pytest.approx(log2(comb(d, r)), abs=1e-8)


@pytest.mark.parametrize("r", [10**3, 10**6, 10**7, 5 * 10**7, 9 * 10**7])
def test_log_gamma_at_a_hundred_million_against_stirlings_series(r):
    d = 10**8
    rest = d - r
    tail = (1 / (12 * d) - 1 / (12 * r) - 1 / (12 * rest)) / 0.6931471805599453
    # log2 C(d, r) = r log2(d/r) + (d−r) log2(d/(d−r)) + ½ log2(d / (2π r (d−r))) + tail
    stirling = fsum([r * log2(d / r), rest * log2(d / rest), 0.5 * log2(d / (2 * pi * r * rest)), tail])
    assert index_bits(d, r) == pytest.approx(stirling, abs=1e-5, rel=0)


@given(d=st.integers(1, 30), bits=st.integers(0, 1200), each=st.sampled_from([2, 4, 32]), data=st.data())
def test_a_limit_on_r_is_kept_within_the_budget(d, bits, each, data):
    most = data.draw(st.integers(0, d))
    allowed = [r for r in range(most + 1) if sparse_bits(d, r, each, 0) <= bits]
    assert largest_sparse(d, bits, each, 0, most) == max(allowed, default=0)


def test_the_examples():
    failed, tried = doctest.testmod(budget)
    assert tried > 0
    assert failed == 0
