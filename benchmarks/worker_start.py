"""How long worker processes take to start: forked by a fork server, and spawned.

    python benchmarks/worker_start.py [--repeat 5]

Each measurement is an interpreter of its own that has imported Offbeat. It makes a pool of one worker and
waits for its first evaluation, then a second pool: the fork server is there by then. The two ways take turns,
so that what else the machine does falls on both; a ratio is of measurements made one after the other.
"""

import time
from functools import partial
from statistics import median
from unittest.mock import patch

from harness import Rows, in_turns, main, new_process, ratios, spread

import offbeat as ob
from offbeat.local.objectives import Plain
from offbeat.sim.executors import processes
from offbeat.sim.executors.start_method import spawn_context, worker_context

CONTEXTS = {"spawn": spawn_context, "forkserver": worker_context}


def measure(method: str) -> list[float]:
    """The seconds until the first and the second worker's first reply."""
    learner = ob.NoTraining(2, parameters=1000)
    base = learner.initial(0)

    def first_reply() -> float:
        began = time.monotonic()
        pool = processes.ProcessPool(learner, Plain(), 1)
        pool.evaluate(base)
        seconds = time.monotonic() - began
        pool.close()
        return seconds

    with patch.object(processes, "worker_context", CONTEXTS[method]):
        return [first_reply() for _ in range(2)]


def worker_start(repeat: int = 5) -> Rows:
    found = in_turns(repeat, {method: partial(new_process, measure, method) for method in CONTEXTS})
    for index, name in enumerate(("first", "second")):
        spawned, forked = ([times[index] for times in found[method]] for method in CONTEXTS)
        yield {
            "worker": name, "spawn, s": median(spawned), "fork server, s": median(forked),
            "ratio (range)": spread(ratios(forked, spawned)),
        }  # fmt: skip


if __name__ == "__main__":
    main(worker_start)
