"""The command that simulates a deployed run in a world fitted to its journal."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from offbeat.cli.allow import AllowOption, allowed_names
from offbeat.cli.common_options import AsJson, DeviceOfRecipe, Directory, Sets, with_options
from offbeat.cli.completion import algorithm_names
from offbeat.cli.console import (
    RunWatcher,
    check_diverged,
    live_progress,
    out,
    plain_table,
    print_json,
    resumable,
    show_run,
)
from offbeat.cli.simulate import new_directory
from offbeat.core.errors import UsageError, reason_of

if TYPE_CHECKING:
    from offbeat.world.fit import Fit
    from offbeat.world.world import World


def simulate_like(
    directory: Directory,
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--algorithm",
            "-a",
            help="a label of the recipe, or an algorithm; default: the run's own",
            autocompletion=algorithm_names,
        ),
    ] = None,
    sets: Sets = None,
    seed: Annotated[int | None, typer.Option(min=0, help="the simulation's seed")] = None,
    speeds: Annotated[
        Literal["jitter", "tasks"],
        typer.Option(help="jitter: a mean and a deviation per client; tasks: the recorded speeds one by one"),
    ] = "jitter",
    outs: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            "-o",
            help="directory to write to; also a file for the fitted world, *.yaml or a trace *.csv, with "
            "which alone nothing is simulated; may be repeated",
        ),
    ] = None,
    device: DeviceOfRecipe = None,
    as_json: AsJson = False,
    allow: AllowOption = None,
) -> None:
    """Simulate a deployed run, or another algorithm in its world.

    The world is fitted to the run's journal.
    """
    from offbeat.recipes import from_run
    from offbeat.recipes.build import run_recipe
    from offbeat.recipes.names import check_names
    from offbeat.runs.record import read_run

    world_out, output = _places(outs or ())
    only_fit = world_out is not None and output is None
    if only_fit and (algorithm, sets, seed, device) != (None, None, None, None):
        raise UsageError(
            f"--out {world_out} alone simulates nothing: leave out --algorithm, --set, --seed and --device, "
            "or give a directory too"
        )
    allowed = allowed_names(allow, [directory], sets, [algorithm] if algorithm else [])
    record = read_run(directory)
    if only_fit:
        fit = from_run.fit_run(record, speeds=speeds)
        _show_fit(fit, as_json)
        _write_world(world_out, fit.world, as_json)
        return
    changes = with_options(sets, device=device)
    changes += [f"seed={seed}"] if seed is not None else []
    like = from_run.simulate_like(record, algorithm=algorithm, sets=changes, speeds=speeds)
    recipe = like.recipe
    check_names(recipe, allowed)
    if not as_json:
        _show_fit(like.fit)
    _write_world(world_out, recipe.world, as_json)
    output = output or new_directory(f"like-{directory.resolve().name}")
    with resumable(output), live_progress() as progress:
        run = run_recipe(recipe, out=output, watch=RunWatcher(progress), allow=allowed)
    difference = from_run.other_data(record, read_run(output))
    if as_json:
        ended = {"directory": str(run.path), "stop_reason": run.stop_reason, "summary": run.summary}
        print_json({**_document(like.fit), **ended, "difference": difference})
        check_diverged(run)
        return
    show_run(run, f"see both with: offbeat report {quote(str(directory))} {quote(str(output))}")
    if difference is not None:
        out.print(difference, markup=False)


def _places(outs: Sequence[Path]) -> tuple[Path | None, Path | None]:
    """The file of the fitted world and the directory of the run, of the values of `--out`."""
    worlds = [path for path in outs if path.suffix in (".yaml", ".yml", ".csv")]
    runs = [path for path in outs if path not in worlds]
    if len(worlds) > 1 or len(runs) > 1:
        raise UsageError("--out is given twice: give one directory, and one file for the fitted world")
    return next(iter(worlds), None), next(iter(runs), None)


def _document(fit: "Fit") -> dict[str, object]:
    """A fit as JSON has it: the clients, and the assumptions."""
    return {"clients": fit.clients, "notes": fit.notes}


def _show_fit(fit: "Fit", as_json: bool = False) -> None:
    if as_json:
        print_json(_document(fit))
        return
    table = plain_table("client", "updates", "lost", "s/step", "± %", "latency", "down", "up")
    for c in fit.clients:
        table.add_row(
            str(c.client), str(c.arrived), str(c.lost), f"{c.seconds_per_step:.4g}", f"{100 * c.jitter:.1f}",
            f"{c.latency:.3g} s", _rate(c.down), _rate(c.up),
        )  # fmt: skip
    out.print(table)
    for note in fit.notes:
        out.print(note, markup=False)


def _rate(bits: float | None) -> str:
    """A bandwidth in words."""
    return "–" if bits is None else f"{bits / 1e6:.3g} Mbit/s"


def _write_world(path: Path | None, world: "World", quiet: bool) -> None:
    from offbeat.recipes.from_run import world_text
    from offbeat.world.trace import trace_text

    if path is None:
        return
    as_trace = path.suffix == ".csv"
    try:
        text = trace_text(world) if as_trace else world_text(world)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out {path} cannot be written: {reason_of(error)}") from None
    if quiet:
        return
    use = "name it as a recipe's world.trace" if as_trace else "put it into a recipe"
    out.print(f"world written to {path}; {use} to use it again", markup=False)
