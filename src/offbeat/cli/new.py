"""The command that makes a new project."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from offbeat.cli.console import out


def new(
    folder: Annotated[Path, typer.Argument(metavar="NAME", help="the project's folder, new or empty")],
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="offbeat|flower|flower-app",
            help="whose training code: a module's, a Flower NumPyClient's, a Flower ClientApp's",
        ),
    ] = "offbeat",
) -> None:
    """Make a project of your own that runs.

    The project has a model, data of three sites, a recipe, a test and a deployment.
    """
    from offbeat.project.create import create_project

    for path in create_project(folder, source):
        out.print(f"wrote {folder / path}", markup=False)
    out.print(f"go on with: cd {quote(str(folder))}; README.md says what runs", markup=False)
