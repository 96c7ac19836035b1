"""Shapes and dtypes: the table of kinds, and what is refused."""

import pytest
import torch
from torch import Tensor

from offbeat.core.errors import UsageError
from offbeat.metrics import Accuracy, BalancedAccuracy, MeanAbsoluteError, RootMeanSquaredError, kind_of
from offbeat.metrics.kinds import labelled, paired
from tests.metrics.cases import F, I, t, value

N, C, T, H, W, L = 4, 3, 5, 6, 7, 2
LABELS = [torch.int64, torch.int32, torch.uint8, torch.bool]


def zeros(shape: tuple[int, ...], dtype: torch.dtype = F) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("scores", "target", "kind"),
    [
        ((N, C), (N,), "multi-class"),
        ((N, 2), (N,), "multi-class"),
        ((N, C, H, W), (N, H, W), "multi-class"),
        ((N, T, C), (N, T), "multi-class"),
        ((N, 1, C), (N, 1), "multi-class"),  # a sequence of one token
        ((N, C, 1), (N, 1), "multi-class"),
        ((N,), (N,), "binary"),
        ((N, 1), (N,), "binary"),
        ((N,), (N, 1), "binary"),
        ((N, 1), (N, 1), "binary"),
        ((N, 1, H, W), (N, H, W), "binary"),
        ((N, 1, H, W), (N, 1, H, W), "binary"),
        ((N, H, W), (N, H, W), "binary"),
        ((N, H, W), (N, 1, H, W), "binary"),
        ((N, 1, 1), (N, 1), "binary"),
        ((N, 1, T, H, W), (N, T, H, W), "binary"),
        ((N, L), (N, L), "multi-label"),
        ((0, C), (0,), "multi-class"),
        ((0,), (0,), "binary"),
    ],
)
@pytest.mark.parametrize("dtype", LABELS)
def test_kinds_of_classification(scores, target, kind, dtype):
    assert kind_of(zeros(scores), zeros(target, dtype)) == kind
    assert labelled(zeros(scores), zeros(target, dtype)).kind == kind
    if kind != "multi-class" and scores[0]:
        assert kind_of(zeros(scores), zeros(target)) == kind
        assert kind_of(zeros(scores), zeros(target) + 0.5) == "regression"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("labels", [*LABELS, torch.float16, torch.float32])
def test_one_logit_takes_targets_of_any_dtype(dtype, labels):
    scores, target = t([-1, 2, 3, 0], dtype), t([0, 1, 0, 0], labels)
    for s in (scores, scores[:, None]):
        for y in (target, target[:, None]):
            assert value(Accuracy(), (s, y)) == 0.75


@pytest.mark.parametrize(
    ("scores", "target", "dtype"),
    [
        ((N,), (N + 1,), I),
        ((N, C), (N, 1), I),
        ((N, 0), (N,), I),
        ((N, C), (N,), F),
        ((N, C), (N, T), I),
        ((N, C, T), (N, H), I),
        ((N, L, H, W), (N, L, H, W), I),
        ((N, 1), (1, N), I),
        ((N, 1), (N, N), I),
        ((), (), I),
        ((N, C), (), I),
    ],
)
def test_other_shapes_are_refused_in_one_sentence(scores, target, dtype):
    with pytest.raises(UsageError) as error:
        Accuracy().update(zeros(scores), zeros(target, dtype))
    text = str(error.value)
    assert "\n" not in text
    assert f"float32 {list(scores)} with target {str(dtype).removeprefix('torch.')} {list(target)}" in text
    assert "[N, C, ...]" in text


def test_scores_that_are_no_floating_point_numbers_are_refused():
    for dtype in (I, torch.complex64, torch.bool):
        with pytest.raises(UsageError, match="floating-point"):
            Accuracy().update(zeros((N,), dtype), zeros((N,), I))
        with pytest.raises(UsageError, match="floating-point"):
            MeanAbsoluteError().update(zeros((N,), dtype), zeros((N,)))
    with pytest.raises(UsageError, match="fits no kind"):
        kind_of(zeros((N,)), zeros((N,), torch.complex64))


