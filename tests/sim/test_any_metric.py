"""Runs with metrics other than accuracy, of patients at four hospitals: limits, records, reports, figures."""

import json
import sqlite3
from math import isnan, nan
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import offbeat as ob
from offbeat.data import Dataset
from offbeat.parts import Metrics
from offbeat.report import make_table, to_text, write_figures, write_html
from offbeat.runs.summary import Summary

WORLD = ob.World([1.0, 1.5, 2.0, 4.0])
UNTIL = ob.Until(versions=200, metric="auroc", reaches=0.85)


def patients(count: int, seed: int) -> Dataset:
    """13 numbers of each patient, and whether it is ill."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 13, generator=generator)
    noise = torch.randn(count, generator=generator)
    return Dataset(x, (x @ torch.linspace(-1, 1, 13) + noise > 0.8).float())


def one_logit() -> nn.Module:
    return nn.Linear(13, 1)


def loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(output.flatten(), target)


def distance(scores: Tensor, target: Tensor) -> Tensor:
    return (torch.sigmoid(scores.flatten()) - target).abs().mean()


distance.higher_is_better = False  # type: ignore[attr-defined]


def undefined(scores: Tensor, target: Tensor) -> float:
    return nan


def learner(*metrics: str) -> ob.TorchLearner:
    data = ob.federate(patients(600, 1), patients(300, 2), np.array_split(np.arange(600), 4))
    own = {"distance": distance, "undefined": undefined}
    wanted = {name: own.get(name, name) for name in metrics or ("auroc", "balanced_accuracy", *own)}
    return ob.TorchLearner(one_logit, data, ob.Training(lr=0.05, batch_size=16), loss, metrics=wanted)


def run(out: Path | None = None, until: ob.Until = UNTIL, seed: int = 0) -> ob.Run:
    return ob.simulate(ob.fedbuff(2, steps=4), WORLD, learner(), until=until, out=out, seed=seed)


def test_a_run_ends_at_the_evaluation_that_finds_the_metric() -> None:
    found = run()
    assert found.stop_reason == "reached auroc 0.85"
    *before, last = [row["auroc"] for row in found.metrics]
    assert max(before) < 0.85 <= last
    assert found.summary.accuracy is None
    assert found.summary.metrics["auroc"] == found.summary.best_metrics["auroc"] == last
    assert "undefined" not in found.summary.best_metrics


@pytest.mark.parametrize("name", ["loss", "distance"])
def test_a_metric_of_which_less_is_better(name: str) -> None:
    values = [row[name] for row in run(until=ob.Until(versions=20)).metrics]
    assert values[10] == min(values[:11])
    found = run(until=ob.Until(versions=20, metric=name, reaches=values[10]))
    assert found.summary.versions == 10
    assert found.summary.best_metrics[name] == values[10]


def test_a_metric_that_is_not_given_is_refused_at_the_first_evaluation(tmp_path: Path) -> None:
    until = ob.Until(versions=200, metric="auc", reaches=0.85)
    with pytest.raises(
        ob.UsageError, match=r"there is no metric 'auc': evaluations give loss, auroc, balanced_"
    ):
        run(tmp_path / "run", until)
    assert not list(ob.read_run(tmp_path / "run").rows("command"))
    with pytest.raises(ob.UsageError, match=r"until auc = 0.85 needs evaluations: give evaluate"):
        ob.simulate(ob.fedavg(), WORLD, learner(), until=until, evaluate=None)


def test_what_is_undefined_is_null_in_the_record(tmp_path: Path) -> None:
    found = run(tmp_path / "run")
    database = sqlite3.connect(tmp_path / "run" / "run.db")
    try:
        query = "SELECT data -> 'undefined', data ->> 'auroc' FROM metrics ORDER BY seq DESC LIMIT 1"
        assert database.execute(query).fetchone() == ("null", found.metrics[-1]["auroc"])
        summary = database.execute("SELECT value FROM meta WHERE key = 'summary'").fetchone()[0]
    finally:
        database.close()
    json.loads(summary, parse_constant=pytest.fail)
    record = ob.read_run(tmp_path / "run")
    assert isnan(record.metrics[0]["undefined"])
    again = Summary.read(record.meta["summary"])
    assert isnan(again.metrics["undefined"])
    assert again.best_metrics == found.summary.best_metrics
    assert record.higher_is_better == {
        "auroc": True, "balanced_accuracy": True, "distance": False, "undefined": True
    }  # fmt: skip


def test_an_interrupted_run_ends_at_the_same_evaluation(tmp_path: Path) -> None:
    class Interrupted(ob.TorchLearner):
        evaluated = 0

        def evaluate(self, model: ob.Model) -> Metrics:
            self.evaluated += 1
            if self.evaluated == 12:
                raise KeyboardInterrupt
            return super().evaluate(model)

    whole, patient = run(), learner()
    patient.__class__ = Interrupted
    algorithm, options = ob.fedbuff(2, steps=4), {"until": UNTIL, "checkpoint_seconds": 0.0}
    with pytest.raises(KeyboardInterrupt):
        ob.simulate(algorithm, WORLD, patient, out=tmp_path / "run", **options)
    resumed = ob.resume(tmp_path / "run", algorithm, WORLD, learner(), until=UNTIL)
    assert resumed.stop_reason == whole.stop_reason
    assert [row["auroc"] for row in resumed.metrics] == [row["auroc"] for row in whole.metrics]
    assert resumed.summary.best_metrics == whole.summary.best_metrics


def test_tables_pages_and_figures_are_of_any_metric(tmp_path: Path) -> None:
    for seed in range(2):
        run(tmp_path / f"run-{seed}", seed=seed)
    records = ob.find_runs(tmp_path)
    (row,) = make_table(records, target=0.8).rows
    assert row.best is not None
    assert row.best.mean > 0.85
    assert row.reached == 2
    text = to_text(make_table(records, metric="distance", target=0.4))
    heads = text.partition("─")[0].split()
    assert {"best", "distance", "time", "0.4", "(s)"} <= set(heads)
    assert "at distance 0.4 or less" in text
    page = write_html(records, tmp_path / "page.html", metric="distance", target=0.4).read_text("utf-8")
    names = ["auroc", "balanced_accuracy", "distance", "undefined", "loss"]
    assert [f'<option value="{name}">' in page for name in names] == [True] * 5
    assert "best distance: fedbuff" in page
    figures = [path.name for path in write_figures(records, tmp_path / "figures", target=0.8)]
    assert figures[:6] == [
        "auroc_time.png", "balanced_accuracy_time.png", "distance_time.png", "loss_time.png",
        "auroc_versions.png", "auroc_bytes.png",
    ]  # fmt: skip
    with pytest.raises(
        ob.UsageError, match=r"'acc' was not recorded: the runs have auroc, balanced_accuracy"
    ):
        make_table(records, metric="acc")
