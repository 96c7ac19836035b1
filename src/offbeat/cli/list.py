"""The commands that list algorithms, recipes, models and datasets."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from offbeat.cli.allow import allowed_names
from offbeat.cli.catalogue import AlgorithmView, OptionView, PartView, catalogue
from offbeat.cli.common_options import AsJson
from offbeat.cli.completion import algorithm_names, recipe_names
from offbeat.cli.console import add_row, out, plain_table, print_json
from offbeat.core.errors import UsageError

if TYPE_CHECKING:
    from offbeat.algorithms import Factory

NOTHING = "nothing: weighted sums of updates are enough"
_RUNS_IT = (
    "what runs an algorithm is the simulator, which has all of this, or a server: under secure aggregation "
    "it sees no single updates"
)
NOT_REVIEWED = "no cryptographer has reviewed privacy: have it reviewed before you rely on it"


def algorithms(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", autocompletion=algorithm_names)] = None,
    as_json: AsJson = False,
) -> None:
    """List the algorithms, or show one.

    The list shows what each needs. One is shown with its paper, its options and its parts.

    NAME is an algorithm of the list, or module:function: your own function, called with its defaults.
    """
    known = catalogue().algorithms
    if name is None:
        if as_json:
            print_json(known)
            return
        show_algorithms(out, known.values())
        private = f"with privacy, for which sums are enough: {', '.join(catalogue().sums)}"
        for line in ("", _RUNS_IT, private, NOT_REVIEWED):
            out.print(line, markup=False, soft_wrap=True)
        return
    if name in known:
        shown = known[name]
    elif ":" in name:
        from offbeat.algorithms import ALGORITHMS
        from offbeat.algorithms.compose import own_factory

        shown = view_of(own_factory(ALGORITHMS, name, allowed_names(None, (), [name]).load))
    else:
        from offbeat.core.validation import did_you_mean

        raise UsageError(f"algorithm {name} is unknown{did_you_mean(name, known)}")
    if as_json:
        print_json(shown)
    else:
        show_algorithm(out, shown)


def recipes(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", autocompletion=recipe_names)] = None,
    as_json: AsJson = False,
) -> None:
    """List the built-in recipes, or print one."""
    from offbeat.core.validation import did_you_mean
    from offbeat.recipes.built_in import built_in

    if name is not None:
        if as_json:
            raise UsageError(f"--json is for the list: offbeat recipes {name} prints the recipe as YAML")
        files = built_in()
        if name not in files:
            raise UsageError(f"recipe {name} is not built in{did_you_mean(name, files)}")
        print(files[name].read_text(encoding="utf-8"), end="")  # noqa: T201
    elif as_json:
        print_json(catalogue().recipes)
    else:
        table = plain_table("recipe", "what it is")
        for recipe, title in catalogue().recipes.items():
            add_row(table, recipe, title)
        out.print(table)


def models(as_json: AsJson = False) -> None:
    """List the built-in models with their sizes.

    The list also shows the samples that they take, and the papers that train them.
    """
    known = catalogue().models
    if as_json:
        print_json(known)
        return
    table = _table("model", "parameters", "samples", "options", "trained in")
    for name, entry in known.items():
        options = ", ".join(entry.options)
        add_row(table, name, f"{entry.parameters:,}", entry.samples, options or "–", entry.used or "–")
    out.print(table)


def datasets(as_json: AsJson = False) -> None:
    """List the built-in datasets, and the place of their files."""
    from offbeat.data.paths import data_root

    known = catalogue().datasets
    if as_json:
        print_json(known)
        return
    table = _table("dataset", "train / test", "sample", "predicts", "natural groups", "licence")
    for name, entry in known.items():
        add_row(table, name, entry.size, entry.sample, entry.task, entry.groups or "–", entry.licence)
    out.print(table)
    out.print(f"\nfiles are in {data_root()}, each dataset's in a folder of its name", soft_wrap=True)


def view_of(factory: "Factory[...]") -> AlgorithmView:
    """An algorithm in words, made with its defaults."""
    from offbeat.algorithms.describe import (
        driver_needs,
        made_with_defaults,
        parts,
        short_paper,
        with_privacy_text,
    )
    from offbeat.core.algorithm import Algorithm

    options = [OptionView(o.name, o.default, o.allowed, o.meaning) for o in factory.hyperparameters]
    about = (factory.name, factory.summary, factory.description, factory.paper, short_paper(factory.paper))
    made = made_with_defaults(factory)
    if not isinstance(made, Algorithm):
        return AlgorithmView(*about, options, problem=made)
    return AlgorithmView(
        *about, options,
        parts=[PartView(p.role, p.name, p.summary, p.exchange, p.depth) for p in parts(made)],
        needs={str(feature): feature.description for feature in driver_needs(made)},
        privacy=with_privacy_text(made),
    )  # fmt: skip


def show_algorithms(out: Console, shown: Iterable[AlgorithmView]) -> None:
    """Print algorithms, each on a line or two."""
    table = _table("algorithm", "what it does", "paper", "needs of what runs it")
    for one in shown:
        needs = ", ".join(one.needs) or "–" if one.problem is None else f"? ({one.problem})"
        add_row(table, one.name, one.summary, one.short_paper, needs)
    out.print(table)


def show_algorithm(out: Console, shown: AlgorithmView) -> None:
    """Print one algorithm: its paper, its options, its parts, what it requires."""
    for text in _head(shown):
        out.print(text, markup=False, soft_wrap=True)
    options = _table("option", "default", "allowed", "meaning")
    for option in shown.options:
        add_row(options, option.name, option.default, option.allowed, option.meaning)
    out.print(options)
    out.print("")
    if shown.problem is not None:
        out.print(f"It cannot be made with its defaults: {shown.problem}", markup=False, soft_wrap=True)
        return
    table = _table("part", "as its defaults make it", "what it is", "can be exchanged for")
    for part in shown.parts:
        add_row(table, "  " * part.depth + part.role, part.name, part.summary, part.exchange)
    out.print(table)
    out.print("")
    needs = "needs of what runs it, with its defaults:" + ("" if shown.needs else f" {NOTHING}")
    out.print(needs, soft_wrap=True)
    for feature, description in shown.needs.items():
        out.print(f"  {feature}: {description}", markup=False, soft_wrap=True)
    for line in (f"with privacy, with its defaults: {shown.privacy}", NOT_REVIEWED):
        out.print(line, markup=False, soft_wrap=True)


def _head(shown: AlgorithmView) -> list[str]:
    """The text above the options: a user's own algorithm may have no paper and no docstring."""
    title = shown.name if shown.summary == shown.name else f"{shown.name}: {shown.summary}"
    described = [shown.description, ""] if shown.description else []
    return [title, *([shown.paper] if shown.paper else []), "", *described]


def _table(*heads: str) -> Table:
    """A table in which the first cell of each row does not break into lines."""
    table = plain_table(*heads)
    table.columns[0].no_wrap = True
    return table