def test_targets_out_of_range_are_refused():
    with pytest.raises(UsageError, match=r"the target 3: with 3 classes targets are 0 to 2"):
        Accuracy().update(zeros((2, 3)), t([0, 3], I))
    with pytest.raises(UsageError, match="the target -1: "):
        Accuracy().update(zeros((2, 3)), t([0, -1], I))
    with pytest.raises(UsageError, match=r"the target 0.5: with one score for each target"):
        Accuracy().update(zeros((2,)), t([0, 0.5]))
    with pytest.raises(UsageError, match=r"the target 2: "):
        Accuracy().update(zeros((2, 1)), t([1, 2], I))
    with pytest.raises(UsageError, match=r"the target 156: "):  # −100 as a byte
        Accuracy().update(zeros((2,)), t([1, 156], torch.uint8))
    with pytest.raises(UsageError, match=r"the target nan: "):
        Accuracy().update(zeros((2,)), t([1, float("nan")]))


def test_the_dimension_of_the_classes_is_told_where_shapes_do_not():
    scores, target = torch.eye(3).repeat(2, 1, 1), t([[0, 1, 2], [0, 0, 0]], I)
    scores[1, :, 1] += 5  # with classes first, position 1 of sample 1 is a tie, as all classes have 5 there
    scores = scores + torch.arange(3.0)[:, None] / 100
    with pytest.raises(UsageError, match=r"does not tell which dimension .* class_dim=1 or class_dim=-1"):
        Accuracy().update(scores, target)
    with pytest.raises(UsageError, match="does not tell"):
        kind_of(scores, target)
    assert kind_of(scores, target, class_dim=-1) == "multi-class"
    assert value(Accuracy(class_dim=1), (scores, target)) == (scores.argmax(1) == target).double().mean()
    assert value(Accuracy(class_dim=-1), (scores, target)) == (scores.argmax(2) == target).double().mean()
    assert value(Accuracy(class_dim=1), (scores, target)) != value(Accuracy(class_dim=-1), (scores, target))


@pytest.mark.parametrize("dim", [1, -1])
def test_the_dimension_of_the_classes_follows_earlier_batches(dim):
    torch.manual_seed(1)
    told, square = torch.randn(2, 4, 3).movedim(-1, dim), torch.randn(2, 3, 3)
    y, z = torch.randint(3, (2, 4)), torch.randint(3, (2, 3))
    metric = Accuracy()
    metric.update(told, y)
    metric.update(square, z)
    right = (told.argmax(dim) == y).sum() + (square.argmax(dim) == z).sum()
    assert metric.compute() == int(right) / 14
    metric.reset()
    with pytest.raises(UsageError, match="does not tell"):
        metric.update(square, z)


def test_scores_of_samples_tell_nothing_about_those_of_sequences():
    metric = Accuracy()
    metric.update(zeros((N, C)), zeros((N,), I))
    metric.update(zeros((N, T, C)), zeros((N, T), I))
    assert metric.compute() == 1


def test_a_class_dimension_other_than_the_first_or_the_last_is_refused():
    with pytest.raises(UsageError, match="class_dim = 2 is not allowed"):
        Accuracy(class_dim=2)


def test_all_batches_are_of_one_kind():
    metric = BalancedAccuracy()
    metric.update(zeros((N, C)), zeros((N,), I))
    with pytest.raises(
        UsageError, match=r"multi-class predictions of 2 classes follows multi-class .* of 3 classes"
    ):
        metric.update(zeros((N, 2)), zeros((N,), I))
    with pytest.raises(UsageError, match="a batch of binary predictions"):
        metric.update(zeros((N,)), zeros((N,), I))
    metric.reset()
    metric.update(zeros((N,)), zeros((N,), I))


@pytest.mark.parametrize("metric", [MeanAbsoluteError(), RootMeanSquaredError()])
def test_a_regression_takes_pairs_and_no_other_broadcasting(metric):
    predicted, wanted = t([1, 2, 3]), t([2, 2, 5])
    pairs = [(s, y) for s in (predicted, predicted[:, None]) for y in (wanted, wanted[:, None])]
    assert len({value(metric, pair) for pair in pairs}) == 1
    assert [values.shape for values in paired(*pairs[1])] == [(3,), (3,)]
    for scores, target in [((N, 2), (N,)), ((N, 2), (N, 1)), ((N,), ()), ((N, 1), (1, N)), ((N,), (1,))]:
        with pytest.raises(UsageError, match=r"is not allowed in a regression: give .* of one shape"):
            metric.update(zeros(scores), zeros(target))


def test_minus_100_is_ignored_in_classification_and_a_number_in_regression():
    assert value(Accuracy(), (t([1, 1, 1]), t([1, 0, -100]))) == 0.5
    assert value(MeanAbsoluteError(), (t([0]), t([-100]))) == 100
