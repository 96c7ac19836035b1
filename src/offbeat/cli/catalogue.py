"""The commands about what there is: algorithms, recipes."""

from typing import Annotated

import typer
from rich.table import Table

from offbeat import listing
from offbeat.algorithms import ALGORITHMS
from offbeat.console import out
from offbeat.core.errors import UsageError
from offbeat.core.validation import did_you_mean
from offbeat.recipes.load import built_in, load_recipe


def algorithms(name: Annotated[str | None, typer.Argument(metavar="[NAME]")] = None) -> None:
    """List the algorithms and what they need, or one with its paper, its options and its parts."""
    if name is None:
        listing.show_algorithms(out)
    elif name in ALGORITHMS:
        listing.show_algorithm(out, ALGORITHMS[name])
    else:
        raise UsageError(f"algorithm {name} is unknown{did_you_mean(name, ALGORITHMS)}")


def recipes(name: Annotated[str | None, typer.Argument(metavar="[NAME]")] = None) -> None:
    """List the built-in recipes, or print one to start your own from."""
    known = built_in()
    if name is not None:
        if name not in known:
            raise UsageError(f"recipe {name} is not built in{did_you_mean(name, known)}")
        print(known[name].read_text(encoding="utf-8"), end="")  # noqa: T201
        return
    table = Table("recipe", "what it is", box=None, padding=(0, 2, 0, 0))
    for recipe in known:
        table.add_row(recipe, load_recipe(recipe).title)
    out.print(table)
