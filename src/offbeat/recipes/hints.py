"""Keys that a recipe may have at a place, or elsewhere, read from its JSON schema: for "did you mean"."""

from typing import Any

from offbeat.recipes.other_names import OTHER_NAMES
from offbeat.recipes.recipe import Recipe

# Most places of a key that are named.
_MOST_PLACES = 3


def keys_allowed(location: tuple[int | str, ...]) -> list[str]:
    """Keys allowed in place of an unknown one.

    Args:
        location: Location of a validation error, the unknown key last.
    """
    schema = Recipe.model_json_schema()
    places = _members(schema, schema["$defs"])
    for part in location[:-1]:
        inner = [place["properties"][part] for place in places if part in place.get("properties", ())]
        members = [member for each in inner for member in _members(each, schema["$defs"])]
        places = members or [place for place in places if _tag(place) == part] or places
    names = {name for place in places for name in place.get("properties", ())}
    if location[:-1] == ("world",):
        # `world.trace` is read before a recipe is checked, so the schema does not list it.
        names.add("trace")
    return sorted(names)


def places_of(location: tuple[int | str, ...], written: tuple[int | str, ...]) -> list[str]:
    """Dotted keys that an unknown one may have been meant for: of the same name or meaning, elsewhere.

    Args:
        location: Location of the unknown key in a validation error.
        written: Its location in the recipe.
    """
    *path, last = map(str, written)
    usual = OTHER_NAMES.get(last.replace("-", "_"))
    if usual is None:
        found = _places(Recipe.model_json_schema(), last)
        # A section of another kind has the key: then no other place is meant.
        return [] if ".".join([*path, last]) in found else sorted(found)[:_MOST_PLACES]
    # The other name of a key beside it, as `evaluate.rounds` is of `evaluate.versions`.
    name = usual.rpartition(".")[2]
    return [".".join([*path, name])] if name in keys_allowed(location) else [usual]


def _places(schema: dict[str, Any], key: str) -> set[str]:
    """The places of a key, at most two levels deep."""
    found = set()
    for section, inner in schema["properties"].items():
        for member in _members(inner, schema["$defs"]):
            for name, value in member.get("properties", {}).items():
                deeper = [m.get("properties", ()) for m in _members(value, schema["$defs"])]
                found |= {f"{section}.{name}"} if name == key else set()
                found |= {f"{section}.{name}.{key}"} if any(key in names for names in deeper) else set()
    return found


def _members(schema: dict[str, Any], definitions: dict[str, Any]) -> list[dict[str, Any]]:
    """The schemas that a schema stands for: its definition, the members of a union, a list's items."""
    if "$ref" in schema:
        return _members(definitions[schema["$ref"].removeprefix("#/$defs/")], definitions)
    inner = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *filter(None, [schema.get("items")])]
    return [member for each in inner for member in _members(each, definitions)] or [schema]


def _tag(member: dict[str, Any]) -> str | None:
    """Tag of a member of a union: the only value that its `law`, `kind` or `name` may have."""
    return next((key["const"] for key in member.get("properties", {}).values() if "const" in key), None)
