"""AUROC: numbers by hand with ties, scikit-learn's, undefined cases, any division into batches."""

from decimal import Decimal, getcontext
from math import isnan, nan

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offbeat.metrics import AUROC
from offbeat.metrics.auroc import area, log_odds
from tests.metrics.cases import (
    I,
    any_kind,
    binary,
    cuts,
    divided,
    halves,
    multiclass,
    multilabel,
    shuffled,
    t,
    value,
)
from tests.sampling import examples


def test_pairs_in_order_by_hand():
    # Positives 0.8, 0.4, 0.4; negatives 0.4, 0.1. 0.8 wins 2, each 0.4 ties 1 and wins 1: 4 + 2/2 = 5 of 6.
    case = t([0.8, 0.4, 0.4, 0.4, 0.1]), t([1, 1, 1, 0, 0], I)
    assert value(AUROC(), case) == 5 / 6
    assert value(AUROC(), (-case[0], case[1])) == 1 / 6
    assert value(AUROC(), (torch.zeros(5), case[1])) == 1 / 2
    assert value(AUROC(), (case[0][:, None], case[1][:, None].float())) == 5 / 6
    assert value(AUROC(), *divided(*case, [1, 1, 4])) == 5 / 6


def test_zero_and_minus_zero_tie():
    assert area(t([0.0, -0.0]), t([1, 0]) == 1) == 1 / 2


def test_scores_far_from_zero_keep_their_order():
    scores = t([40.0, 50, 60, 70])  # their sigmoids are all 1 in float32
    assert value(AUROC(), (scores, t([0, 0, 1, 1]))) == 1
    assert value(AUROC(), (t([-float("inf"), 0, 1, float("inf")]), t([0, 0, 1, 1]))) == 1


def test_logits_that_say_the_same_are_a_tie_however_their_softmax_is_rounded():
    for scores in (
        [[-3.0, -3.0, -1.5], [0.0, 0.0, 1.5]],  # they differ by a constant
        [[-3.0, -0.5, 2.0], [-3.0, 2.0, -0.5]],  # or in the order of the other classes
        [[-3.0, -3.0, -0.5], [-1.0, 1.5, -1.0], [7.0, 9.5, 7.0]],
    ):
        odds = log_odds(t(scores).double())
        assert len(odds[:, 0].unique()) == 1
    pairs = t([[0.5, 1.0], [-5.5, -5.0], [3.0, 3.5], [-6.0, -5.5]])
    assert value(AUROC(), (pairs, t([0, 1, 1, 0], I))) == 1 / 2


def test_certain_samples_keep_their_order():
    """The softmax of class 0 is 1 of all of them, in float64 too."""
    logits = t([[100.0, 0, 0], [90, 0, 0], [80, 0, -9], [80, 0, 0]])
    for target, expected in ([0, 0, 1, 2], 1), ([0, 1, 0, 2], 3 / 4), ([1, 0, 2, 0], 1 / 4):
        scores = log_odds(logits.double())[:, 0]
        assert area(scores, t(target, I) == 0) == expected
    masked = torch.tensor([[0.0, -float("inf"), -float("inf")], [0, -1, -float("inf")], [0, -1, -1]])
    assert log_odds(masked.double())[:, 0].tolist() == [2, 1, 0]


def test_an_infinite_largest_logit_is_undefined():
    inf = float("inf")
    assert isnan(value(AUROC(), (t([[inf, 0.0], [0, 1]]), t([0, 1], I))))
    assert isnan(value(AUROC(), (t([[-inf, -inf], [0, 1]]), t([0, 1], I))))
    assert value(AUROC(), (t([[0, -inf], [-inf, 1]]), t([0, 1], I))) == 1


def exact_areas(logits: torch.Tensor, target: torch.Tensor) -> list[float]:
    """The area of each class that has one, from a softmax of 60 digits; nearer than 10⁻⁵⁰ is a tie."""
    getcontext().prec = 60
    rows = [[Decimal(z).exp() for z in row] for row in logits.tolist()]
    found = []
    for k in range(logits.shape[1]):
        p = [row[k] / sum(row) for row in rows]
        pairs = [
            1.0 if p[i] - p[j] > Decimal("1e-50") else 0.5 if abs(p[i] - p[j]) <= Decimal("1e-50") else 0.0
            for i in range(len(p)) if target[i] == k
            for j in range(len(p)) if target[j] != k
        ]  # fmt: skip
        if pairs:
            found.append(sum(pairs) / len(pairs))
    return found


@given(multiclass())
@examples(100)
def test_classes_as_a_softmax_of_many_digits_ranks_them(case):
    expected = exact_areas(*case)
    found = value(AUROC(), case)
    assert found == pytest.approx(np.mean(expected), abs=1e-12) if expected else isnan(found)


def test_many_samples_full_of_ties_as_a_softmax_of_many_digits_ranks_them():
    """Also in another order, which puts them elsewhere in the vector instructions."""
    rng = np.random.default_rng(0)
    logits = t(rng.integers(-3, 4, (60, 4)) / 2.0 + rng.integers(-9, 10, (60, 1)))
    target = t(rng.integers(0, 4, 60), I)
    expected = np.mean(exact_areas(logits, target))
    for seed in range(5):
        assert value(AUROC(), shuffled(logits, target, seed)) == pytest.approx(expected, abs=1e-14)


def test_classes_are_ranked_by_their_softmax():
    # The scores of class 0 alone would rank sample 1 above sample 0; its softmax does not.
    scores, target = t([[1.0, 0], [2, 4]]), t([0, 1], I)
    assert value(AUROC(), (scores, target)) == 1
    assert value(AUROC(probabilities=True), (scores.softmax(1), target)) == 1


