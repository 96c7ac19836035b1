"""Both faces of every codec agree bit for bit, within the budget; what cannot be encoded is refused."""

from math import log, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from offbeat.codec import (
    Codec,
    CodecSpec,
    Identity,
    Int8,
    PayloadError,
    Qsgd,
    Rounded,
    SparseQuantised,
    TopK,
    bits_needed,
)
from offbeat.core.errors import UsageError
from tests.codec.codec_cases import CODECS, codecs, name, rng, same, seeds, vectors
from tests.sampling import examples

SPEC = TypeAdapter(CodecSpec)


@given(codecs, st.integers(0, 6000), seeds)
@examples(60)
def test_what_is_charged_is_known_before(codec: Codec, size: int, seed: int) -> None:
    vector = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    bits = codec.bits(size)  # type: ignore[attr-defined]
    assert bits is None or bits == codec.apply(vector, None, rng(seed))[1]


@given(codec=codecs, vector=vectors, bits=st.none() | st.integers(0, 3000), seed=seeds)
@examples(600)
def test_what_is_decoded_is_what_is_applied(codec, vector, bits, seed):
    before = vector.clone()
    try:
        applied, charged = codec.apply(vector, bits, rng(seed))
    except UsageError:
        assert isinstance(codec, Identity | Rounded | Int8 | Qsgd)
        assert bits is not None
        with pytest.raises(UsageError, match="bits"):
            codec.encode(vector, bits, rng(seed))
        return
    payload = codec.encode(vector, bits, rng(seed))
    assert same(codec.decode(payload, len(vector)), applied)
    assert bits is None or 0 <= charged <= bits
    planes = 14 * codec.levels.bit_length() if isinstance(codec, Qsgd) else 0
    assert 8 * len(payload) <= 1.035 * charged + 64 + 0.6 * len(vector) + planes
    assert applied.shape == vector.shape
    assert same(vector, before)
    again = codec.apply(vector, bits, rng(seed))
    assert same(again[0], applied)
    assert again[1] == charged


@pytest.mark.parametrize("codec", CODECS, ids=name)
def test_both_faces_leave_the_generator_where_the_other_does(codec):
    vector = torch.from_numpy(rng(7).standard_normal(3000).astype(np.float32))
    one, other = rng(8), rng(8)
    codec.apply(vector, None, one)
    codec.encode(vector, None, other)
    assert one.random() == other.random()


@pytest.mark.parametrize("codec", CODECS, ids=name)
def test_the_result_is_new_and_can_be_written_to(codec):
    vector = torch.ones(16)
    for result in (
        codec.apply(vector, None, rng())[0],
        codec.decode(codec.encode(vector, None, rng()), 16),
    ):
        result += 1
    assert vector.tolist() == [1.0] * 16


@pytest.mark.parametrize("codec", CODECS, ids=name)
def test_what_cannot_be_encoded(codec):
    for bad in (float("inf"), float("-inf"), float("nan")):
        vector = torch.zeros(50)
        vector[17] = bad
        for face in (codec.apply, codec.encode):
            with pytest.raises(UsageError, match="finite"):
                face(vector, None, rng())
    for wrong in (torch.zeros(3, 3), torch.zeros(3, dtype=torch.float64), torch.zeros(())):
        with pytest.raises(UsageError, match="one dimension of float32"):
            codec.apply(wrong, None, rng())
    with pytest.raises(UsageError, match="bits = -1"):
        codec.apply(torch.zeros(3), -1, rng())
    with pytest.raises(UsageError, match="size = -1"):
        codec.decode(b"", -1)
    with pytest.raises(UsageError, match="size = 1000000000"):
        codec.decode(b"", 10**9)


@pytest.mark.parametrize("codec", CODECS, ids=name)
def test_a_view_with_gaps_and_a_gradient_is_a_vector(codec):
    vector = torch.from_numpy(rng(9).standard_normal((40, 2)).astype(np.float32))
    column = vector[:, 1].requires_grad_()
    contiguous = column.detach().clone()
    assert codec.encode(column, None, rng()) == codec.encode(contiguous, None, rng())


def test_identity_is_float32_little_endian():
    assert Identity().encode(torch.tensor([1.0, -0.0]), 64, rng()) == bytes.fromhex("0000803f00000080")
    with pytest.raises(UsageError, match="bits = 63 is not enough for codec identity: this vector takes 64"):
        Identity().apply(torch.zeros(2), 63, rng())


