"""Callbacks by name, as recipes have them."""

from collections.abc import Mapping, Sequence
from typing import Any

from offbeat.callbacks.callback import Callback
from offbeat.core.errors import UsageError
from offbeat.named import load_named, named_errors

Entry = str | Mapping[str, Any]
"""A name, or a mapping with a name and options."""


def make_callbacks(entries: Sequence[Entry]) -> list[Callback]:
    """Make the callbacks that a recipe lists under `callbacks`.

    Args:
        entries: Each is "module:function", a function or class of the user's that returns a `Callback`, or a
            mapping with such a `name` and options.

    Raises:
        UsageError: A function cannot be imported, raises, or returns something else.
    """
    return [_make(entry) for entry in entries]


def _make(entry: Entry) -> Callback:
    options = dict(entry) if isinstance(entry, Mapping) else {"name": entry}
    name = str(options.pop("name", ""))
    factory = load_named(name, "callbacks")
    with named_errors(name, "callbacks"):
        made = factory(**options)
    if not isinstance(made, Callback):
        raise UsageError(f"callbacks {name} returned a {type(made).__name__}: return a Callback")
    return made