def test_the_mean_of_three_classes_by_hand():
    p = t([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]])
    target = t([0, 1, 1, 2], I)
    # Class 0: .5 against .25 .5 .25: 2.5/3. Class 1: .5 and .25 against .25 .25: 2 + 2/2 of 4. Class 2: 3/3.
    expected = (2.5 / 3 + 3 / 4 + 1) / 3
    assert value(AUROC(probabilities=True), (p, target)) == pytest.approx(expected, rel=1e-15)
    assert value(AUROC(), (p.log(), target)) == pytest.approx(expected, rel=1e-15)


def test_a_class_without_positives_or_negatives_does_not_count():
    p, target = t([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.5, 0.25, 0.25]]), t([0, 1, 0], I)
    assert value(AUROC(probabilities=True), (p, target)) == 1  # classes 0 and 1; none is of class 2
    labels = t([[1.0, 1], [0, 1], [0, 1]])
    assert value(AUROC(), (t([[1.0, 0], [2, 0], [0, 0]]), labels)) == 1 / 2  # label 1 is always there


def test_undefined_is_nan():
    assert isnan(value(AUROC()))
    for target in (torch.zeros(3), torch.ones(3), torch.full((3,), -100)):
        assert isnan(value(AUROC(), (t([1, 2, 3]), target)))
    assert isnan(value(AUROC(), (torch.zeros(2, 3), t([1, 1], I))))
    assert isnan(value(AUROC(), (torch.zeros(2, 3), torch.ones(2, 3))))
    assert isnan(value(AUROC(), (t([1, nan, 3]), t([0, 1, 0]))))
    assert isnan(value(AUROC(), (t([[1, nan], [3, 1]]), t([0, 1], I))))
    assert isnan(value(AUROC(), (t([[1, nan], [3, 1]]), t([[0, 1], [1, 0]], I))))


def test_ignored_targets_do_not_count():
    assert value(AUROC(), (t([1, 2, 9]), t([0, 1, -100]))) == 1
    tokens = torch.eye(3).repeat(2, 1, 1)[:, :2]
    assert value(AUROC(), (tokens, t([[0, 1], [-100, 1]], I))) == 1
    labels = t([[0, -100], [1, 0], [-100, 1]], I)
    assert value(AUROC(), (t([[0, 9], [1, 0], [-1, 1]]), labels)) == 1


def test_masks_are_ranked_by_position():
    torch.manual_seed(2)
    masks, truth = torch.randn(2, 1, 4, 5), torch.randint(2, (2, 4, 5))
    assert value(AUROC(), (masks, truth)) == value(AUROC(), (masks.flatten(), truth.flatten()))


def test_what_is_kept_is_a_copy():
    scores, target, metric = t([0, 1]), t([0, 1]), AUROC()
    metric.update(scores, target)
    scores.zero_()
    assert metric.compute() == 1
    scores, target, metric = t([[0, 0], [1, 1]]), t([[0, 0], [1, 1]], I), AUROC()  # multi-label
    metric.update(scores, target)
    scores.zero_()
    target.zero_()
    assert metric.compute() == 1


@given(any_kind, cuts, st.integers(0, 9))
@examples(100)
def test_neither_batches_nor_the_order_of_samples_change_a_bit(case, cuts, seed):
    expected = value(AUROC(), case)
    found = value(AUROC(), *divided(*shuffled(*case, seed), cuts))
    assert found == expected or (isnan(found) and isnan(expected))


def reference(target, scores, **options):
    return pytest.importorskip("sklearn.metrics").roc_auc_score(target.numpy(), scores.numpy(), **options)


@given(binary())
@examples(100)
def test_binary_as_scikit_learn_has_it(case):
    scores, target = case
    if 0 < target.sum() < len(target):
        assert value(AUROC(), case) == pytest.approx(reference(target, scores))
    else:
        assert isnan(value(AUROC(), case))


@given(multilabel())
@examples(100)
def test_labels_as_scikit_learn_has_them(case):
    scores, target = case
    defined = (target.sum(0) > 0) & (target.sum(0) < len(target))
    if not defined.any():
        assert isnan(value(AUROC(), case))
        return
    each = [reference(target[:, k], scores[:, k]) for k in defined.nonzero()[:, 0]]
    assert value(AUROC(), case) == pytest.approx(np.mean(each))
    if defined.all():
        assert value(AUROC(), case) == pytest.approx(reference(target, scores, average="macro"))


SIXTEENTHS = st.lists(st.integers(0, 16), min_size=2, max_size=2).map(sorted)
SHARES = SIXTEENTHS.map(
    lambda cut: [cut[0] / 16, (cut[1] - cut[0]) / 16, (16 - cut[1]) / 16]
)  # exact, with ties


@given(st.lists(st.tuples(SHARES, st.integers(0, 2)), min_size=1, max_size=9))
@examples(100)
def test_classes_as_scikit_learn_has_them(rows):
    rows = [
        ([1.0, 0.0, 0.0], 0),
        ([0.25, 0.5, 0.25], 1),
        ([0.25, 0.5, 0.25], 2),
        *rows,
    ]  # every class is there
    scores, target = t([share for share, _ in rows]), t([label for _, label in rows], I)
    expected = reference(target, scores, multi_class="ovr", average="macro")
    assert value(AUROC(probabilities=True), (scores, target)) == pytest.approx(expected)


@given(st.lists(st.tuples(halves, st.integers(0, 1)), min_size=2, max_size=9))
@examples(100)
def test_two_scores_and_one_logit_give_the_same_number(rows):
    scores, target = t([score for score, _ in rows]), t([label for _, label in rows], I)
    both = torch.stack([torch.zeros(len(rows)), scores], 1)
    assert value(AUROC(), (both, target)) == pytest.approx(value(AUROC(), (scores, target)), nan_ok=True)
