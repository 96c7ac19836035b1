"""The table of statistics says what is not told, and how near its quantiles are."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import offbeat as ob
from offbeat.cli.console import print_json
from offbeat.cli.feature_statistics_table import show_statistics, statistics_document
from offbeat.local.feature_statistics import StatisticsLearner
from offbeat.recipes.standardize import read_statistics
from offbeat.sim.gather_statistics import statistics_experiment
from offbeat.sim.run_experiment import simulate_experiment
from offbeat.world.world import World
from tests.cli.answer import Answer


def test_a_quantile_that_is_not_told_is_a_dash_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    sites = [torch.from_numpy(rng.normal(50, 10, (37, 2))).float() for _ in range(3)]
    learner = StatisticsLearner(ob.federate(sites), rounded=True, least=4)
    simulate_experiment(statistics_experiment(learner), World(clients=3, seconds_per_step=1.0), out=tmp_path)
    show_statistics(read_statistics(tmp_path))
    told = capsys.readouterr().out
    assert "±q50" in told
    assert "–" in told
    assert "not told, of 2 features: q5 of 2, q95 of 2" in told
    print_json(statistics_document(read_statistics(tmp_path)))
    rows = json.loads(capsys.readouterr().out)["features"]
    assert [row["q5"] for row in rows] == [None, None]
    assert all(row["q25"] < row["q50"] < row["q75"] for row in rows)
    assert all(0 < row["±q50"] < 20 for row in rows)
    for row in rows:
        assert row["ranges"]["q5"][0] is None
        low, high = row["ranges"]["q50"]
        assert low <= row["q50"] <= high


def test_a_report_prints_the_statistics_of_its_runs(offbeat: Callable[..., Answer], tmp_path: Path) -> None:
    run, page = tmp_path / "stats", tmp_path / "page.html"
    assert offbeat("run", "statistics", "--set", "data.samples=100", "-o", run)[0] == 0
    code, out, _ = offbeat("report", run, "-o", page)
    assert (code, out.splitlines()[0]) == (0, f"wrote {page}")
    assert out.splitlines()[1].endswith(" samples, 64 features")
    assert "±q50" in out
    code, out, _ = offbeat("report", run, "-o", page, "--json")
    document = json.loads(out)
    assert document["wrote"] == [str(page)]
    assert len(document["statistics"][str(run)]["features"]) == 64
