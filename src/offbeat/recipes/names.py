"""What a recipe names, functions and callbacks, checked before any of it is imported or made."""

from collections.abc import Iterator, Mapping
from typing import Any

from offbeat.allowed import Allow, Allowed
from offbeat.callbacks.callbacks_by_name import check_reach
from offbeat.models.specs import NamedModel
from offbeat.recipes.recipe import Recipe


def check_names(recipe: Recipe, allow: Allow) -> None:
    """Check that all functions that a recipe's run calls are allowed, and what its callbacks reach.

    Nothing is imported or made.

    Args:
        recipe: The recipe.
        allow: What it may name.

    Raises:
        NotAllowedError: One is not; `Allowed.load` and `make_callbacks` say the same of each later.
    """
    allowed = Allowed.of(allow)
    check_reach(recipe.callbacks, allowed)
    for option, name in named_functions(recipe):
        if ":" in name:
            allowed.check(name, option)


def named_functions(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Functions that a recipe's run calls by name, built-in or not: the option, and the name."""
    yield "data.dataset", recipe.data.dataset or ""
    if isinstance(recipe.model, NamedModel):
        yield "model", recipe.model.name
    for option in ("loss", "step", "evaluate_batch"):
        yield option, getattr(recipe, option) or ""
    metrics = recipe.metrics or ()
    named = (
        metrics.items()
        if isinstance(metrics, Mapping)
        else ((name.rpartition(":")[2], name) for name in metrics)
    )
    yield from ((f"metrics.{own}", name) for own, name in named)
    yield from _algorithms(recipe.algorithm)
    for entry in recipe.callbacks:
        yield "callbacks", _name(entry.get("name") if isinstance(entry, Mapping) else entry)


def _algorithms(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """An algorithm's name, and the names of those whose parts it takes."""
    yield "algorithm", _name(spec.get("name"))
    parts = spec.get("with")
    for part in parts.values() if isinstance(parts, Mapping) else ():
        if isinstance(part, Mapping):
            yield from _algorithms(part)


def _name(value: Any) -> str:
    """A name; of what is no text nothing, as it names no function and is refused when it is built."""
    return value if isinstance(value, str) else ""
