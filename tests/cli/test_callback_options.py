"""Callbacks and early stopping in recipes and on the command line."""

import json
import queue
from pathlib import Path
from typing import Any

import pytest
import yaml

import offbeat as ob
from offbeat.recipes import run_pool
from offbeat.recipes.compare import plan
from offbeat.recipes.load import document_of, load_recipe
from tests.cli.test_command_line import RECIPE

MODULE = """
import json
import offbeat as ob

class Notes(ob.Callback):
    def __init__(self, name="notes", fail_at=None, stop_at=None):
        self.name, self.fail_at, self.stop_at = name, fail_at, stop_at

    def note(self, run, *words):
        with (run.directory / self.name).open("a") as file:
            file.write(json.dumps(words) + "\\n")

    def on_start(self, run):
        self.note(run, "start", run.label, run.seed, run.recipe["clients"], len(run.past))

    def on_evaluation(self, run, metrics, model):
        if metrics.version == self.fail_at:
            raise ValueError("full")
        self.note(run, metrics.version)
        if metrics.version == self.stop_at:
            run.stop("enough")

    def on_end(self, run, reason, model):
        self.note(run, "end", reason)

def make(**options):
    return Notes("made", **options)
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A recipe, and a module whose name no other test's has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("tiny.yaml").write_text(yaml.safe_dump(RECIPE | {"evaluate": {"versions": 2}}))
    Path(f"{module()}.py").write_text(MODULE)
    return "tiny.yaml"


def module() -> str:
    return f"notes_of_{abs(hash(Path.cwd()))}"


def notes(directory: str | Path, name: str = "notes") -> list[list[Any]]:
    return [json.loads(line) for line in (Path(directory) / name).read_text().splitlines()]


def test_callbacks_of_the_command_line_take_the_place_of_those_of_the_recipe(
    recipe: str, offbeat: Any
) -> None:
    by_name = f"{module()}:Notes"
    entry = json.dumps([{"name": f"{module()}:make", "stop_at": 4}])
    first = offbeat("run", recipe, "--out", "one", "--set", f"callbacks={entry}")
    assert "stopped: enough" in first.out
    assert notes("one", "made") == [["start", "fedcompass", 0, 4, 0], [0], [2], [4], ["end", "enough"]]
    own = {**yaml.safe_load(Path(recipe).read_text()), "callbacks": json.loads(entry)}
    Path("own.yaml").write_text(yaml.safe_dump(own))
    allowed = ("--allow", module())
    assert offbeat("run", "own.yaml", "--out", "two", "--callback", by_name, *allowed).code == 0
    twice = offbeat("run", recipe, "--out", "three", "--set", f"callbacks={entry}", "--callback", by_name)
    assert (twice.code, "callbacks is given twice" in twice.err) == (2, True)
    assert not Path("two/made").exists()
    assert notes("two")[-1] == ["end", "reached 15 client tasks"]
    record = ob.read_run("two")
    assert record.recipe is not None
    assert record.recipe["callbacks"] == [by_name]


def test_a_callback_that_fails_is_one_line_and_the_run_goes_on_with_another(
    recipe: str, offbeat: Any
) -> None:
    entry = json.dumps([{"name": f"{module()}:Notes", "fail_at": 2}])
    told = offbeat("run", recipe, "--out", "one", "--set", f"callbacks={entry}").complaint(1)
    assert told.startswith("offbeat: the callback Notes.on_evaluation has failed: ValueError: full (/")
    debugged = offbeat("--debug", "run", recipe, "--out", "debugged", "--set", f"callbacks={entry}")
    assert 'raise ValueError("full")' in debugged.err
    assert "Notes.on_evaluation" in offbeat("resume", "one", "--allow", f"{module()}:Notes").complaint(1)
    assert f"give --allow {module()}:Notes" in offbeat("resume", "one").complaint()  # a record's word
    resumed = offbeat("resume", "one", "--callback", f"{module()}:make")
    assert resumed.code == 0, resumed.err
    assert notes("one", "made")[-1] == ["end", "reached 15 client tasks"]


def test_each_run_of_a_comparison_makes_its_own(
    recipe: str, offbeat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_pool, "_reports_queue", queue.Queue())

    allow = [f"{module()}:{name}" for name in ("Notes", "make")]

    def planned(*changes: str) -> list[run_pool.PlannedRun]:
        return plan(load_recipe(recipe, sets=changes), ["fedavg", "fedbuff"], 1, Path("many"), allow=allow)

    failing = json.dumps([{"name": f"{module()}:Notes", "fail_at": 2}])
    for run in planned(f"callbacks={failing}"):
        run_pool._run(run)
    for run in planned(f"callbacks=['{module()}:make']"):  # the same experiment, with others
        assert notes(run.directory) == [["start", run.recipe.algorithm["label"], 0, 4, 0], [0]]
        run_pool._run(run)
        made = notes(run.directory, "made")
        assert made[0][:2] == ["start", run.recipe.algorithm["label"]]
        assert made[-1] == ["end", "reached 15 client tasks"]
    reports = [run_pool._reports_queue.get_nowait() for _ in range(run_pool._reports_queue.qsize())]
    assert [report.error is None for report in reports if report.finished] == [False, False, True, True]
    assert (
        f"callbacks {module()}:Other"
        in offbeat("compare", recipe, "--out", "none", "--callback", f"{module()}:Other").complaint()
    )
    assert not Path("none").exists()


def test_early_stopping_and_the_best_model_in_a_recipe(recipe: str, offbeat: Any) -> None:
    stopping = "until.early_stopping={metric: accuracy, patience: 2, min_delta: 0.9}"
    ran = offbeat("run", recipe, "--out", "one", "--set", stopping, "--set", "evaluate.keep_best=loss")
    assert "stopped: no better accuracy by more than 0.9 in 2 evaluations (best 0." in ran.out
    assert Path("one/best.safetensors").exists()
    loaded = load_recipe(recipe, sets=[stopping])
    assert document_of(loaded)["until"]["early_stopping"] == {
        "metric": "accuracy", "patience": 2, "min_delta": 0.9,
    }  # fmt: skip
    for change, words in (
        ("until.early_stopping={metric: accuracy}", "until.early_stopping.patience is missing"),
        ("until.early_stopping={metric: auc, patience: 2}", "of auc: there is no metric 'auc'"),
        (
            "until.early_stopping={metric: loss, patience: 0}",
            "until.early_stopping.patience = 0 is not allowed",
        ),
        ("evaluate.keep_best=auc", "evaluate.keep_best = 'auc': there is no metric 'auc'"),
    ):
        assert words in offbeat("run", recipe, "--out", f"none of {change}", "--set", change).complaint()
