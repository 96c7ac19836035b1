"""What trackers record of a run, under which names."""

import os
import re
import sys
from dataclasses import replace
from math import isnan
from pathlib import Path

import pytest

from offbeat.callbacks.callbacks_by_name import make_callbacks
from offbeat.callbacks.mlflow_tracker import MLflowTracker
from offbeat.callbacks.tensorboard_tracker import TensorBoardTracker
from offbeat.callbacks.tracker import (
    Ending,
    RunTracker,
    flat,
    folder_name,
    keep_id,
    kept_id,
    points,
    settings,
)
from offbeat.callbacks.wandb_tracker import WandbTracker
from offbeat.core.errors import RunError, UsageError
from offbeat.core.installation import install_hint
from tests.callbacks.told import EVALUATIONS, MODEL, evaluation, live_run, tell
from tests.forks import Fork


class Kept(RunTracker):
    """Keeps what a tracker is to record."""

    def __init__(self) -> None:
        self.__post_init__()
        self.logged: list[float] = []
        self.endings: list[Ending] = []

    def open(self, run):
        return self

    def log(self, metrics):
        self.logged.append(metrics.version)

    def end(self, ending):
        self.endings.append(ending)


def test_names_are_grouped_by_a_slash_and_have_no_character_that_a_tracker_refuses():
    found = points(evaluation(0, **{"f1 (macro)@0.5": 1.0, "a/b-c.d": 2.0}))
    assert isnan(found.pop("auroc"))
    assert found == {
        "run/t": 0.0, "run/tasks": 0, "run/bytes_up": 0, "run/bytes_down": 0, "loss": 0.75, "accuracy": 0.25,
        "clients/accuracy": 0.125, "clients/accuracy.p10": 0.0625, "f1__macro__0.5": 1.0, "a/b-c.d": 2.0,
    }  # fmt: skip


def test_two_metrics_that_would_have_the_same_name_are_refused():
    with pytest.raises(RunError, match=r'metric "f1\*": another one is recorded as "f1_" too'):
        points(evaluation(0, **{"f1@": 1.0, "f1*": 2.0}))


def test_hyper_parameters_have_dotted_keys(tmp_path: Path):
    assert flat(settings(live_run(tmp_path))) == {
        "label": "fedbuff", "seed": 3, "clients": 4, "algorithm.name": "fedbuff", "algorithm.size": 2,
        "algorithm.staleness.a": 0.5, "training.lr": 0.1, "training.optimizer": "sgd",
        "world.seconds_per_step": "[1.0, 2.5]", "world.network.latency": 0.25, "until.versions": 4,
        "versions.offbeat": "0.1.0", "versions.torch": "2.13.0", "versions.python": "3.12.1",
    }  # fmt: skip
    assert "algorithm.name" in flat(settings(live_run(tmp_path, recipe=None)))


def test_the_best_values_are_those_of_the_whole_run_by_the_directions_it_has():
    tracker, run = Kept(), live_run(None, EVALUATIONS[:2], higher_is_better={"auroc": False})
    tell(tracker, run, EVALUATIONS[2:])
    tracker.on_end(run, "versions", MODEL)
    best = {"loss": 0.125, "accuracy": 0.875, "auroc": 0.625, "clients.accuracy": 0.4375}
    assert tracker.endings == [Ending("finished", "versions", best | {"clients.accuracy.p10": 0.21875})]
    assert tracker.logged == [4, 6]


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (RunError("the disk\nis full"), "failed", "RunError: the disk is full"),
        (KeyboardInterrupt(), "killed", "KeyboardInterrupt:"),
    ],
)
def test_a_run_that_fails_is_not_one_that_was_interrupted(error: BaseException, status: str, reason: str):
    tracker = Kept()
    tracker.on_exception(tell(tracker, live_run(None)), error)
    tracker.on_exception(live_run(None), error)  # one that this tracker could not open
    assert [(ending.status, ending.reason) for ending in tracker.endings] == [(status, reason)]


def test_two_runs_at_the_same_time_are_kept_apart():
    tracker, runs = Kept(), [live_run(None), live_run(None)]
    for run, evaluations in zip(runs, (EVALUATIONS[:1], EVALUATIONS[1:2]), strict=True):
        tell(tracker, run, evaluations)
    for run in runs:
        tracker.on_end(run, "versions", MODEL)
    assert [ending.best["accuracy"] for ending in tracker.endings] == [0.25, 0.875]


def test_an_identifier_is_kept_in_a_file_of_the_run(tmp_path: Path):
    run, precious = live_run(tmp_path), tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / "id").symlink_to(precious)
    keep_id(run, "id", "3f-a_1")
    assert precious.read_text() == "precious"
    assert kept_id(run, "id") == "3f-a_1"
    assert kept_id(run, "other") is None


@pytest.mark.parametrize("text", ["", "a/../../b", "*", "a" * 2000])
def test_another_text_is_no_identifier(text: str, tmp_path: Path):
    (tmp_path / "id").write_text(text)
    with pytest.raises(RunError, match=r"id .*delete it"):
        kept_id(live_run(tmp_path), "id")


def test_an_identifier_is_not_awaited_from_a_pipe(tmp_path: Path):
    os.mkfifo(tmp_path / "id")
    with pytest.raises(RunError, match="it is no regular file; delete it"):
        kept_id(live_run(tmp_path), "id")


@pytest.mark.parametrize("tracker", [TensorBoardTracker, MLflowTracker, WandbTracker])
def test_a_library_that_is_missing_is_named_with_its_extra(
    tracker: type[RunTracker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    library = str(tracker.library)
    (tmp_path / library).mkdir()  # a folder of this name is no library
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, library, raising=False)
    line = re.escape(f"{library} is not installed: {install_hint(library)}")
    with pytest.raises(UsageError, match=f"^{line}"):
        make_callbacks([library], [library])
    with pytest.raises(UsageError, match=f"^{line}"):
        tracker().on_start(live_run(tmp_path))


@pytest.mark.thorough
def test_the_trackers_libraries_are_imported_when_a_run_starts(tmp_path: Path):
    script = tmp_path / "make.py"
    script.write_text(
        "import sys\nfrom offbeat.callbacks.callbacks_by_name import make_callbacks\n"
        "made = make_callbacks(['csv', 'tensorboard', 'mlflow'], ['mlflow'])\n"
        "print(len(made), {'tensorboard', 'mlflow', 'wandb'} & {*sys.modules})"
    )
    out, errors = Fork(script).communicate()
    assert out == "3 set()\n", errors


@pytest.mark.parametrize(
    ("label", "name"),
    [("fedbuff", "fedbuff"), ("..", "_."), ("../../x", "_._.._x"), ("/etc/x", "_etc_x"), ("a\\b", "a_b")],
)
def test_a_recorded_label_is_one_part_of_a_path(label: str, name: str, tmp_path: Path):
    assert folder_name(replace(live_run(tmp_path), label=label)) == name
