"""Perplexity: numbers by hand, ignored targets, extremes."""

from math import inf, isnan, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offbeat.core.errors import UsageError
from offbeat.metrics import Perplexity
from tests.metrics.cases import I, cuts, divided, multiclass, shuffled, t, value
from tests.sampling import examples

P = t([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]])
TARGET = t([0, 2], I)  # of probabilities 1/2 and 1/8: exp((ln 2 + ln 8) / 2) = √16


def test_numbers_by_hand():
    assert value(Perplexity(probabilities=True), (P, TARGET)) == pytest.approx(4)
    assert value(Perplexity(), (P.log() + 3, TARGET)) == pytest.approx(4)
    assert value(Perplexity(), (torch.zeros(2, 7), TARGET)) == pytest.approx(7)
    assert value(Perplexity(), (P.double().log(), TARGET)) == pytest.approx(4, rel=1e-15)


def test_sequences_with_ignored_tokens():
    logits = torch.stack([P.log(), torch.randn(2, 3)])
    target = torch.stack([TARGET, torch.full((2,), -100)])
    assert value(Perplexity(), (logits, target)) == pytest.approx(4)
    assert value(Perplexity(), (logits.movedim(-1, 1), target)) == pytest.approx(4)
    assert value(Perplexity(probabilities=True), (logits.softmax(-1), target)) == pytest.approx(4)
    assert isnan(value(Perplexity(), (logits[1:], target[1:])))
    logits[1] = nan  # where ignored
    assert value(Perplexity(), (logits, target)) == pytest.approx(4)
    assert isnan(value(Perplexity()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float64(dtype):
    case = torch.zeros(5000, 3, dtype=dtype), torch.zeros(5000, dtype=I)
    assert value(Perplexity(), case) == pytest.approx(3)


def test_extremes_fail_no_evaluation():
    assert value(Perplexity(), (t([[1e30, 0]]), t([1], I))) == inf
    assert value(Perplexity(probabilities=True), (t([[1.0, 0]]), t([1], I))) == inf
    assert value(Perplexity(), (t([[1e30, 0]]), t([0], I))) == 1
    assert isnan(value(Perplexity(), (t([[nan, 0]]), t([0], I))))


def test_other_kinds_are_refused():
    with pytest.raises(UsageError, match="Perplexity of binary predictions: it takes multi-class ones"):
        Perplexity().update(torch.zeros(3), torch.zeros(3))


@given(multiclass(), cuts, st.integers(0, 9))
@examples(100)
def test_neither_batches_nor_the_order_of_samples_change_it(case, cuts, seed):
    found = value(Perplexity(), *divided(*shuffled(*case, seed), cuts))
    assert found == pytest.approx(value(Perplexity(), case), rel=1e-6)
    assert found == pytest.approx(float(torch.nn.functional.cross_entropy(*case).exp()), rel=1e-5)
