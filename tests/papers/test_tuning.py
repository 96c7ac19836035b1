"""Tuning: the budget, the seeds, the score, and going on from rows."""

import re
from math import inf, isnan, sqrt
from pathlib import Path
from typing import Any

import pytest

import offbeat as ob
from offbeat.recipes.run_pool import RunProgress
from offbeat.verdicts.cost import Cost
from offbeat_papers import tuning
from offbeat_papers.cells import Cell
from offbeat_papers.rows import Results
from offbeat_papers.tuning import Tuned, tune
from tests.papers.study_files import DOCUMENT
from tests.papers.test_reproduce import row

RECIPE = DOCUMENT["recipe"]
GRID = {"training.lr": [0.1, 0.3, 0.9], "algorithm.size": [1, 3]}


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """The runs that tuning asks for; each has a made-up row: the time is 10 / lr, and 0.9 diverges."""
    asked: list[Cell] = []

    def made_up(cells: list[Cell], results: Results, processes: int, watch: object, allow: object) -> int:
        asked.extend(cells)
        for cell in cells:
            rate = cell.recipe.training.lr
            reached = None if rate > 0.5 else (10 / rate, 1, 2, 3)
            ended = "the last 20 updates were refused for their size: the training has diverged"
            values: dict[str, Any] = {"ended": ended} if rate > 0.5 else {}
            values |= {"best": {"accuracy": 0.9 - rate}, "level": {"accuracy": 0.9 - rate}}
            values |= {"study": "p/t", "reached": {"accuracy": {"0.5": reached}}}
            results.append(row(cell.digest, **values), [])
        return 0

    monkeypatch.setattr(tuning, "run_cells", made_up)
    return asked


def tuned(path: Path, options: Any = GRID, **arguments: Any) -> Tuned:
    return tune("p/t", RECIPE, "fedbuff", options, seeds=2, results=path, **arguments)


def test_the_budget_holds_and_the_label_as_it_is_counts(planned: list[Cell], tmp_path: Path) -> None:
    found = tuned(tmp_path, trials=4)
    assert len(found.trials) == 4
    assert found.as_given.options == {}
    assert {cell.seed for cell in planned} == {1_000_000, 1_000_001}
    again = tuned(tmp_path, trials=4)
    assert again == found
    whole = tuned(tmp_path / "all", trials=8)
    assert len(whole.trials) == 7
    assert [trial.options for trial in whole.trials[:2]] == [
        {"training.lr": 0.3, "algorithm.size": 1}, {"training.lr": 0.3, "algorithm.size": 3},
    ]  # fmt: skip


def test_options_of_the_algorithm_and_of_the_recipe(planned: list[Cell], tmp_path: Path) -> None:
    tuned(
        tmp_path, [{"training.lr": 0.3, "algorithm.staleness.a": 2, "algorithm.staleness.kind": "polynomial"}]
    )
    cell = next(cell for cell in planned if cell.label != "fedbuff")
    assert cell.recipe.training.lr == 0.3
    assert cell.recipe.algorithm["staleness"] == {"a": 2, "kind": "polynomial"}
    assert cell.recipe.algorithm["size"] == 2
    assert cell.label == "fedbuff lr=0.3 a=2 staleness=polynomial"


def test_a_run_that_diverges_early_is_last_of_all(planned: list[Cell], tmp_path: Path) -> None:
    found = tuned(tmp_path, {"training.lr": [0.05, 0.3, 0.9]})
    assert [trial.options.get("training.lr") for trial in found.trials] == [0.3, None, 0.05, 0.9]
    assert [trial.reached for trial in found.trials] == [2, 2, 2, 0]
    assert found.best.score == pytest.approx(sqrt((10 / 0.3) ** 2))
    assert found.trials[-1].score == float("inf")


def test_a_value_can_be_the_score(planned: list[Cell], tmp_path: Path) -> None:
    found = tuned(tmp_path, {"training.lr": [0.05, 0.3]}, score="accuracy")
    assert [trial.options.get("training.lr") for trial in found.trials] == [0.05, None, 0.3]
    assert (found.best.score, found.best.reached) == (pytest.approx(0.85), None)


def test_a_learning_rate_with_which_training_diverges_is_the_worst_trial(tmp_path: Path) -> None:
    wild = {**RECIPE, "guard": "off", "model": {"name": "mlp", "hidden": [8]}}
    found = tune("p/t", wild, "fedbuff", {"training.lr": [1e20]}, trials=2, seeds=1, results=tmp_path)
    assert [trial.options for trial in found.trials] == [{}, {"training.lr": 1e20}]
    assert (found.trials[1].score, found.trials[1].reached) == (inf, 0)
    rows = Results(tmp_path).rows("p/t").values()
    assert sorted(row.diverged for row in rows) == [False, True]
    (diverged,) = (row for row in rows if row.diverged)
    assert re.fullmatch(r"client \d, task \d, step \d of 2: the loss .*has diverged", diverged.ended)
    assert (diverged.cost("time", "accuracy", 0.5), diverged.best) == (Cost(inf, False), {})
    grid = {"training.lr": [1e20]}
    value = tune("p/t", wild, "fedbuff", grid, trials=2, seeds=1, score="best", results=tmp_path)
    assert [trial.options for trial in value.trials] == [{}, {"training.lr": 1e20}]
    assert isnan(value.trials[1].score)
    again = tune("p/t", wild, "fedbuff", {"training.lr": [1e20]}, trials=2, seeds=1, results=tmp_path)
    assert again == found  # a run that diverged is not made again


def test_what_cannot_be_tuned_is_said(tmp_path: Path) -> None:
    with pytest.raises(ob.UsageError, match="score = time needs a target"):
        tune("p/t", {**RECIPE, "target": None}, "fedbuff", GRID, results=tmp_path)
    with pytest.raises(ob.UsageError, match="trials = 0"):
        tuned(tmp_path, trials=0)
    with pytest.raises(ob.UsageError, match="unknown"):
        tuned(tmp_path, {"algorithm.sise": [1]})


@pytest.mark.thorough
def test_tuning_goes_on_from_its_rows(tmp_path: Path) -> None:
    reports: list[RunProgress] = []
    first = tuned(tmp_path, {"training.lr": [0.05]}, watch=reports.append)
    assert sum(report.finished for report in reports) == 4
    reports.clear()
    assert tuned(tmp_path, {"training.lr": [0.05]}, watch=reports.append) == first
    assert not reports
    wider = tuned(tmp_path, {"training.lr": [0.05, 0.4]}, watch=reports.append)
    assert sum(report.finished for report in reports) == 2
    assert first.as_given in wider.trials
