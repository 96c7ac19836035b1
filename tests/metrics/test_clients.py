"""Reducing what clients have found: by hand."""

from math import inf, isnan, nan

import numpy as np
import pytest

from offbeat.metrics import aggregate_clients


def test_the_mean_is_weighted_by_samples_and_the_worst_follows_from_the_metric():
    found = aggregate_clients({
        0: (10, {"loss": 0.5, "accuracy": 0.8}),
        1: (30, {"loss": 1.5, "accuracy": 0.4}),
        7: (0, {}),
    })  # fmt: skip
    assert found["clients.count"] == 2.0
    assert found["clients.loss"] == pytest.approx(1.25)
    assert found["clients.accuracy"] == pytest.approx(0.5)
    assert (found["clients.loss.worst"], found["clients.accuracy.worst"]) == (1.5, 0.4)
    assert found["clients.accuracy.p50"] == pytest.approx(0.6)


def test_quantiles_are_those_of_numpy_and_unweighted():
    values = np.random.default_rng(0).random(13)
    found = aggregate_clients({client: (client + 1, {"f1": value}) for client, value in enumerate(values)})
    for name, share in (("p10", 0.1), ("p50", 0.5), ("p90", 0.9)):
        assert found[f"clients.f1.{name}"] == pytest.approx(float(np.quantile(values, share)))


def test_what_is_undefined_at_a_client_is_left_out_and_counted():
    found = aggregate_clients({
        0: (10, {"auroc": nan, "loss": inf}),
        1: (10, {"auroc": 0.75, "loss": nan}),
        2: (30, {"auroc": 0.25, "loss": nan}),
    })  # fmt: skip
    assert found["clients.auroc"] == pytest.approx(0.375)
    assert found["clients.auroc.undefined"] == 1.0
    assert found["clients.loss.undefined"] == 3.0
    assert isnan(found["clients.loss"])
    assert isnan(found["clients.loss.worst"])


def test_the_order_of_clients_changes_no_bit():
    results = {client: (client + 1, {"loss": value}) for client, value in enumerate([0.1, 1e16, 0.3, -1e16])}
    backwards = dict(reversed(results.items()))
    assert list(aggregate_clients(results).items()) == list(aggregate_clients(backwards).items())


def test_nobody_has_evaluated():
    assert aggregate_clients({}) == {"clients.count": 0.0}
