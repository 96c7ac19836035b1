"""Limits by metrics."""

from math import nan
from typing import Any

import pytest

import offbeat as ob


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
    until = ob.Until(metric="auroc", reaches=0.8)
    until.check_metrics({"loss": 1.0, "auroc": nan})
    with pytest.raises(ob.UsageError, match=r"metric 'auroc' is never reached: evaluations give loss, f1$"):
        until.check_metrics({"loss": 1.0, "f1": 0.5})
    with pytest.raises(ob.UsageError, match=r"evaluations give no metric$"):
        until.check_metrics({})
    clients = ob.Until(metric="clients.auroc", reaches=0.8)
    clients.check_metrics({"loss": 1.0})  # the clients are asked later
    with pytest.raises(ob.UsageError, match=r"evaluations give clients.loss$"):
        clients.check_metrics({"clients.loss": 1.0})


def test_what_ends_a_run_is_evaluated_at_the_server_or_at_clients() -> None:
    here, there = ob.Until(metric="auroc", reaches=0.8), ob.Until(metric="clients.auroc.p10", reaches=0.8)
    here.check_evaluated(True, False, "")
    there.check_evaluated(False, True, "")
    with pytest.raises(ob.UsageError, match=r"until auroc = 0.8 needs evaluations: give some"):
        here.check_evaluated(False, False, "give some")
    with pytest.raises(ob.UsageError, match=r"evaluate.at = 'clients' gives clients.auroc; name that"):
        here.check_evaluated(False, True, "")
    with pytest.raises(ob.UsageError, match=r"clients.auroc.p10 = 0.8 needs evaluations at clients: give"):
        there.check_evaluated(True, False, "")
