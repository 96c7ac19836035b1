"""Payloads from somebody else: truncated, changed, made up, huge. And how long the true ones are."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offbeat.codec import Identity, PayloadError, Qsgd, SparseQuantised, TopK, bits_needed
from offbeat.codec.bitpacking import Reader
from offbeat.codec.budget import index_bits
from offbeat.codec.entropy_coding import (
    decode_gamma,
    decode_indices,
    encode_gamma,
    encode_indices,
    gamma_bits,
)
from offbeat.codec.selection import random_subset
from tests.codec.codec_cases import CODECS, codecs, name, rng, seeds, vectors
from tests.sampling import examples


def decoded(codec, payload, size):
    """The vector or None; nothing but the codec's own error is raised."""
    try:
        vector = codec.decode(payload, size)
    except PayloadError:
        return None
    assert vector.shape == (size,)
    assert vector.dtype == torch.float32
    assert bool(torch.isfinite(vector).all())
    return vector


@given(codec=codecs, payload=st.binary(max_size=400), size=st.integers(0, 200))
@examples(600)
def test_garbage(codec, payload, size):
    decoded(codec, payload, size)


@given(codec=codecs, count=st.integers(0, 70), rest=st.binary(max_size=120), size=st.integers(0, 60))
@examples(600)
def test_garbage_with_a_count_and_a_norm_in_front(codec, count, rest, size):
    decoded(codec, count.to_bytes(4, "little") + np.float32(2).tobytes() + rest, size)


@given(codec=codecs, vector=vectors, seed=seeds, data=st.data())
@examples(600)
def test_truncated_lengthened_and_changed(codec, vector, seed, data):
    payload, size = codec.encode(vector, None, rng(seed)), len(vector)
    if payload:
        cut = payload[: data.draw(st.integers(0, len(payload) - 1))]
        assert decoded(codec, cut, size) is None or not cut  # nothing at all is a vector of zeros
        at, bit = data.draw(st.integers(0, len(payload) - 1)), data.draw(st.integers(0, 7))
        changed = bytearray(payload)
        changed[at] ^= 1 << bit
        decoded(codec, bytes(changed), size)
    if payload or not isinstance(codec, SparseQuantised | TopK):
        assert decoded(codec, payload + data.draw(st.binary(min_size=1, max_size=9)), size) is None
    decoded(codec, payload, data.draw(st.integers(0, 100)))


@pytest.mark.parametrize("codec", CODECS, ids=name)
@pytest.mark.parametrize("fill", [0x00, 0x01, 0x55, 0xFF])
def test_a_huge_payload_for_a_small_vector_allocates_little(codec, fill):
    payload = (50).to_bytes(4, "little") + np.float32(1).tobytes() + bytes([fill]) * 2_000_000
    tracemalloc.start()
    try:
        assert decoded(codec, payload, 100) is None
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", [c for c in CODECS if not isinstance(c, Identity)], ids=name)
def test_a_count_that_the_payload_does_not_hold_allocates_nothing(codec):
    payload = (10**8).to_bytes(4, "little") + np.float32(1).tobytes() + bytes(100)
    tracemalloc.start()
    try:
        assert decoded(codec, payload, 10**8) is None
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ("0200", "too short"),
        ("00000000" + "00000040", "says 0 values"),
        ("05000000" + "00000040", "says 5 values"),
        ("02000000" + "0000c07f" + "7050", "norm is nan"),
        ("02000000" + "000080bf" + "7050", "norm is -1.0"),
        ("02000000" + "00000040" + "b050", "zero with a sign"),
        ("02000000" + "00000000" + "7050", "norm of zero"),
        ("02000000" + "00000040" + "7150", "spare bits"),
        ("02000000" + "00000040" + "7040", "not 2 gaps"),
        ("02000000" + "00000040" + "7051", "not 2 gaps"),
        ("02000000" + "00000040" + "7006", "index 6"),
        ("02000000" + "00000040" + "705000", "too long"),
        ("04000000" + "00000040" + "ff" + "50", "left over"),
    ],
)
def test_what_is_said(payload, message):
    # a true one is 02000000 00000040 70 50: see test_a_payload_by_hand
    with pytest.raises(PayloadError, match=message):
        SparseQuantised(levels=1).decode(bytes.fromhex(payload), 4)


