"""What a metric's name tells, by hand."""

from math import inf, nan

import pytest

from offbeat.core.errors import UsageError
from offbeat.core.metric_names import (
    NamedMetric,
    base_name,
    check_metric_names,
    finite,
    first_shown,
    in_order,
    is_statistic,
    numbers,
)
from offbeat.metrics import METRICS


@pytest.mark.parametrize("name", METRICS)
def test_the_names_of_the_built_in_metrics_say_what_the_metrics_say(name: str) -> None:
    assert NamedMetric.of(name).higher_is_better == getattr(METRICS[name], "higher_is_better", None)


@pytest.mark.parametrize(
    ("name", "higher"),
    [
        ("loss", False), ("val_loss", False), ("calibration_error", False), ("recall", True),
        ("clients.loss", False), ("clients.mae.worst", False), ("clients.accuracy.p10", True),
    ],
)  # fmt: skip
def test_which_way_a_metric_improves(name: str, higher: bool) -> None:
    assert NamedMetric.of(name).higher_is_better is higher
    assert NamedMetric.of(name, {base_name(name): not higher}).higher_is_better is not higher


def test_the_name_of_a_statistic_over_clients_has_that_of_its_metric() -> None:
    names = ["clients.accuracy", "clients.accuracy.worst", "clients.my.own.p50", "my.p50"]
    assert [base_name(name) for name in names] == ["accuracy", "accuracy", "my.own", "my.p50"]


def test_shares_are_in_percent_and_others_as_they_are() -> None:
    share, other = NamedMetric.of("clients.balanced_accuracy"), NamedMetric.of("rmse")
    assert (share.title, share.value_text(0.625)) == ("clients.balanced accuracy (%)", "62.5 %")
    assert (other.title, other.value_text(0.625)) == ("rmse", "0.625")


def test_the_best_and_the_target_ignore_what_is_not_finite() -> None:
    high, low = NamedMetric.of("auroc"), NamedMetric.of("loss")
    values = [None, nan, 0.5, inf, 0.75, -inf]
    assert (high.best(values), low.best(values), high.best([nan])) == (0.75, 0.5, None)
    assert [high.reaches(value, 0.5) for value in (0.5, 0.6, 0.4, nan, inf, None)] == [
        True,
        True,
        *[False] * 4,
    ]
    assert [low.reaches(value, 0.5) for value in (0.5, 0.6, 0.4, nan, -inf)] == [
        True,
        False,
        True,
        False,
        False,
    ]
    assert [finite(value) for value in (1.0, nan, -inf, None)] == [1.0, None, None, None]


def test_accuracy_comes_first_then_metrics_then_the_loss_then_the_clients() -> None:
    names = ["clients.loss", "loss", "clients.accuracy", "auroc", "accuracy", "auroc"]
    assert in_order(names) == ["accuracy", "auroc", "loss", "clients.accuracy", "clients.loss"]
    spread = ["clients.count", "clients.auroc.undefined", "clients.auroc.p10"]
    assert in_order([*spread, "clients.loss", "clients.auroc"]) == ["clients.auroc", "clients.loss", *spread]
    assert [is_statistic(name) for name in (*spread, "clients.p10", "auroc.p10")] == [True] * 3 + [False] * 2
    assert [first_shown(found) for found in (["loss", "f1", "auroc"], ["loss"], [])] == [
        "f1",
        "loss",
        "accuracy",
    ]


def test_null_in_a_record_is_a_metric_that_is_undefined() -> None:
    read = numbers({"auroc": None, "f1": 0.5})
    assert read["f1"] == 0.5
    assert read["auroc"] != read["auroc"]


@pytest.mark.parametrize(
    "name",
    ["loss", "balanced_accuracy", "top-5", "recall@10", "clients.loss.p10", "F1 score", "val/loss",
     "Sensitivität", "准确率", "स्कोर"],
)  # fmt: skip
def test_a_name_of_letters_and_digits_is_a_metrics(name: str) -> None:
    check_metric_names([name])


@pytest.mark.parametrize(
    "name",
    ["", " ", "$(touch owned)", "`id`", "a;b", "a=b", "=1+1", "a'b", 'a"b', "a|b", "a\\b", "<b>", "a&b",
     "a\tb", "a\nb", "\x00", "\x1b[2J", "a\u202eb", "a\u200bb", "a\u00a0b", "a,b", "{label}", "50%"],
)  # fmt: skip
def test_what_a_program_could_take_for_more_than_a_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_metric_names(["loss", name])
    assert str(refused.value).startswith(f"metric {name!r} is not allowed: ")
    assert "\n" not in str(refused.value)
