"""How long worker processes take to start: forked by a fork server, and spawned.

    python benchmarks/worker_start.py [--repeat 5]

Each measurement is an interpreter of its own that has imported Offbeat. It makes a pool of one worker and
waits for its first evaluation, then a second pool: the fork server is there by then. The two ways take turns,
so that what else the machine does falls on both; a ratio is of measurements made one after the other.
"""

import argparse
import subprocess
import sys
import time
from statistics import median
from unittest.mock import patch

import offbeat as ob
from offbeat.local.objectives import Plain
from offbeat.sim.executors import processes
from offbeat.sim.executors.start_method import spawn_context, worker_context

CONTEXTS = {"spawn": spawn_context, "forkserver": worker_context}


def measure(method: str) -> None:
    """Print the seconds until the first and the second worker's first reply."""
    learner = ob.NoTraining(2, parameters=1000)
    base = learner.initial(0)
    with patch.object(processes, "worker_context", CONTEXTS[method]):
        for _ in range(2):
            began = time.monotonic()
            pool = processes.ProcessPool(learner, Plain(), 1)
            pool.evaluate(base)
            print(time.monotonic() - began)
            pool.close()


def main() -> None:
    """Measure both ways in turn and print medians, with the range."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--method", choices=CONTEXTS, help="measure this one in this interpreter")
    options = parser.parse_args()
    if options.method:
        measure(options.method)
        return
    found: dict[str, list[list[float]]] = {method: [] for method in CONTEXTS}
    for _ in range(options.repeat):
        for method, times in found.items():
            command = [sys.executable, __file__, "--method", method]
            answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            times.append([float(line) for line in answer.split()])
    print("worker          spawn    fork server    ratio (range)")
    for index, name in enumerate(("first", "second")):
        spawned, forked = ([times[index] for times in found[method]] for method in ("spawn", "forkserver"))
        ratios = [fork / spawn for fork, spawn in zip(forked, spawned, strict=True)]
        print(
            f"{name:10} {median(spawned):8.2f} s {median(forked):12.2f} s {median(ratios):8.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f})"
        )


if __name__ == "__main__":
    main()
