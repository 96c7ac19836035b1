"""Names that a shell completes: those that are built in, and labels, without importing what they name."""

from pathlib import Path
from typing import Any

from offbeat.cli.catalogue import catalogue
from offbeat.core.errors import OffbeatError


def algorithm_names(incomplete: str) -> list[str]:
    """The algorithms that begin so."""
    return [name for name in catalogue().algorithms if name.startswith(incomplete)]


def dataset_names(incomplete: str) -> list[str]:
    """The built-in datasets that begin so."""
    return [name for name in catalogue().datasets if name.startswith(incomplete)]


def recipe_names(incomplete: str) -> list[str]:
    """The built-in recipes that begin so."""
    return [name for name in catalogue().recipes if name.startswith(incomplete)]


def labels_of_recipe(ctx: Any, incomplete: str) -> list[str]:
    """The labels of the command's recipe and the algorithms that begin so."""
    from offbeat.documents import parse_yaml, read_text
    from offbeat.recipes.built_in import find_recipe

    labels: dict[str, Any] = {}
    try:
        document = parse_yaml(read_text(find_recipe(str(ctx.params.get("recipe")))), "recipe")
        if isinstance(document, dict) and isinstance(found := document.get("algorithms"), dict):
            labels = found
    except (OffbeatError, OSError, UnicodeDecodeError):
        # The command itself says what is wrong with its recipe.
        pass
    return [
        name
        for name in dict.fromkeys((*map(str, labels), *catalogue().algorithms))
        if name.startswith(incomplete)
    ]


def labels_of_runs(ctx: Any, incomplete: str) -> list[str]:
    """The labels of the command's runs that begin so."""
    from offbeat.runs.record import find_runs

    labels = dict[str, None]()
    for directory in ctx.params.get("directories") or ():
        try:
            labels |= dict.fromkeys(record.label for record in find_runs(Path(directory)))
        except (OffbeatError, OSError):
            continue
    return [label for label in labels if label.startswith(incomplete)]
