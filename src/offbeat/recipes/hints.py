"""Keys that a recipe may have at a place, read from the checked classes: for "did you mean"."""

from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo

from offbeat.recipes.recipe import Recipe


def keys_allowed(location: tuple[int | str, ...]) -> list[str]:
    """Keys allowed where an unknown one was found; `location` is a validation error's."""
    names = set(_field_names(Recipe))
    kind: Any = Recipe
    for part in location[:-1]:
        fields = dict(_fields(kind))
        if part in fields:
            kind = fields[part].annotation
            names = set(_nested(kind))
        else:  # a member of a union, such as the law of a speed
            members = {n for k in _members(kind) for n in _field_names(k) if _tag(k) in (part, None)}
            names = members or names
            kind = next((k for k in _members(kind) if _tag(k) == part), kind)
    if location[:-1] == ("world",):
        names.add("trace")  # read before a recipe is checked
    return sorted(names)


def _members(kind: Any) -> Iterator[Any]:
    arguments = getattr(kind, "__args__", None)
    if arguments is None:
        yield kind
    else:
        for argument in arguments:
            yield from _members(argument)


def _nested(kind: Any) -> Iterator[str]:
    for member in _members(kind):
        yield from _field_names(member)


def _fields(kind: Any) -> Iterator[tuple[str, FieldInfo]]:
    fields = getattr(kind, "model_fields", None) or getattr(kind, "__pydantic_fields__", None) or {}
    yield from fields.items()


def _field_names(kind: Any) -> list[str]:
    return [name for name, _ in _fields(kind)]


def _tag(kind: Any) -> Any:
    """Tag of a member of a union: the default of its `law`, `kind` or `name`."""
    fields = dict(_fields(kind))
    return next((fields[key].default for key in ("law", "kind", "name") if key in fields), None)
