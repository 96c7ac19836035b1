"""Metrics from counts: numbers by hand, scikit-learn's, ignored targets, any division into batches."""

from math import isnan, nan

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offbeat.core.errors import UsageError
from offbeat.metrics import F1, Accuracy, BalancedAccuracy, Dice, ExactMatch
from tests.metrics.cases import (
    I,
    any_kind,
    binary,
    cuts,
    divided,
    multiclass,
    multilabel,
    shuffled,
    t,
    value,
)
from tests.sampling import examples

METRICS = [Accuracy, BalancedAccuracy, F1, Dice]

# Predicted 0 0 1 1 2 0; targets 0 1 1 1 2 2. Class 0: TP 1, FP 2, FN 0. Class 1: TP 2, FP 0, FN 1. Class 2:
# TP 1, FP 0, FN 1.
THREE = (t([[3, 1, 0], [2, 1, 0], [0, 4, 1], [1, 2, 0], [0, 1, 5], [9, 0, 8]]), t([0, 1, 1, 1, 2, 2], I))
# Predicted 1 1 0 0 0; targets 1 0 1 0 0. A logit of 0 is not above 0.
TWO = (t([2.0, 0.5, -1, -3, 0]), t([1, 0, 1, 0, 0], I))
# Predicted 1 0 | 1 1 | 0 0 | 0 1, targets 1 0 | 0 1 | 1 0 | 0 1.
LABELS = (t([[1.0, -1], [1, 1], [-1, -1], [-2, 3]]), t([[1.0, 0], [0, 1], [1, 0], [0, 1]]))


@pytest.mark.parametrize(
    ("metric", "case", "expected"),
    [
        (Accuracy(), THREE, 4 / 6),
        (Accuracy(), TWO, 3 / 5),
        (Accuracy(), LABELS, 6 / 8),
        (BalancedAccuracy(), THREE, (1 + 2 / 3 + 1 / 2) / 3),
        (BalancedAccuracy(), TWO, (1 / 2 + 2 / 3) / 2),
        (BalancedAccuracy(), LABELS, (1 / 2 + 1) / 2),  # label 0: recalls 1/2 and 1/2
        (F1(), THREE, (2 / 4 + 4 / 5 + 2 / 3) / 3),
        (F1(), TWO, (2 / 4 + 4 / 6) / 2),
        (F1(), LABELS, (2 / 4 + 1) / 2),
        (Dice(), THREE, (2 / 4 + 4 / 5 + 2 / 3) / 3),
        (Dice(include_background=False), THREE, (4 / 5 + 2 / 3) / 2),
        (Dice(), TWO, 2 / 4),
        (Dice(include_background=False), TWO, 2 / 4),
        (Dice(include_background=False), LABELS, (2 / 4 + 1) / 2),
        (ExactMatch(), LABELS, 2 / 4),
    ],
)
def test_numbers_by_hand(metric, case, expected):
    assert value(metric, case) == pytest.approx(expected, rel=1e-15)
    assert value(metric, *divided(*case, [1, 3])) == value(metric, case)


def test_of_equal_scores_the_first_class_is_predicted():
    assert value(Accuracy(), (t([[1, 1], [1, 1]]), t([0, 1], I))) == 0.5


@pytest.mark.parametrize("metric", METRICS)
def test_probabilities_are_cut_at_a_half(metric):
    scores, target = TWO
    assert value(metric(probabilities=True), (t([0.9, 0.6, 0.4, 0.1, 0.5]), target)) == value(metric(), TWO)
    with pytest.raises(UsageError, match=r"scores outside \[0, 1\] with probabilities = True"):
        metric(probabilities=True).update(scores, target)


def test_two_scores_and_one_logit_give_the_same_numbers():
    scores, target = TWO
    both = torch.stack([torch.zeros(5), scores], 1)
    for metric in (Accuracy(), BalancedAccuracy(), F1()):
        assert value(metric, (both, target)) == value(metric, TWO)


def test_ignored_targets_do_not_count():
    scores, target = THREE
    more = torch.cat([scores, scores]), torch.cat([target, torch.full((6,), -100)])
    for metric in METRICS:
        assert value(metric(), more) == value(metric(), THREE)
    scores, target = TWO
    more = torch.cat([scores, t([9.0])]), torch.cat([target, t([-100], I)])
    for metric in METRICS:
        assert value(metric(), more) == value(metric(), TWO)
        assert value(metric(), (more[0], more[1].float())) == value(metric(), TWO)
    scores, target = LABELS
    target = target.clone()
    target[1, 0] = target[2] = -100  # left: 1 0 | . 1 | . . | 0 1, all right
    for metric in (*METRICS, ExactMatch):
        assert value(metric(), (scores, target)) == 1
    half = t([[1.0, 1], [1, 1]]), t([[1.0, 1], [-100, 0]])  # sample 1 is wrong in its only label
    assert value(ExactMatch(), half) == 0.5
    wrong = torch.where(target == 1, -1.0, 1.0)
    assert value(Accuracy(), (wrong, target)) == value(ExactMatch(), (wrong, target)) == 0


