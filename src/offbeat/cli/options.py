"""Options that several commands have."""

from pathlib import Path
from typing import Annotated, Any

import typer

from offbeat.net.monitor.logs import Style

RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="a recipe file, or the name of a built-in one")
]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change the recipe")]
Scales = Annotated[
    list[str] | None, typer.Option("--scale", help="one of the recipe's own sets of changes; may be repeated")
]
OutOption = Annotated[Path | None, typer.Option("--out", "-o", help="directory to write to")]
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="a run's directory")]
Directories = Annotated[list[Path], typer.Argument(metavar="DIR...", help="runs, or directories of runs")]
Target = Annotated[float | None, typer.Option("--target", help="accuracy whose first time is measured")]
Baseline = Annotated[str | None, typer.Option("--baseline", help="label whose time is 1.00x")]
StateDirectory = Annotated[Path, typer.Option("--state", metavar="DIR", help="the run's directory")]
Log = Annotated[Style, typer.Option("--log", help="auto, text or json")]
LogLevel = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error")]


def file_option(option: str, text: str) -> Any:
    """An option whose value is a file."""
    return typer.Option(option, metavar="FILE", help=text)
