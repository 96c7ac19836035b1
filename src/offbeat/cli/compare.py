"""The command that runs several algorithms under several seeds."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli import common_options, executor_options
from offbeat.cli.allow import AllowOption, allowed_names, recipe_folder
from offbeat.cli.completion import labels_of_recipe
from offbeat.cli.console import (
    CompareWatcher,
    check_diverged,
    live_progress,
    out,
    print_json,
    repeatable,
)
from offbeat.cli.simulate import new_directory
from offbeat.cli.state_dir import make_directory
from offbeat.core.errors import UsageError, reason_of

if TYPE_CHECKING:
    from offbeat.recipes.recipe import Recipe
    from offbeat.report.table import Table

TABLE_WIDTH = 100


def compare(
    recipe: common_options.RecipeName,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--algorithm",
            "-a",
            metavar="LABEL",
            help="label to compare; may be repeated; default: all in the recipe",
            autocompletion=labels_of_recipe,
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="number of seeds")] = None,
    target: common_options.Target = None,
    metric: common_options.MetricName = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="label whose time counts as 1.00x", autocompletion=labels_of_recipe),
    ] = None,
    sets: common_options.Sets = None,
    sweeps: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep", metavar="KEY=A,B,C", help="values to try; repeat for more keys: each with each"
        ),
    ] = None,
    scales: common_options.Scales = None,
    directory: common_options.OutOption = None,
    workers: Annotated[
        str, typer.Option("--workers", help="number of simultaneous runs, each a process, or auto")
    ] = "auto",
    executor: executor_options.ExecutorOption = "local",
    ray_address: executor_options.RayAddress = None,
    client_memory: executor_options.ClientMemory = None,
    device: common_options.DeviceOfRecipe = None,
    callbacks: common_options.Callbacks = None,
    tables: common_options.Tables = None,
    as_json: common_options.AsJson = False,
    allow: AllowOption = None,
) -> None:
    """Compare several algorithms under several seeds in a table.

    The same call continues a comparison that was interrupted.
    """
    common_options.check_recipe(recipe)
    from offbeat.core.validation import did_you_mean
    from offbeat.recipes.compare import compare as run_comparison
    from offbeat.recipes.compare import plan
    from offbeat.recipes.load import load_recipe
    from offbeat.report import make_table
    from offbeat.report.table_files import table_format, to_records

    for path in tables or ():
        # A file that cannot be written as a table is refused here, not after all runs.
        table_format(path)
    changes = common_options.with_options(sets, callbacks, device)
    loaded = load_recipe(recipe, sets=changes, scales=scales or (), sweeps=sweeps or ())
    names = _labels(loaded, labels or ())
    folder = directory or new_directory(recipe)
    measured, goal = common_options.choose_goal(metric, target, loaded.metric, loaded.target)
    processes = executor_options.count_of(
        "--workers", "1" if workers == "auto" and executor == "ray" else workers
    )
    execution = executor_options.execution(
        "0", executor, ray_address, client_memory, share=processes, keep_checkpoint=False
    )
    allowed = allowed_names(allow, [recipe_folder(recipe)], changes, sweeps, names if labels else ())
    planned = plan(loaded, names, seeds or loaded.seeds, folder, execution, metric=measured, allow=allowed)
    base = baseline or (loaded.baseline if loaded.baseline in names else None)
    known = {*names, *(run.label for run in planned)}
    if base is not None and base not in known:
        raise UsageError(f"--baseline {base} is not among the algorithms{did_you_mean(base, known)}")
    make_directory(folder)
    with repeatable(folder), live_progress() as progress:
        records = run_comparison(planned, processes, CompareWatcher(progress, len(planned)))
    table = make_table(records, target=goal, metric=measured, baseline=base)
    if as_json:
        print_json({"directory": str(folder), "table": to_records(table)})
    else:
        _print_table(table)
    notes = [f"wrote {_written(table, path)}" for path in tables or ()]
    if not as_json:
        for note in (*notes, f"runs in {folder}; see them with: offbeat report {quote(str(folder))}"):
            out.print(note, markup=False)
    check_diverged(*records)


def _labels(recipe: "Recipe", labels: Sequence[str]) -> list[str]:
    from offbeat.algorithms import ALGORITHMS
    from offbeat.core.validation import did_you_mean

    possible = {*recipe.algorithms, *ALGORITHMS}
    names = list(labels or recipe.algorithms)
    if not names:
        raise UsageError("the recipe lists no algorithms: give --algorithm, or put them into the recipe")
    if not all(names) or len(set(names)) < len(names):
        raise UsageError(
            f"--algorithm {' --algorithm '.join(labels)} is not allowed: name each algorithm once"
        )
    for name in names:
        if name not in possible:
            raise UsageError(f"--algorithm {name} is unknown{did_you_mean(name, possible)}")
    return names


def _print_table(table: "Table") -> None:
    """Print the comparison."""
    from offbeat.report import to_rich

    # On a narrower terminal whole lines wrap, and no cell is cut.
    out.print(to_rich(table), width=max(out.width, TABLE_WIDTH), crop=False, soft_wrap=False)


def _written(table: "Table", path: Path) -> Path:
    """The file to which a table has been written."""
    from offbeat.report import write_table

    try:
        return write_table(table, path)
    except OSError as error:
        raise UsageError(f"--table {path} cannot be written: {reason_of(error)}") from None
