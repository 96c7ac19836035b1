"""The commands that simulate one run: begin it, go on with it."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.console import RunWatcher, live_display, out, summary_lines
from offbeat.cli.executor_options import (
    ClientMemory,
    ExecutorOption,
    RayAddress,
    WorkersOption,
    memory_size,
    trainers,
)
from offbeat.cli.options import Directory, OutOption, RecipeName, Scales, Sets
from offbeat.recipes.build import resume_run, run_recipe
from offbeat.recipes.load import load_recipe
from offbeat.runs.record import read_run
from offbeat.sim.result import Run


def run(
    recipe: RecipeName,
    sets: Sets = None,
    scales: Scales = None,
    seed: Annotated[int | None, typer.Option("--seed", help="the run's seed")] = None,
    directory: OutOption = None,
    workers: WorkersOption = "0",
    executor: ExecutorOption = "local",
    ray_address: RayAddress = None,
    client_memory: ClientMemory = None,
) -> None:
    """Simulate a recipe's algorithm."""
    loaded = load_recipe(recipe, sets=sets or (), scales=scales or (), seed=seed)
    place = directory or new_directory(recipe)
    memory = memory_size("--client-memory", client_memory)
    count, trainer = trainers(workers, executor, ray_address)
    with live_display() as live:
        finished = run_recipe(
            loaded, loaded.algorithm, seed=loaded.seed, out=place,
            workers=count, executor=trainer, watch=RunWatcher(live), client_memory=memory,
        )  # fmt: skip
    _show_run(finished)


def resume(
    directory: Directory,
    workers: WorkersOption = "0",
    executor: ExecutorOption = "local",
    ray_address: RayAddress = None,
    client_memory: ClientMemory = None,
) -> None:
    """Go on with an interrupted run, from its last checkpoint; it ends as if never interrupted."""
    memory = memory_size("--client-memory", client_memory)
    count, trainer = trainers(workers, executor, ray_address)
    record = read_run(directory)
    if record.status == "finished":
        out.print(f"{directory} has finished already: {record.stop_reason}")
        return
    with live_display() as live:
        finished = resume_run(
            directory, workers=count, executor=trainer, watch=RunWatcher(live), client_memory=memory
        )
    _show_run(finished)


def new_directory(recipe: str) -> Path:
    """Where to write what nobody has named a place for."""
    return Path("runs") / f"{Path(recipe).stem}-{datetime.now():%Y%m%d-%H%M%S}"


def _show_run(run: Run) -> None:
    for line in summary_lines(run.summary, run.stop_reason):
        out.print(line, markup=False)
    out.print(f"written to {run.path}; see it with: offbeat report {run.path}", markup=False)