def test_masks_and_sequences_are_counted_by_position():
    torch.manual_seed(3)
    masks, truth = torch.randn(2, 1, 4, 5), torch.randint(2, (2, 4, 5))
    flat = masks.flatten(), truth.flatten()
    tokens, words = torch.randn(2, 4, 3), torch.randint(3, (2, 4))
    for metric in METRICS:
        expected = value(metric(), flat)
        assert value(metric(), (masks, truth)) == value(metric(), (masks, truth[:, None].float())) == expected
        expected = value(metric(), (tokens.flatten(0, 1), words.flatten()))
        assert value(metric(), (tokens, words)) == expected
        assert value(metric(), (tokens.movedim(-1, 1), words)) == expected


def test_empty_masks_have_no_dice_coefficient():
    nothing = -torch.ones(2, 1, 3, 3), torch.zeros(2, 3, 3)
    assert isnan(value(Dice(), nothing))
    assert value(Dice(), nothing, (torch.ones(1, 1, 3, 3), torch.ones(1, 3, 3))) == 1


@pytest.mark.parametrize("metric", [*METRICS, ExactMatch])
def test_without_a_target_a_metric_is_nan(metric):
    assert isnan(value(metric()))
    assert isnan(value(metric(), (torch.zeros(2, 2), torch.full((2, 2), -100))))
    assert isnan(value(metric(), (torch.zeros(0, 2), torch.zeros(0, 2))))


def test_exact_match_is_of_multi_label_predictions_only():
    with pytest.raises(UsageError, match="ExactMatch of binary predictions: it takes multi-label ones"):
        ExactMatch().update(*TWO)


def test_scores_that_are_not_finite_fail_no_evaluation():
    for scores, target in (THREE, TWO, LABELS):
        for metric in METRICS:
            for broken in (nan, float("inf"), -float("inf")):
                assert 0 <= value(metric(), (torch.full_like(scores, broken), target)) <= 1
            value(metric(probabilities=True), (torch.full_like(scores, nan), target))


@given(any_kind, cuts, st.integers(0, 9))
@examples(100)
def test_neither_batches_nor_the_order_of_samples_change_a_bit(case, cuts, seed):
    for metric in METRICS:
        expected = value(metric(), case)
        found = value(metric(), *divided(*shuffled(*case, seed), cuts))
        assert found == expected or (isnan(found) and isnan(expected))


def sk():
    return pytest.importorskip("sklearn.metrics")


@given(st.one_of(binary(), multiclass()))
@examples(100)
def test_classes_as_scikit_learn_counts_them(case):
    scores, target = case
    predicted = (scores > 0).long() if scores.ndim == 1 else scores.argmax(1)
    y, p = target.numpy(), predicted.numpy()
    assert value(Accuracy(), case) == pytest.approx(sk().accuracy_score(y, p))
    f1 = sk().f1_score(y, p, average="macro", zero_division=np.nan)
    assert value(F1(), case) == pytest.approx(f1)
    recall = sk().recall_score(y, p, average="macro", labels=np.unique(y))
    assert value(BalancedAccuracy(), case) == pytest.approx(recall)
    if set(p) <= set(y) and len(set(y)) > 1:  # scikit-learn warns otherwise
        assert value(BalancedAccuracy(), case) == pytest.approx(sk().balanced_accuracy_score(y, p))


@given(multilabel())
@examples(100)
def test_labels_as_scikit_learn_counts_them(case):
    scores, target = case
    y, p = target.numpy(), (scores > 0).long().numpy()
    assert value(ExactMatch(), case) == pytest.approx(sk().accuracy_score(y, p))
    assert value(Accuracy(), case) == pytest.approx(sk().accuracy_score(y.ravel(), p.ravel()))
    f1 = sk().f1_score(y, p, average="macro", zero_division=np.nan)
    assert value(F1(), case) == pytest.approx(f1, nan_ok=True)
    assert value(Dice(), case) == pytest.approx(f1, nan_ok=True)
    each = [
        np.mean([sk().recall_score(a, b, pos_label=k) for k in np.unique(a)])
        for a, b in zip(y.T, p.T, strict=True)
    ]
    assert value(BalancedAccuracy(), case) == pytest.approx(np.mean(each))


@pytest.mark.cuda
def test_metrics_take_tensors_on_a_gpu():
    for case in (THREE, TWO, LABELS):
        for metric in METRICS:
            assert value(metric(), tuple(v.cuda() for v in case)) == value(metric(), case)
