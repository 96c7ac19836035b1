"""What a client task costs when there is nothing to train, and what a large population costs.

    python benchmarks/overhead.py [--tasks 20000] [--json FILE]

A: wall time per client task, 21,840 parameters, 10 of 100 clients at a time, all bookkeeping
   included; in memory, and with the journal and checkpoints on disk.
B: peak memory beyond the import with 100,000 clients of which 1,000 train at a time, each in a
   process of its own.

Medians of several runs, with their range; machines are noisy.
"""

import argparse
import json
import multiprocessing
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch

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


def overhead(tasks: int) -> list[dict[str, Any]]:
    """Table A."""
    rows = []
    for name in ALGORITHMS:
        for on_disk in (False, True):
            times = []
            for _ in range(REPEATS):
                with tempfile.TemporaryDirectory() as directory:
                    times.append(once(name, 100, 10, tasks, Path(directory) / "run" if on_disk else None))
            microseconds = sorted(1e6 * t for t in times)
            rows.append(
                {
                    "algorithm": name,
                    "journal": "disk" if on_disk else "memory",
                    "us_per_task": statistics.median(microseconds),
                    "range": (microseconds[0], microseconds[-1]),
                }
            )
    return rows


def _population(name: str, clients: int, concurrency: int, tasks: int, answer: Any) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        once(name, clients, concurrency, tasks, Path(directory) / "run")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer.put(((peak - before) / 1024, time.perf_counter() - began))


def population(clients: int, concurrency: int, tasks: int) -> list[dict[str, Any]]:
    """Table B; FedCompass trains every client, so it is left out."""
    rows = []
    context = multiprocessing.get_context("spawn")
    for name in ("fedavg", "fedasync", "fedbuff"):
        answer = context.Queue()
        process = context.Process(target=_population, args=(name, clients, concurrency, tasks, answer))
        process.start()
        megabytes, seconds = answer.get()
        process.join()
        rows.append({"algorithm": name, "clients": clients, "MiB": megabytes, "seconds": seconds})
    return rows


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    machine = f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
    print(f"{machine}, numpy {numpy.__version__}\n")
    print(
        f"A: {options.tasks} empty client tasks, {PARAMETERS} parameters, 10 of 100 clients (FedCompass: all)"
    )
    tasks = overhead(options.tasks)
    for row in tasks:
        low, high = row["range"]
        print(
            f"  {row['algorithm']:12} journal in {row['journal']:6} {row['us_per_task']:6.1f} us/task", end=""
        )
        print(f"  ({low:.1f} to {high:.1f})")
    print("B: 100,000 clients, 1,000 at a time, journal on disk")
    people = population(100_000, 1_000, options.tasks)
    for row in people:
        print(f"  {row['algorithm']:12} {row['MiB']:7.1f} MiB beyond the import, {row['seconds']:.1f} s")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "A": tasks, "B": people}, indent=1))


if __name__ == "__main__":
    main()
