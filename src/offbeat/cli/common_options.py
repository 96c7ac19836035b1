"""Options that several commands have."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from offbeat.cli.completion import labels_of_runs, recipe_names
from offbeat.net.monitor.logs import Style

RecipeName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="a recipe file, or the name of a built-in one",
        autocompletion=recipe_names,
    ),
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change the recipe; once for each key")
]
Scales = Annotated[
    list[str] | None,
    typer.Option("--scale", help="one of the recipe's named sets of changes; may be repeated"),
]
OutOption = Annotated[Path | None, typer.Option("--out", "-o", help="directory to write to")]
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="a run's directory")]
Directories = Annotated[list[Path], typer.Argument(metavar="DIR...", help="runs, or directories of runs")]
Target = Annotated[float | None, typer.Option(help="value of the metric; the time to reach it is measured")]
MetricName = Annotated[
    str | None,
    typer.Option("--metric", metavar="NAME", help="metric by which runs are compared; usually accuracy"),
]
Tables = Annotated[
    list[Path] | None,
    typer.Option("--table", metavar="FILE", help="file for the table: *.csv, *.md or *.tex; may be repeated"),
]
AsJson = Annotated[bool, typer.Option("--json", help="print it as JSON, for programs")]
Baseline = Annotated[
    str | None, typer.Option(help="label whose time counts as 1.00x", autocompletion=labels_of_runs)
]
Callbacks = Annotated[
    list[str] | None,
    typer.Option("--callback", metavar="NAME", help="function called during the run; may be repeated"),
]
AsPerson = Annotated[
    str | None,
    typer.Option("--as", metavar="NAME", help="who you are, for the audit; default: the system's user"),
]
StateDirectory = Annotated[Path, typer.Option(metavar="DIR", help="the run's directory")]
Seed = Annotated[int | None, typer.Option(help="the run's seed")]
SiteName = Annotated[str | None, typer.Option("--name", help="the site's name, if no credential contains it")]
SiteState = Annotated[
    Path | None,
    typer.Option("--state", metavar="DIR", help="directory for the site's state and pending update"),
]
AccessSets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="one of the keys access.…; once for each key"),
]
DeviceOfRecipe = Annotated[
    str | None,
    typer.Option("--device", help="train on cpu, cuda, cuda:N or mps; default: the recipe's training.device"),
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:N or mps")]
Log = Annotated[Style, typer.Option(help="auto, text or json")]
LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error")]


def check_recipe(name: str) -> None:
    """Refuse a recipe that is not there, before PyTorch is imported. Raises `UsageError`."""
    from offbeat.recipes.built_in import find_recipe

    find_recipe(name)


def choose_goal(
    metric: str | None, target: float | None, usual_metric: str | None, usual_target: float | None
) -> tuple[str | None, float | None]:
    """The metric that runs are compared by and its target: as given, else the recipe's for that metric."""
    from offbeat.core.limits import check_target

    chosen = metric or usual_metric
    if target is None and chosen == usual_metric:
        target = usual_target
    check_target(chosen, target)
    return chosen, target


def names_of(texts: Sequence[str]) -> list[str]:
    """The names in the values of an option that takes several, separated by commas, and may be repeated."""
    return [name.strip() for text in texts for name in text.split(",")]


def with_options(
    sets: list[str] | None, callbacks: list[str] | None = None, device: str | None = None
) -> list[str]:
    """Changes of a recipe, with those that have options of their own."""
    given = {"callbacks": callbacks, "training.device": device}
    named = [f"{key}={json.dumps(value)}" for key, value in given.items() if value]
    return [*(sets or ()), *named]


def file_option(text: str) -> Any:
    """An option whose value is a file, named as its parameter."""
    return typer.Option(metavar="FILE", help=text)