def test_what_else_is_said():
    with pytest.raises(PayloadError, match="level 6: there are 4"):
        Qsgd().decode(np.float32(1).tobytes() + b"\x60", 1)
    with pytest.raises(PayloadError, match="not finite"):
        Identity().decode(np.float32(np.inf).tobytes(), 1)
    one = (1).to_bytes(4, "little")
    with pytest.raises(PayloadError, match="not finite"):
        TopK().decode(one + np.float32(np.nan).tobytes(), 1)
    seven = Qsgd(levels=7, coding="elias").encode(torch.ones(1), None, rng())
    with pytest.raises(PayloadError, match="level 7: there are 6"):
        Qsgd(levels=6, coding="elias").decode(seven, 1)
    with pytest.raises(PayloadError, match="not 10 gaps"):  # a zero byte more, within the longest there is
        decode_indices(Reader(encode_indices(np.arange(10), 1000) + b"\0"), 10, 1000)
    with pytest.raises(PayloadError, match="3 bytes: 1 values take 4"):
        Identity().decode(b"abc", 1)
    with pytest.raises(PayloadError, match="scaled by d/r"):
        SparseQuantised(fraction=0.1, unbiased=True).decode(
            (1).to_bytes(4, "little") + np.float32(3e38).tobytes() + bytes(4), 100
        )


@given(size=st.integers(1, 300), data=st.data())
@examples(400)
def test_any_set_of_indices_comes_back(size, data):
    indices = np.array(sorted(data.draw(st.sets(st.integers(0, size - 1)))), np.int64)
    coded = encode_indices(indices, size)
    back = decode_indices(Reader(coded), len(indices), size)
    assert (np.arange(size) if back is None else back).tolist() == indices.tolist()
    assert 8 * len(coded) <= index_bits(size, len(indices)) + 0.6 * len(indices) + 32


@given(numbers=st.lists(st.integers(1, 1000), max_size=50), more=st.integers(0, 3000))
def test_gamma_code(numbers, more):
    most = max(numbers, default=1) + more
    array = np.array(numbers, np.int32)
    coded = encode_gamma(array, most)
    assert decode_gamma(Reader(coded), len(numbers), most).tolist() == numbers
    # whole bytes for each of 2 ⌊log2 most⌋ sections
    assert 0 <= 8 * len(coded) - gamma_bits(array, most) <= 7 * 2 * (most.bit_length() - 1)
    if most >= 2048:
        assert gamma_bits(array, most) == sum(2 * (n.bit_length() - 1) + 1 for n in numbers)


SHARES = [1e-4, 0.001, 0.003, 0.01, 0.03, 0.05, 0.07, 0.1, 0.12, 0.15, 0.2, 0.25, 0.28, 0.3, 0.33, 0.36,
          0.38, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99, 1.0]  # fmt: skip


@pytest.mark.parametrize("d", [1, 10, 100, 1000, 21_840, 300_000])
@pytest.mark.parametrize(("levels", "over"), [(1, 0.025), (2, 0.02), (4, 0.02), (100, 0.02)])
def test_the_payload_is_as_long_as_equation_10_says(d, levels, over):
    vector = torch.ones(d)
    for share in SHARES:
        codec = SparseQuantised(levels=levels, fraction=share)
        needed = bits_needed(d, codec.kept(d, None), levels)
        assert 8 * len(codec.encode(vector, None, rng(d))) <= (1 + over) * needed + 64, share


@pytest.mark.parametrize("bits", [10_000, 100_000, 1_000_000, 3_000_000, 4_000_032])
def test_a_million_values(bits):
    vector = torch.from_numpy(rng(11).standard_normal(10**6).astype(np.float32))
    for codec in (SparseQuantised(), TopK(), TopK(levels=4)):
        applied, charged = codec.apply(vector, bits, rng(12))
        payload = codec.encode(vector, bits, rng(12))
        assert charged <= bits
        assert charged > 0.999 * bits - 64 or bits == 4_000_032
        assert 8 * len(payload) <= 1.02 * charged + 64
        assert torch.equal(codec.decode(payload, 10**6), applied)


def test_clustered_indices_take_little_more():
    size, count = 10**6, 10**4
    clustered = np.arange(count) * 3
    coded = encode_indices(clustered, size)
    assert 8 * len(coded) <= index_bits(size, count) + 0.6 * count
    assert (decode_indices(Reader(coded), count, size) == clustered).all()
    spread = encode_indices(random_subset(size, count, rng()), size)
    assert 8 * len(spread) <= 1.01 * index_bits(size, count)
