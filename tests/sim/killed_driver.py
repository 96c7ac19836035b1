"""Starts a run, kills it with SIGKILL after so many seconds, resumes it, kills it again, and so on.

    python tests/sim/killed_driver.py DIRECTORY ALGORITHM SECONDS…

Every life is a forked process: importing PyTorch takes longer than the run.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

import offbeat as ob
from offbeat.core.learner import LocalTask
from tests.sim.sim_worlds import HARD, Wrapped, digits, make

LONG = ob.Until(tasks=400)
EVERY = ob.Every(versions=5)
WORLD = HARD


class Slow(Wrapped):
    """Takes some milliseconds a task, so that a life can end in the middle of a run."""

    def before(self, task: LocalTask) -> None:
        time.sleep(0.008)


def slow_digits() -> Slow:
    return Slow(digits())


def live(directory: Path, name: str, learner: Slow) -> None:
    """Start or go on, to the end."""
    options = {"until": LONG, "evaluate": EVERY, "checkpoint_seconds": 0.05}
    if (directory / "run.db").exists():
        ob.resume(directory, make(name), WORLD, learner, **options)
    else:
        ob.simulate(make(name), WORLD, learner, seed=2, out=directory, **options)


def saved(directory: Path) -> set[int]:
    """The length of the journal at the last checkpoint, if there is one."""
    checkpoint = ob.read_run(directory).checkpoint() if (directory / "run.db").exists() else None
    return {checkpoint.journal} if checkpoint else set()


def ended(child: int) -> bool:
    """Whether a process has ended; it stays to be waited for."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def main(directory: Path, name: str, moments: list[float]) -> None:
    torch.set_num_threads(1)
    os.fsync = lambda _: None  # a killed process, unlike a power cut, loses nothing the system has
    learner = slow_digits()
    ob.simulate(make(name), WORLD, learner, until=ob.Until(tasks=3))  # what PyTorch imports at first use
    killed, checkpoints = 0, set[int]()
    for moment in moments:
        child = os.fork()
        if child == 0:
            live(directory, name, learner)
            os._exit(0)
        time.sleep(moment)
        while moment is moments[-1] and not checkpoints and not saved(directory) and not ended(child):
            time.sleep(0.01)  # on a slow machine the last life is longer: one checkpoint is wanted
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
        if not os.WIFSIGNALED(status) and os.waitstatus_to_exitcode(status) != 0:
            raise SystemExit("a life ended with an error")
        checkpoints |= saved(directory)
    print(json.dumps({"killed": killed, "checkpoints": len(checkpoints)}))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], [float(moment) for moment in sys.argv[3:]])
