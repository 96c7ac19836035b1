"""The equal-bit allocation of Eq. 9: by hand, its two properties, and what is refused."""

from math import inf, log2, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.algorithms.wireless.bandwidth import equal_bits
from offbeat.core.errors import UsageError

symbols = st.floats(1e-3, 1e9)
capacities = st.lists(st.floats(1e-6, 40.0), min_size=1, max_size=50)


def test_one_device_gets_all_symbols():
    assert equal_bits(100, [2.5]) == (250.0, [100.0])


def test_by_hand():
    # 1/1 + 1/2 + 1/4 = 7/4: 700 symbols carry 400 bits each, on 400, 200 and 100 symbols
    bits, each = equal_bits(700, [1.0, 2.0, 4.0])
    assert bits == pytest.approx(400.0)
    assert each == pytest.approx([400.0, 200.0, 100.0])


def test_the_papers_size():
    # 8 devices at the mean SNR of 13 dB share 300,000 symbols: 37,500 each, at log2(1 + 10^1.3) bits
    bits, each = equal_bits(300_000, [log2(1 + 10**1.3)] * 8)
    assert each == pytest.approx([37_500.0] * 8)
    assert bits == pytest.approx(37_500 * 4.389059, rel=1e-6)


@given(symbols, capacities)
def test_symbols_add_up_and_bits_are_equal(n, c):
    bits, each = equal_bits(n, c)
    assert sum(each) == pytest.approx(n, rel=1e-12)
    assert [n_k * c_k for n_k, c_k in zip(each, c, strict=True)] == pytest.approx([bits] * len(c), rel=1e-12)
    assert all(n_k > 0 for n_k in each)


@given(symbols, capacities)
def test_a_better_channel_gets_no_more_symbols(n, c):
    _, each = equal_bits(n, c)
    order = np.argsort(c)
    assert (np.diff(np.array(each)[order]) <= 0).all()


@given(symbols, capacities, st.randoms())
def test_it_does_not_depend_on_the_order(n, c, rng):
    order = list(range(len(c)))
    rng.shuffle(order)
    bits, each = equal_bits(n, c)
    assert equal_bits(n, [c[k] for k in order]) == (bits, [each[k] for k in order])


@pytest.mark.parametrize("faint", [1e-300, 5e-324])
def test_a_faint_channel_gets_nearly_all(faint):
    bits, each = equal_bits(100, [faint, 4.0])
    assert each == pytest.approx([100.0, 0.0])
    assert bits == pytest.approx(100 * faint)


def test_whole_numbers_and_arrays_will_do():
    assert equal_bits(30, [1, 2]) == equal_bits(30.0, np.array([1.0, 2.0]))


@pytest.mark.parametrize("wrong", [0.0, -1.0, inf, nan])
def test_a_capacity_must_be_above_0(wrong):
    with pytest.raises(
        UsageError, match=r"capacities\[1\] = .* bits per symbol is not allowed: .* more than 0"
    ):
        equal_bits(100, [1.0, wrong])


@pytest.mark.parametrize("wrong", [0, -5, inf, nan])
def test_symbols_must_be_above_0(wrong):
    with pytest.raises(UsageError, match=r"symbols = .* is not allowed: give a number above 0"):
        equal_bits(wrong, [1.0])


def test_somebody_must_send():
    with pytest.raises(UsageError, match="capacities is empty"):
        equal_bits(100, [])
