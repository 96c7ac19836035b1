"""The commands that simulate one run: begin it, go on with it."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli.console import RunWatcher, live_progress, out, summary_lines
from offbeat.cli.executor_options import (
    ClientMemory,
    ExecutorOption,
    RayAddress,
    WorkersOption,
    choose_executor,
    memory_size,
)
from offbeat.cli.options import Directory, OutOption, RecipeName, Scales, Sets

if TYPE_CHECKING:
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
    from offbeat.recipes.build import run_recipe
    from offbeat.recipes.load import load_recipe

    loaded = load_recipe(recipe, sets=sets or (), scales=scales or (), seed=seed)
    place = directory or new_directory(recipe)
    memory = memory_size("--client-memory", client_memory)
    count, chosen = choose_executor(workers, executor, ray_address)
    with live_progress() as progress:
        finished = run_recipe(
            loaded, loaded.algorithm, seed=loaded.seed, out=place,
            workers=count, executor=chosen, watch=RunWatcher(progress), client_memory=memory,
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
    from offbeat.recipes.build import resume_run
    from offbeat.runs.record import read_run

    memory = memory_size("--client-memory", client_memory)
    count, chosen = choose_executor(workers, executor, ray_address)
    record = read_run(directory)
    if record.status == "finished":
        out.print(f"{directory} has finished already: {record.stop_reason}")
        return
    with live_progress() as progress:
        finished = resume_run(
            directory, workers=count, executor=chosen, watch=RunWatcher(progress), client_memory=memory
        )
    _show_run(finished)


def new_directory(recipe: str) -> Path:
    """The directory of a run for which none was given."""
    return Path("runs") / f"{Path(recipe).stem}-{datetime.now():%Y%m%d-%H%M%S}"


def _show_run(run: "Run") -> None:
    for line in summary_lines(run.summary, run.stop_reason):
        out.print(line, markup=False)
    out.print(f"written to {run.path}; see it with: offbeat report {run.path}", markup=False)
