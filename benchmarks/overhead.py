"""What a client task costs when there is nothing to train, and what a large population costs.

    python benchmarks/overhead.py [--tasks 20000]

A: wall time per client task, 21,840 parameters, 10 of 100 clients at a time, all bookkeeping
   included; in memory, and with the journal and checkpoints on disk.
B: peak memory beyond the import with 100,000 clients of which 1,000 train at a time, each in a
   process of its own.

Medians of several runs, with their range; machines are noisy.
"""

import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness import Row, Rows, main, new_process, spread

import offbeat as ob

PARAMETERS = 21_840
REPEATS = 5
ALGORITHMS: dict[str, Callable[[int], ob.Algorithm]] = {
    "fedavg": lambda concurrency: ob.fedavg(steps=20, clients_per_round=concurrency),
    "fedasync": lambda concurrency: ob.fedasync(steps=20, concurrency=concurrency),
    "fedbuff": lambda concurrency: ob.fedbuff(size=10, steps=20, concurrency=concurrency),
    "fedcompass": lambda _: ob.fedcompass(q_min=20, q_max=100),
}


def once(name: str, clients: int, concurrency: int, tasks: int, out: Path | None = None) -> float:
    """Seconds per client task of one run."""
    learner = ob.NoTraining(clients, PARAMETERS)
    world = ob.World(ob.laws.Exponential(1.0), jitter=0.05)
    began = time.perf_counter()
    run = ob.simulate(
        ALGORITHMS[name](concurrency), world, learner, until=ob.Until(tasks=tasks), evaluate=None, out=out
    )
    return (time.perf_counter() - began) / run.summary.tasks


def overhead(name: str, tasks: int, on_disk: bool) -> Row:
    """Table A."""
    times = []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as directory:
            times.append(1e6 * once(name, 100, 10, tasks, Path(directory) / "run" if on_disk else None))
    return {"us a task (range)": spread(times)}


def population(name: str, clients: int, concurrency: int, tasks: int) -> list[float]:
    """MiB beyond the import, and seconds, of one run."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        once(name, clients, concurrency, tasks, Path(directory) / "run")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return [(peak - before) / 1024, time.perf_counter() - began]


def overheads(tasks: int = 20_000) -> Rows:
    for name in ALGORITHMS:
        for on_disk in (False, True):
            key = {"algorithm": name, "journal": "disk" if on_disk else "memory"}
            yield key, partial(overhead, name, tasks, on_disk)
    for name in ("fedavg", "fedasync", "fedbuff"):  # FedCompass trains every client
        megabytes, seconds = new_process(population, name, 100_000, 1_000, tasks)
        yield {"algorithm": name, "MiB beyond the import": megabytes, "s": seconds}


if __name__ == "__main__":
    main(overheads)
