"""Runs in processes of their own: of one whose process has ended an error tells, and nothing waits for it."""

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import offbeat as ob
from offbeat.core.errors import RunError
from offbeat.recipes.load import check
from offbeat.recipes.run_pool import PlannedRun, RunProgress, run_planned

LONG: dict[str, Any] = {
    "clients": 3,
    "data": {"dataset": "digits", "partition": {"kind": "iid"}},
    "model": {"name": "logistic"},
    "training": {"lr": 0.3},
    "world": {"seconds_per_step": 0.1},
    "algorithm": {"name": "fedbuff", "steps": 1, "size": 2},
    "until": {"tasks": 10_000_000},
    "evaluate": {"versions": 100},
}


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGTERM, r"told the process of .*run to end \(SIGTERM\): the run is at its last checkpoint"),
        (signal.SIGKILL, "a run's process ended"),
    ],
)
def test_a_process_that_others_end_ends_the_comparison(
    number: signal.Signals, said: str, tmp_path: Path
) -> None:
    others = set(multiprocessing.active_children())
    planned = PlannedRun(check(LONG, "test").with_seed(1), "long", tmp_path / "run")
    ended = []

    def watch(report: RunProgress) -> None:
        if report.progress is not None and not ended:
            (worker,) = set(multiprocessing.active_children()) - others
            assert worker.pid is not None
            os.kill(worker.pid, number)
            ended.append(worker.pid)

    with pytest.raises(RunError, match=said):
        run_planned([planned], 1, watch)
    assert ob.read_run(tmp_path / "run").status == ("interrupted" if number == signal.SIGTERM else "running")
