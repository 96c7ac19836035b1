"""The commands that list algorithms, recipes, models and datasets."""

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from offbeat.cli.allow import allowed_names
from offbeat.cli.console import add_row, out, plain_table
from offbeat.core.errors import UsageError

if TYPE_CHECKING:
    from offbeat.algorithms import Factory

NOTHING = "nothing: weighted sums of updates are enough"
_RUNS_IT = (
    "what runs an algorithm is the simulator, which has all of this, or a server: under secure aggregation "
    "it sees no single updates"
)
NOT_REVIEWED = "no cryptographer has reviewed privacy: have it reviewed before you rely on it"


def algorithms(name: Annotated[str | None, typer.Argument(metavar="[NAME]")] = None) -> None:
    """List the algorithms, or show one.

    The list shows what each needs. One is shown with its paper, its options and its parts.

    NAME is an algorithm of the list, or module:function: your own function, called with its defaults.
    """
    from offbeat.algorithms import ALGORITHMS
    from offbeat.algorithms.compose import own_factory
    from offbeat.algorithms.privacy.private import sum_only
    from offbeat.core.validation import did_you_mean

    if name is None:
        show_algorithms(out)
        private = f"with privacy, for which sums are enough: {', '.join(sum_only())}"
        for line in ("", _RUNS_IT, private, NOT_REVIEWED):
            out.print(line, markup=False, soft_wrap=True)
    elif name in ALGORITHMS:
        show_algorithm(out, ALGORITHMS[name])
    elif ":" in name:
        show_algorithm(out, own_factory(ALGORITHMS, name, allowed_names(None, (), [name]).load))
    else:
        raise UsageError(f"algorithm {name} is unknown{did_you_mean(name, ALGORITHMS)}")


def recipes(name: Annotated[str | None, typer.Argument(metavar="[NAME]")] = None) -> None:
    """List the built-in recipes, or print one."""
    from offbeat.core.validation import did_you_mean
    from offbeat.recipes.load import built_in, load_recipe

    built_in_names = built_in()
    if name is not None:
        if name not in built_in_names:
            raise UsageError(f"recipe {name} is not built in{did_you_mean(name, built_in_names)}")
        print(built_in_names[name].read_text(encoding="utf-8"), end="")  # noqa: T201
        return
    table = plain_table("recipe", "what it is")
    for recipe in built_in_names:
        add_row(table, recipe, load_recipe(recipe).title)
    out.print(table)


def models() -> None:
    """List the built-in models with their sizes.

    The list also shows the samples that they take, and the papers that train them.
    """
    from offbeat.models.specs import MODELS, count_parameters, shown_shapes

    table = _table("model", "parameters", "samples", "options", "trained in")
    for name, entry in MODELS.items():
        try:
            count = f"{count_parameters(entry):,}"
        except UsageError:
            count = "an extra is missing"
        options = ", ".join(field.name for field in fields(entry.spec) if field.name != "name")
        add_row(table, name, count, shown_shapes(entry), options or "–", entry.used or "–")
    out.print(table)


def datasets() -> None:
    """List the built-in datasets, and the place of their files."""
    from offbeat.data.datasets_by_name import ENTRIES
    from offbeat.data.paths import data_root

    table = _table("dataset", "train / test", "sample", "predicts", "natural groups", "licence")
    for name, entry in ENTRIES.items():
        add_row(table, name, entry.size, entry.sample, entry.task, entry.groups or "–", entry.licence)
    out.print(table)
    out.print(f"\nfiles are in {data_root()}, each dataset's in a folder of its name", soft_wrap=True)


def show_algorithms(out: Console) -> None:
    """Print every algorithm on a line or two."""
    from offbeat.algorithms import ALGORITHMS
    from offbeat.algorithms.describe import driver_needs, made_with_defaults, short_paper
    from offbeat.core.algorithm import Algorithm

    table = _table("algorithm", "what it does", "paper", "needs of what runs it")
    for factory in ALGORITHMS.values():
        made = made_with_defaults(factory)
        needs = ", ".join(driver_needs(made)) or "–" if isinstance(made, Algorithm) else f"? ({made})"
        add_row(table, factory.name, factory.summary, short_paper(factory.paper), needs)
    out.print(table)


def show_algorithm(out: Console, factory: "Factory[...]") -> None:
    """Print one algorithm: its paper, its options, its parts, what it requires."""
    from offbeat.algorithms.describe import driver_needs, made_with_defaults, parts, with_privacy_text
    from offbeat.core.algorithm import Algorithm

    made = made_with_defaults(factory)
    for text in _head(factory):
        out.print(text, markup=False, soft_wrap=True)
    options = _table("option", "default", "allowed", "meaning")
    for option in factory.hyperparameters:
        add_row(options, option.name, option.default, option.allowed, option.meaning)
    out.print(options)
    out.print("")
    if not isinstance(made, Algorithm):
        out.print(f"It cannot be made with its defaults: {made}", markup=False, soft_wrap=True)
        return
    table = _table("part", "as its defaults make it", "what it is", "can be exchanged for")
    for part in parts(made):
        add_row(table, "  " * part.depth + part.role, part.name, part.summary, part.exchange)
    out.print(table)
    out.print("")
    needs = driver_needs(made)
    out.print("needs of what runs it, with its defaults:" + ("" if needs else f" {NOTHING}"), soft_wrap=True)
    for feature in needs:
        out.print(f"  {feature}: {feature.description}", markup=False, soft_wrap=True)
    for line in (f"with privacy, with its defaults: {with_privacy_text(made)}", NOT_REVIEWED):
        out.print(line, markup=False, soft_wrap=True)


def _head(factory: "Factory[...]") -> list[str]:
    """The text above the options: a user's own algorithm may have no paper and no docstring."""
    title = factory.name if factory.summary == factory.name else f"{factory.name}: {factory.summary}"
    described = [factory.description, ""] if factory.description else []
    return [title, *([factory.paper] if factory.paper else []), "", *described]


def _table(*heads: str) -> Table:
    """A table in which the first cell of each row does not break into lines."""
    table = plain_table(*heads)
    table.columns[0].no_wrap = True
    return table
