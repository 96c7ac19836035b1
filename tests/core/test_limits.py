"""Limits by metrics."""

from math import nan
from typing import Any

import pytest

import offbeat as ob
from offbeat.core.limits import check_evaluated, check_found, check_target


def test_accuracy_is_short_for_a_metric() -> None:
    assert (
        ob.Until(accuracy=0.5).targets
        == ob.Until(metric="accuracy", reaches=0.5).targets
        == {"accuracy": 0.5}
    )
    assert ob.Until(accuracy=0.5, metric="loss", reaches=0.1).targets == {"accuracy": 0.5, "loss": 0.1}
    assert ob.Until().never
    assert not ob.Until(metric="loss", reaches=0.1).never


@pytest.mark.parametrize(
    ("until", "found", "reason"),
    [
        (ob.Until(accuracy=0.5), {"accuracy": 0.5}, "reached accuracy 0.5"),
        (ob.Until(accuracy=0.5), {"accuracy": 0.4}, None),
        (ob.Until(metric="auroc", reaches=0.8), {"auroc": 0.9, "loss": 0.1}, "reached auroc 0.8"),
        (ob.Until(metric="auroc", reaches=0.8), {"auroc": nan}, None),
        (ob.Until(metric="auroc", reaches=0.8), {}, None),
        (ob.Until(metric="loss", reaches=0.8), {"loss": 0.8}, "reached loss 0.8"),
        (ob.Until(metric="loss", reaches=0.8), {"loss": 0.9}, None),
        (
            ob.Until(metric="clients.mae.worst", reaches=2),
            {"clients.mae.worst": 1.0},
            "reached clients.mae.worst 2",
        ),
    ],
)
def test_a_metric_that_is_reached_ends_the_run(until: ob.Until, found: Any, reason: str | None) -> None:
    assert until.reached_metric(found) == reason


def test_a_metric_of_ones_own_may_be_better_if_lower() -> None:
    until = ob.Until(metric="distance", reaches=3)
    assert until.reached_metric({"distance": 2}) is None
    assert until.reached_metric({"distance": 2}, {"distance": False}) == "reached distance 3"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"metric": "auroc"}, "until.metric and until.reaches belong together"),
        ({"reaches": 0.5}, "until.metric and until.reaches belong together"),
        (
            {"metric": "auroc", "reaches": 80},
            r"until.reaches = 80 is not allowed: auroc is a share in \(0, 1\]",
        ),
        ({"metric": "loss", "reaches": nan}, "finite number"),
        ({"metric": "accuracy", "reaches": 0.5, "accuracy": 0.6}, "given twice"),
    ],
)
def test_what_cannot_be_reached_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ob.Until(**options)


def test_a_metric_that_evaluations_do_not_give() -> None:
    until, every = ob.Until(metric="auroc", reaches=0.8), ob.Every(versions=1)
    check_found(until, every, {"loss": 1.0, "auroc": nan})
    with pytest.raises(ob.UsageError, match=r"^until auroc = 0.8: there is no metric 'auroc': .* loss, f1$"):
        check_found(until, every, {"loss": 1.0, "f1": 0.5})
    with pytest.raises(ob.UsageError, match=r"evaluations give no metric$"):
        check_found(until, every, {})
    clients = ob.Until(metric="clients.auroc", reaches=0.8)
    check_found(clients, every, {"loss": 1.0})  # the clients are asked later
    with pytest.raises(ob.UsageError, match=r"evaluations give clients.loss$"):
        check_found(clients, every, {"clients.loss": 1.0})
    stopping = ob.Until(early_stopping=ob.EarlyStopping("auc", 3))
    with pytest.raises(ob.UsageError, match=r"^until.early_stopping of auc: there is no metric 'auc': eval"):
        check_found(stopping, every, {"loss": 1.0})
    with pytest.raises(ob.UsageError, match=r"^evaluate.keep_best = 'auc': there is no metric 'auc': eval"):
        check_found(ob.Until(), ob.Every(versions=1, keep_best="auc"), {"loss": 1.0})


def test_what_ends_a_run_is_evaluated_at_the_server_or_at_clients() -> None:
    here, there = ob.Until(metric="auroc", reaches=0.8), ob.Until(metric="clients.auroc.p10", reaches=0.8)
    at_server, at_clients = ob.Every(versions=1), ob.Every(versions=1, at="clients")
    check_evaluated(here, at_server, True, "")
    check_evaluated(there, at_clients, True, "")
    with pytest.raises(ob.UsageError, match=r"until auroc = 0.8 needs evaluations: give some"):
        check_evaluated(here, ob.Every(), True, "give some")
    with pytest.raises(ob.UsageError, match=r"until auroc = 0.8 needs evaluations: give data"):
        check_evaluated(here, at_server, False, "give data")
    with pytest.raises(ob.UsageError, match=r"evaluate.at = 'clients' gives clients.auroc; name that"):
        check_evaluated(here, at_clients, True, "")
    with pytest.raises(ob.UsageError, match=r"clients.auroc.p10 = 0.8 needs evaluations at clients: give"):
        check_evaluated(there, at_server, True, "")
    with pytest.raises(ob.UsageError, match=r"^until.early_stopping of loss needs evaluations: give some"):
        check_evaluated(ob.Until(early_stopping=ob.EarlyStopping("loss", 3)), ob.Every(), True, "give some")
    with pytest.raises(ob.UsageError, match=r"^evaluate.keep_best = 'loss' needs evaluations: give some"):
        check_evaluated(ob.Until(versions=1), ob.Every(keep_best="loss"), True, "give some")


@pytest.mark.parametrize(
    "options", [{"patience": 0}, {"patience": 2, "min_delta": -0.1}, {"patience": 2, "min_delta": nan}]
)
def test_early_stopping_that_makes_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"greater than|finite"):
        ob.EarlyStopping("loss", **options)


def test_early_stopping_is_an_end_as_a_target_is() -> None:
    assert not ob.Until(early_stopping=ob.EarlyStopping("loss", 3)).never


@pytest.mark.parametrize("target", ["0.8", True, nan])
def test_a_target_that_is_no_number(target: Any) -> None:
    with pytest.raises(ob.UsageError, match=r"target = .* is not allowed: give a finite number"):
        check_target("accuracy", target)
