"""Evaluations as a table."""

import csv
from math import isnan
from pathlib import Path

import pytest

from offbeat.callbacks.csv_tracker import CSVTracker
from offbeat.core.errors import UsageError
from tests.callbacks.told import EVALUATIONS, MODEL, evaluation, live_run, tell, tell_all


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_evaluation_and_every_metric_is_there_while_the_run_goes_on(tmp_path: Path):
    tracker, run = CSVTracker(), live_run(tmp_path)
    tracker.on_start(run)
    for count, metrics in enumerate(EVALUATIONS, 1):
        tracker.on_evaluation(run, metrics, MODEL)
        assert len(read(tmp_path / "metrics.csv")) == count
    rows = read(tmp_path / "metrics.csv")
    assert rows[1] == {
        "version": "2", "t": "1.5", "tasks": "3", "bytes_up": "100", "bytes_down": "200", "loss": "0.125",
        "accuracy": "0.875", "auroc": "0.71875",
        "clients.accuracy": "0.4375", "clients.accuracy.p10": "0.21875",
    }  # fmt: skip
    assert isnan(float(rows[0]["auroc"]))


def test_a_metric_that_comes_later_has_a_column(tmp_path: Path):
    run = live_run(tmp_path)
    tell_all(CSVTracker(), run, [evaluation(0), evaluation(1, dice=0.5), evaluation(2)])
    assert [row["dice"] for row in read(tmp_path / "metrics.csv")] == ["", "0.5", ""]


def test_a_run_of_another_party_may_have_very_many_metrics(tmp_path: Path):
    names = [f"m{n}" for n in range(30_000)]
    tell_all(CSVTracker(), live_run(tmp_path), [evaluation(0, **dict.fromkeys(names, 0.5))])
    assert list(read(tmp_path / "metrics.csv")[0])[-30_000:] == names


def test_a_resumed_run_has_each_evaluation_once(tmp_path: Path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    tell_all(CSVTracker(), live_run(whole))
    tell(CSVTracker(), live_run(killed), EVALUATIONS[:3])
    with (killed / "metrics.csv").open("a") as file:
        file.write("6,4.5")  # what a full disk leaves
    tell_all(CSVTracker(), live_run(killed, EVALUATIONS[:1]), EVALUATIONS[1:])
    assert (killed / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    assert [path.name for path in killed.iterdir()] == ["metrics.csv"]


def test_infinity_is_written_as_it_is_read_after_a_resumption(tmp_path: Path):
    tell_all(CSVTracker(), live_run(tmp_path), [evaluation(0, error=float("inf"))])
    assert read(tmp_path / "metrics.csv")[0]["error"] == "nan"


def test_one_tracker_records_several_runs(tmp_path: Path):
    tracker = CSVTracker(path=tmp_path / "{label}" / "{seed}.csv")
    for seed in (0, 1):
        tell_all(tracker, live_run(None, seed=seed), EVALUATIONS[: seed + 1])
    assert [len(read(tmp_path / "fedbuff" / f"{seed}.csv")) for seed in (0, 1)] == [1, 2]


def test_a_run_without_a_directory_needs_a_path():
    with pytest.raises(UsageError, match=r"the run has no directory for path: give path, or the run's dir"):
        CSVTracker().on_start(live_run(None))