def test_sparse_quantised_charges_equation_10():
    vector = torch.ones(21_840)
    codec = SparseQuantised()
    _, charged = codec.apply(vector, 60_000, rng())
    assert codec.kept(21_840, 60_000) == 9592
    assert charged == np.ceil(bits_needed(21_840, 9592, 4)) <= 60_000
    assert codec.apply(vector, 87_392, rng())[1] == 87_392


def test_a_payload_by_hand():
    # d = 4, r = 2 (fraction ½), ν = 1; u is a multiple of (1, 1, 1, 1), so each kept value is ±‖ũ‖ or 0
    codec = SparseQuantised(levels=1, fraction=0.5)
    # r = 2; norm 2.0; two bits each, sign then level: 01 11 0000; n = 2 of 4 has m = 1, so the bitmap: 0101
    payload = bytes.fromhex("02000000" + "00000040" + "70" + "50")
    assert codec.decode(payload, 4).tolist() == [0, 2, 0, -2]


def test_nothing_is_sent_where_not_even_one_coordinate_fits():
    for codec in (SparseQuantised(), TopK(), TopK(levels=4)):
        applied, charged = codec.apply(torch.ones(100), 32, rng())
        assert charged == 0
        assert not applied.any()
        assert codec.encode(torch.ones(100), 32, rng()) == b""


def test_scaling_makes_random_sparsification_unbiased():
    d, r, T = 20, 5, 4000
    u = torch.linspace(1, 2, d)
    plain, scaled = SparseQuantised(fraction=r / d), SparseQuantised(fraction=r / d, unbiased=True)
    assert same(4 * plain.apply(u, None, rng(5))[0], scaled.apply(u, None, rng(5))[0])
    g = rng(6)
    mean = torch.stack([scaled.apply(u, None, g)[0] for _ in range(T)]).double().mean(dim=0)
    most = 2 * sqrt(r) * d / r  # |û_i| ≤ ‖ũ‖ d/r ≤ 2 √r d/r; values lie in an interval of this length
    # Hoeffding over d coordinates: fails with probability at most 1e-9
    assert (mean - u).abs().max() < most * sqrt(log(2 * d / 1e-9) / (2 * T))
    with pytest.raises(UsageError, match="scaled by d/r"):
        scaled.apply(torch.full((20,), 1e38), None, rng())


def test_top_k_keeps_the_largest():
    u = torch.tensor([1.0, -5.0, 0.0, 4.0, -4.0, 2.0])
    assert TopK(fraction=0.5).apply(u, None, rng())[0].tolist() == [0, -5, 0, 4, -4, 0]
    # of 4 and −4 the first: log2 C(6, 2) + 64 = 67.9 bits
    assert TopK().apply(u, 68, rng()) == (pytest.approx(torch.tensor([0.0, -5, 0, 4, 0, 0])), 68)
    assert TopK().kept(6, 67) == 1


def test_qsgd_refuses_a_budget_that_is_too_small():
    vector = torch.ones(100)
    assert Qsgd().apply(vector, 432, rng())[1] == 432
    with pytest.raises(UsageError, match="bits = 431 is not enough for codec qsgd: this vector takes 432"):
        Qsgd().apply(vector, 431, rng())
    with pytest.raises(UsageError, match="codec qsgd"):
        Qsgd(coding="elias").encode(vector, 60, rng())


def test_elias_is_shorter_where_most_levels_are_zero():
    vector = torch.from_numpy(rng(1).standard_normal(10_000).astype(np.float32))
    assert Qsgd(coding="elias").apply(vector, None, rng())[1] < 0.1 * Qsgd().apply(vector, None, rng())[1]


def test_options_make_a_codec():
    assert SPEC.validate_python({"kind": "sparse_quantised", "levels": 8}) == SparseQuantised(levels=8)
    assert SPEC.validate_python({"kind": "top_k"}) == TopK()
    assert SPEC.validate_python({"kind": "qsgd", "coding": "elias"}) == Qsgd(coding="elias")
    assert SPEC.validate_python({"kind": "identity"}) == Identity()
    for wrong in (
        {"kind": "zip"},
        {"kind": "qsgd", "bits": 3},
        {"kind": "top_k", "levels": 0},
        {"kind": "sparse_quantised", "levels": 2**15},
        {"kind": "sparse_quantised", "fraction": 0},
    ):
        with pytest.raises(ValidationError):
            SPEC.validate_python(wrong)


def test_the_payloads_error_is_a_value_error_of_ours():
    from offbeat import OffbeatError

    assert issubclass(PayloadError, OffbeatError)
    assert issubclass(PayloadError, ValueError)
