"""The commands that simulate one run: begin it, go on with it."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli import common_options, executor_options
from offbeat.cli.allow import AllowOption, allowed_names, recipe_folder
from offbeat.cli.console import (
    RunWatcher,
    check_diverged,
    live_progress,
    out,
    resumable,
    see_with,
    show_run,
)
from offbeat.core.labels import check_label


def run(
    recipe: common_options.RecipeName,
    sets: common_options.Sets = None,
    scales: common_options.Scales = None,
    seed: common_options.Seed = None,
    directory: common_options.OutOption = None,
    label: Annotated[str | None, typer.Option(metavar="NAME", help="the run's name in reports")] = None,
    workers: executor_options.WorkersOption = "0",
    executor: executor_options.ExecutorOption = "local",
    ray_address: executor_options.RayAddress = None,
    client_memory: executor_options.ClientMemory = None,
    device: common_options.DeviceOfRecipe = None,
    callbacks: common_options.Callbacks = None,
    allow: AllowOption = None,
    no_checkpoint: Annotated[
        bool,
        typer.Option("--no-keep-checkpoint", help="the run cannot continue under other limits after its end"),
    ] = False,
    as_json: common_options.AsJson = False,
) -> None:
    """Simulate a recipe's algorithm."""
    common_options.check_recipe(recipe)
    from offbeat.recipes.build import run_recipe
    from offbeat.recipes.load import load_recipe

    changes = common_options.with_options(sets, callbacks, device)
    loaded = load_recipe(recipe, sets=changes, scales=scales or (), seed=seed)
    if label is not None:
        check_label(label, "--label")
    place = directory or new_directory(recipe)
    execution = executor_options.execution(
        workers, executor, ray_address, client_memory, keep_checkpoint=not no_checkpoint
    )
    with resumable(place), live_progress() as progress:
        finished = run_recipe(
            loaded, execution, out=place, watch=RunWatcher(progress), label=label, metric=loaded.metric,
            allow=allowed_names(allow, [recipe_folder(recipe)], changes),
        )  # fmt: skip
    show_run(finished, see_with(place), as_json)


def resume(
    directory: common_options.Directory,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="until.KEY=VALUE",
            help="other limits, under which a run that has ended continues",
        ),
    ] = None,
    workers: executor_options.WorkersOption = "0",
    executor: executor_options.ExecutorOption = "local",
    ray_address: executor_options.RayAddress = None,
    client_memory: executor_options.ClientMemory = None,
    device: common_options.DeviceOfRecipe = None,
    callbacks: common_options.Callbacks = None,
    allow: AllowOption = None,
    as_json: common_options.AsJson = False,
) -> None:
    """Continue an interrupted run, or an ended one.

    A run that has ended continues under other limits.
    """
    from offbeat.recipes.build import recorded_recipe, resume_run
    from offbeat.recipes.load import changed_limits, document_of
    from offbeat.runs.extension import check_extension, check_simulated
    from offbeat.runs.record import read_run

    execution = executor_options.execution(workers, executor, ray_address, client_memory)
    record = read_run(directory)
    check_simulated(record)
    until = changed_limits(document_of(recorded_recipe(record)), sets, str(directory)) if sets else None
    if record.status == "finished" and not check_extension(record, until):
        out.print(f"{directory} has finished already: {record.stop_reason}")
        check_diverged(record)
        return
    with resumable(directory), live_progress() as progress:
        finished = resume_run(
            directory, execution, watch=RunWatcher(progress), callbacks=callbacks, until=until,
            device=device,
            allow=allowed_names(allow, [directory], common_options.with_options(None, callbacks)),
        )  # fmt: skip
    show_run(finished, see_with(directory), as_json)


def new_directory(recipe: str) -> Path:
    """The directory of a run for which none was given."""
    return Path("runs") / f"{Path(recipe).stem}-{datetime.now():%Y%m%d-%H%M%S}"
