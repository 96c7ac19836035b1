"""Runs of Weights & Biases, read from the files of its offline mode."""

import json
import time
from collections.abc import Iterator
from importlib.util import find_spec
from math import isnan
from pathlib import Path
from struct import unpack_from
from typing import Any

import pytest
import yaml

from offbeat.callbacks.wandb_tracker import WandbTracker
from offbeat.core.errors import RunError
from tests.callbacks.told import EVALUATIONS, RECIPE, live_run, tell, tell_all

BLOCK, HEADER = 32768, 7  # bytes of a block of the file, and of a header
WHOLE, LAST = 1, 4  # kinds of parts that end a record

pytestmark = [
    pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed"),
    pytest.mark.xdist_group("wandb"),  # imported once
]


@pytest.fixture(autouse=True)
def _silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")


def records(folder: Path) -> list[Any]:
    """The records of the only run in a folder of W&B, once its process has written the last one."""
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    while not (found := list(records_of(path))) or not found[-1].HasField("exit"):
        time.sleep(0.01)
    return found


def records_of(path: Path) -> Iterator[Any]:
    """The records of a log file as LevelDB has it."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, part = path.read_bytes(), HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = unpack_from("<IHB", data, at)
        at += HEADER + length
        part += data[at - length : at]
        if kind in (WHOLE, LAST):
            yield Record.FromString(part)
            part = b""


def items(message: Any) -> dict[str, Any]:
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in message}


def history(folder: Path) -> list[dict[str, Any]]:
    """What was logged, step by step, but for W&B's own columns."""
    rows = [items(record.history.item) for record in records(folder) if record.HasField("history")]
    return [{name: value for name, value in row.items() if name == "_step" or name[0] != "_"} for row in rows]


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for record in records(folder):
        found |= items(record.summary.update)
    return found


def exit_code(folder: Path) -> int:
    return records(folder)[-1].exit.exit_code


def test_every_evaluation_and_every_metric_is_logged(tmp_path: Path):
    tell_all(WandbTracker(project="trial"), live_run(tmp_path))
    rows = history(tmp_path)
    assert rows[1] == {
        "_step": 2, "run/t": 1.5, "run/tasks": 3, "run/bytes_up": 100, "run/bytes_down": 200, "loss": 0.125,
        "accuracy": 0.875, "auroc": 0.71875, "clients/accuracy": 0.4375, "clients/accuracy.p10": 0.21875,
    }  # fmt: skip
    assert [row["_step"] for row in rows] == [0, 2, 4, 6]
    assert isnan(rows[0]["auroc"])


def test_hyper_parameters_recipe_and_the_end_are_there(tmp_path: Path):
    tell_all(WandbTracker(project="trial"), live_run(tmp_path))
    (run,) = [record.run for record in records(tmp_path) if record.HasField("run")]
    assert (run.project, run.display_name, run.run_group) == ("trial", "fedbuff seed 3", "fedbuff")
    config = items(run.config.update)
    assert config["algorithm"] == {"name": "fedbuff", "size": 2, "staleness": {"a": 0.5}}
    assert config["training"] == RECIPE["training"]
    assert config["seed"] == 3
    assert config["versions"]["torch"] == "2.13.0"
    (recipe,) = tmp_path.glob("wandb/offline-run-*/files/recipe.yaml")
    assert yaml.safe_load(recipe.read_text()) == RECIPE
    found = summary(tmp_path)
    assert (found["best/accuracy"], found["best/loss"]) == (0.875, 0.125)
    assert found["stop_reason"] == "versions"
    assert exit_code(tmp_path) == 0


@pytest.mark.parametrize(("error", "code"), [(RunError("the disk is full"), 1), (KeyboardInterrupt(), 255)])
def test_a_run_that_fails_has_an_exit_code(tmp_path: Path, error: BaseException, code: int):
    tracker = WandbTracker()
    tracker.on_exception(tell(tracker, live_run(tmp_path, recipe=None)), error)
    assert exit_code(tmp_path) == code
    assert summary(tmp_path)["stop_reason"].startswith(type(error).__name__)


def test_a_resumed_run_keeps_its_identifier_and_has_each_evaluation_once(tmp_path: Path):
    tracker = WandbTracker()
    interrupted = tell(tracker, live_run(tmp_path), EVALUATIONS[:3])
    tracker.on_exception(interrupted, KeyboardInterrupt())
    begun = (tmp_path / "wandb-run-id").read_text()
    tell_all(tracker, live_run(tmp_path, EVALUATIONS[:2]), EVALUATIONS[2:])
    assert [(row["_step"], row["accuracy"]) for row in history(tmp_path)] == [
        (0, 0.25), (2, 0.875), (4, 0.5), (6, 0.75)
    ]  # fmt: skip
    assert {record.run.run_id for record in records(tmp_path) if record.HasField("run")} == {begun.strip()}


def test_two_runs_at_the_same_time_are_kept_apart(tmp_path: Path):
    tracker = WandbTracker()
    runs = [tell(tracker, live_run(tmp_path / str(seed), seed=seed), EVALUATIONS[:seed]) for seed in (1, 2)]
    for run in runs:
        tracker.on_exception(run, KeyboardInterrupt())
    assert [len(history(tmp_path / str(seed))) for seed in (1, 2)] == [1, 2]
