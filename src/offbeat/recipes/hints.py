"""Keys that a recipe may have at a place, read from its JSON schema: for "did you mean"."""

from typing import Any

from offbeat.recipes.recipe import Recipe


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


def _members(schema: dict[str, Any], definitions: dict[str, Any]) -> list[dict[str, Any]]:
    """The schemas that a schema stands for: its definition, the members of a union, a list's items."""
    if "$ref" in schema:
        return _members(definitions[schema["$ref"].removeprefix("#/$defs/")], definitions)
    inner = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *filter(None, [schema.get("items")])]
    return [member for each in inner for member in _members(each, definitions)] or [schema]


def _tag(member: dict[str, Any]) -> str | None:
    """Tag of a member of a union: the only value that its `law`, `kind` or `name` may have."""
    return next((key["const"] for key in member.get("properties", {}).values() if "const" in key), None)
