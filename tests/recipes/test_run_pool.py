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
from tests.forks import Fork

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

SCRIPT = """
import sys
from pathlib import Path
from offbeat.recipes.load import check
from offbeat.recipes.run_pool import PlannedRun, run_planned

def main():
    short = {"clients": 3, "model": "logistic", "algorithm": {"name": "fedbuff", "steps": 1, "size": 2},
             "data": {"dataset": "digits", "partition": {"kind": "iid"}}, "until": {"tasks": 3}}
    runs = [PlannedRun(check(short, "test").with_seed(n), f"run-{n}", Path(f"run-{n}")) for n in range(2)]
    run_planned(runs, 2, lambda report: print("ended") if report.finished else None)

"""


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


def run_script(text: str, folder: Path) -> tuple[int, str]:
    """Exit code and errors of a script."""
    (folder / "script.py").write_text(text)
    process = Fork(folder / "script.py", cwd=folder)
    _, errors = process.communicate(300)
    return process.returncode, errors


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    code, errors = run_script(SCRIPT + "main()\n", tmp_path)
    assert code == 1
    assert "must do so under `if __name__ == '__main__':`" in errors.splitlines()[-1]


@pytest.mark.thorough
def test_a_guarded_script_on_standard_input_can_be_run(tmp_path: Path) -> None:
    main = "if __name__ == '__main__':\n    sys.modules['__main__'].__file__ = '<stdin>'\n    main()\n"
    code, errors = run_script(SCRIPT + main, tmp_path)
    assert (code, errors) == (0, "")
    assert {path.name for path in tmp_path.glob("run-*")} == {"run-0", "run-1"}
