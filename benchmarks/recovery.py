"""How long a killed server takes until it serves again, by the length of its journal.

    python benchmarks/recovery.py [--rows 10000 100000 1000000] [--keep DIR]

A state directory is made by a real coordinator and its durable store: 20 sites, FedBuff, a logistic model.
Its process ends without a word, 300 updates after the last checkpoint. Then a new process opens the run, with
the snapshot and, the snapshot deleted, without it. What is timed is `open_run`: all that a server does beside
the start of its process and the loading of its data. It is measured three times; the least is told.
"""

import multiprocessing
import os
import shutil
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from harness import Rows, main, new_process

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


def measure(directory: str) -> list[float]:
    """The seconds that opening takes, those of the processor, and the number of rows."""
    import offbeat.net.server.serve  # noqa: F401  the process's start is not measured

    prepared = experiment()
    from offbeat.net.server.open_run import open_run
    from offbeat.net.server.server_options import ServerOptions

    began, used = time.perf_counter(), time.process_time()
    options = ServerOptions(clients=SITES, lease=1e9, task_timeout=None)
    run: Any = open_run(prepared, Path(directory), options, 1e9)
    return [time.perf_counter() - began, time.process_time() - used, run.coordinator.driver.engine.rows]


def best(directory: Path, snapshot: bool) -> list[float]:
    """The least seconds of three openings of copies of a directory."""
    found = []
    for _ in range(TIMES):
        with tempfile.TemporaryDirectory(dir=directory.parent) as place:
            copy = Path(shutil.copytree(directory, Path(place) / "state"))
            if not snapshot:
                with closing(sqlite3.connect(copy / "run.db")) as database, database:
                    database.execute("DELETE FROM snapshot")
            found.append(new_process(measure, str(copy)))
    return min(found)


def recovery(rows: tuple[int, ...] = (10**4, 10**5, 10**6), keep: Path | None = None) -> Rows:
    """Make the directories, and measure each.

    keep: keep the state directories in this folder
    """
    with tempfile.TemporaryDirectory() as place:
        for number in rows:
            directory = (keep or Path(place)) / f"rows-{number}"
            if not directory.exists():
                process = multiprocessing.get_context("spawn").Process(target=make, args=(directory, number))
                process.start()
                process.join()
                assert process.exitcode == 0
            seconds, cpu, found = best(directory, snapshot=True)
            without, without_cpu, _ = best(directory, snapshot=False)
            yield {
                "rows": int(found), "with its snapshot, s": seconds, "processor": cpu,
                "without, s": without, "its processor": without_cpu,
            }  # fmt: skip


if __name__ == "__main__":
    main(recovery)
