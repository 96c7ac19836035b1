"""How long a killed server takes until it serves again, by the length of its journal.

    python benchmarks/recovery.py [--rows 10000 100000 1000000] [--json FILE] [--keep DIR]

A state directory is made by a real coordinator and its durable store: 20 sites, FedBuff, a logistic model.
Its process ends without a word, 300 updates after the last checkpoint. Then a new process opens the run, with
the snapshot and, the snapshot deleted, without it. What is timed is `open_run`: all that a server does beside
the start of its process and the loading of its data. It is measured three times; the least is told.
"""

import argparse
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

SITES, AFTER, BATCH, TIMES = 20, 300, 500, 3


def experiment() -> Any:
    """What the run is."""
    import numpy as np
    import torch
    from torch import nn

    import offbeat as ob

    torch.set_num_threads(1)
    source = ob.load("digits", samples=200, test_samples=50)
    data = ob.federate(source, None, [np.arange(200)])
    learner = ob.TorchLearner(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), data, ob.Training(lr=0.1, batch_size=20)
    )
    return ob.Experiment(
        ob.fedbuff(10, steps=5), learner, until=ob.Until(tasks=10**9), evaluate=ob.Every(versions=1000)
    )


def opened(directory: Path) -> Any:
    """The run in its state directory."""
    from offbeat.net.server.open_run import open_run
    from offbeat.net.server.server_options import ServerOptions

    return open_run(experiment(), directory, ServerOptions(clients=SITES, lease=1e9, task_timeout=None), 1e9)


def make(directory: Path, rows: int) -> None:
    """Let a run happen until it has so many rows, and leave it as a killed server does."""
    import torch

    from offbeat.net.messages import Register, TaskAssignment, UpdateSubmission

    run = opened(directory)
    coordinator, store, now = run.coordinator, run.store, 0.0
    layout = coordinator.tensors.model.layout
    delta, integers = torch.full((layout.values,), 1e-6), torch.zeros(layout.integers, dtype=torch.int64)
    tasks: dict[str, TaskAssignment] = {}
    batch: list[Any] = []

    def take() -> None:
        effects = coordinator.take()
        tasks.update((name, m) for name, m in effects.messages if isinstance(m, TaskAssignment))
        batch.append(effects)
        if len(batch) == BATCH:
            commit()

    def commit() -> None:
        if batch:
            store.commit(*batch)
            batch.clear()

    def deliver() -> None:
        nonlocal now
        for name in list(tasks):
            now += 0.01
            task = tasks.pop(name)
            # An algorithm may keep the tensors of an update, so each update has its own.
            update = UpdateSubmission(task.task, task.steps, delta.clone(), integers, {}, 0.1)
            coordinator.receive(now, name, update)
            take()
            if store.due(0):
                commit()
                store.checkpoint(coordinator)

    for n in range(SITES):
        coordinator.receive(now, f"site-{n}", Register(100, 5))
        take()
    while coordinator.driver.engine.rows < rows:
        deliver()
    commit()
    store.checkpoint(coordinator)
    for _ in range(AFTER // SITES):
        deliver()
    commit()
    os._exit(0)


def measure(directory: Path) -> None:
    """Print the seconds that opening takes, and the number of rows."""
    import offbeat.net.server.serve  # noqa: F401  the process's start is not measured

    prepared = experiment()
    from offbeat.net.server.open_run import open_run
    from offbeat.net.server.server_options import ServerOptions

    began, used = time.perf_counter(), time.process_time()
    options = ServerOptions(clients=SITES, lease=1e9, task_timeout=None)
    run: Any = open_run(prepared, directory, options, 1e9)
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    print(json.dumps([seconds, cpu, run.coordinator.driver.engine.rows]))
    sys.stdout.flush()
    os._exit(0)


def child(*words: str) -> str:
    """What a process of this script prints."""
    done = subprocess.run([sys.executable, __file__, *words], check=True, capture_output=True, text=True)
    return done.stdout


def best(directory: Path, snapshot: bool) -> list[float]:
    """The least seconds of three openings of copies of a directory."""
    found = []
    for _ in range(TIMES):
        with tempfile.TemporaryDirectory(dir=directory.parent) as place:
            copy = Path(shutil.copytree(directory, Path(place) / "state"))
            if not snapshot:
                with closing(sqlite3.connect(copy / "run.db")) as database, database:
                    database.execute("DELETE FROM snapshot")
            found.append(json.loads(child("--measure", str(copy)).splitlines()[-1]))
    return min(found)


def main() -> None:
    """Make the directories, and measure each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[10**4, 10**5, 10**6])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="keep the state directories in this folder")
    parser.add_argument("--make", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.make:
        make(Path(chosen.make[0]), int(chosen.make[1]))
    if chosen.measure:
        measure(Path(chosen.measure))
    results = {}
    with tempfile.TemporaryDirectory() as place:
        folder = chosen.keep or Path(place)
        for rows in chosen.rows:
            directory = folder / f"rows-{rows}"
            if not directory.exists():
                child("--make", str(directory), str(rows))
            seconds, cpu, found = best(directory, snapshot=True)
            without, without_cpu, _ = best(directory, snapshot=False)
            results[int(found)] = {
                "snapshot_s": seconds,
                "snapshot_cpu_s": cpu,
                "journal_s": without,
                "journal_cpu_s": without_cpu,
            }
            print(
                f"{int(found):9,} rows: {seconds:.3f} s with its snapshot (processor {cpu:.3f} s), "
                f"{without:.2f} s without ({without_cpu:.2f} s)"
            )
    if chosen.json:
        chosen.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
