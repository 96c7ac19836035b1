"""Serves a run, with a checkpoint a second: python -m tests.backup.under_load DIRECTORY SIZE TASKS."""

import sys
import time
from pathlib import Path

import torch

from tests.backup.served_run import ServedRun

PACE = 0.02


def main() -> None:
    """Serve it to its end."""
    torch.set_num_threads(1)
    run = ServedRun(Path(sys.argv[1]), size=int(sys.argv[2]), tasks=int(sys.argv[3]), pause=1.0)
    while run.coordinator.stopped is None:
        run.step()
        if run.store.due(4 * run.size):
            run.checkpoint()
        time.sleep(PACE)  # a site's training
    run.store.finish(run.coordinator, {})


if __name__ == "__main__":
    main()
