"""Evaluations: functions of all samples, errors that name the metric, objects of torchmetrics."""

from fractions import Fraction
from math import isnan, nan

import numpy as np
import pytest
import torch

from offbeat.core.errors import UsageError
from offbeat.metrics import compute_metrics, higher_is_better, make_metrics, update_metrics
from tests.metrics.cases import I, t


def computed(function):
    metrics = make_metrics({"mine": function})
    update_metrics(metrics, torch.zeros(2), torch.zeros(2))
    return compute_metrics(metrics)["mine"]


def test_a_function_sees_all_samples_once():
    seen = []

    def median(scores, target):
        seen.append((scores.tolist(), target.tolist()))
        return scores.median()

    metrics = make_metrics({"median": median})
    scores = t([3, 1, 2])
    with torch.inference_mode():
        update_metrics(metrics, scores[:1], t([1], I))
        update_metrics(metrics, scores[1:], t([0, 1], I))
    scores.zero_()  # what a metric keeps is a copy
    assert compute_metrics(metrics) == {"median": 2}
    assert seen == [([3, 1, 2], [1, 0, 1])]
    metrics["median"].reset()
    assert isnan(compute_metrics(metrics)["median"])


def test_a_function_may_change_what_it_is_given():
    metrics = make_metrics({"sum": lambda scores, target: scores.add_(1).sum()})
    update_metrics(metrics, t([1, 2]), t([1, 2]))
    assert compute_metrics(metrics) == compute_metrics(metrics) == {"sum": 5}


def test_samples_of_several_shapes_are_not_concatenated():
    metrics = make_metrics({"mine": lambda scores, target: 0.0})
    update_metrics(metrics, torch.zeros(2, 3), torch.zeros(2))
    update_metrics(metrics, torch.zeros(2, 4), torch.zeros(2))
    with pytest.raises(
        UsageError, match=r'metric "mine": scores with samples of shape \[3\] and \[4\] cannot'
    ):
        compute_metrics(metrics)


@pytest.mark.parametrize(
    "number",
    [
        1,
        1.0,
        True,
        t([1]),
        t(1),
        t([[1]]),
        t(1, I),
        np.float32(1),
        np.int64(1),
        np.ones(1),
        Fraction(1),
        np.ones(()),
    ],
)
def test_numbers_of_many_types(number):
    found = computed(lambda scores, target: number)
    assert type(found) is float
    assert found == 1


def test_nan_is_undefined_and_no_error():
    assert isnan(computed(lambda scores, target: nan))
    assert computed(lambda scores, target: t([1.0]).requires_grad_()) == 1


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "None"),
        ("0.5", "'0.5'"),
        (t([1, 2]), "Tensor [2]"),
        (t([]), "Tensor [0]"),
        (np.ones((2, 1)), "ndarray [2, 1]"),
        (1j, "1j"),
        (t([1j], torch.complex64), "Tensor [1]"),
        ({"a": 1.0}, "{'a': 1.0}"),
        ([0.5], "[0.5]"),
        ("x" * 99, "xxx..."),
        (10**400, "000..."),
    ],
)
def test_a_metric_that_is_no_number_is_named(value, shown):
    with pytest.raises(UsageError) as error:
        computed(lambda scores, target: value)
    text = str(error.value)
    assert text.startswith('metric "mine" is ')
    assert text.endswith(f"{shown}: it must be one number, or a tensor with one element")


def test_a_metric_that_fails_is_named():
    def broken(scores, target):
        raise RuntimeError("two\nlines")

    with pytest.raises(UsageError, match=r'^metric "mine" fails: RuntimeError: two$') as error:
        computed(broken)
    assert isinstance(error.value.__cause__, RuntimeError)
    with pytest.raises(UsageError, match=r'^metric "mine" fails: AssertionError: no message$'):
        computed(lambda scores, target: (_ for _ in ()).throw(AssertionError()))
    metrics = make_metrics(["accuracy"])
    with pytest.raises(
        UsageError, match=r'^metric "accuracy": scores float32 \[2\] with target float32 \[3\] fits'
    ):
        update_metrics(metrics, torch.zeros(2), torch.zeros(3))


def test_the_objects_of_torchmetrics_fit():
    tm = pytest.importorskip("torchmetrics")
    wanted = {
        "accuracy": tm.classification.MulticlassAccuracy(3, average="micro"),
        "f1": tm.classification.MulticlassF1Score(3, average="macro"),
        "auroc": tm.classification.MulticlassAUROC(3),
        "balanced_accuracy": tm.classification.MulticlassAccuracy(3, average="macro"),
        "perplexity": tm.text.Perplexity(ignore_index=-100),
        "rmse": tm.MeanSquaredError(squared=False),
    }
    torch.manual_seed(0)
    scores, target = torch.randn(50, 4, 3), torch.randint(3, (50, 4))
    classes = [name for name in wanted if name not in ("perplexity", "rmse")]
    for names, x, y in (
        (classes, scores.flatten(0, 1), target.flatten()),
        (["perplexity"], scores, target),
        (["rmse"], scores[:, 0, 0], scores[:, 0, 1]),
    ):
        theirs, ours = make_metrics({name: wanted[name] for name in names}), make_metrics(names)
        with torch.inference_mode():
            for part in (slice(0, 7), slice(7, None)):
                update_metrics(theirs, x[part], y[part])
                update_metrics(ours, x[part], y[part])
        assert compute_metrics(theirs) == pytest.approx(compute_metrics(ours), rel=1e-5)
        for name in names:
            assert theirs[name] is not wanted[name]
            assert higher_is_better(name, theirs[name]) is higher_is_better(name)
    two = tm.MetricCollection([tm.MeanSquaredError(), tm.MeanAbsoluteError()])
    collection = make_metrics({"two": two})
    update_metrics(collection, t([1, 2]), t([1, 2]))
    with pytest.raises(UsageError, match=r'metric "two" is \{'):
        compute_metrics(collection)


@pytest.mark.cuda
def test_an_evaluation_on_a_gpu():
    metrics = make_metrics(
        {"mine": lambda scores, target: scores.sum(), "auroc": "auroc", "accuracy": "accuracy"}
    )
    update_metrics(metrics, t([-1, 2]).cuda(), t([0, 1]).cuda())
    assert compute_metrics(metrics) == {"mine": 1, "auroc": 1, "accuracy": 1}
