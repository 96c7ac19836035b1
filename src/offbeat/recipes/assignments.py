"""Changes of a document as text: `section.key=value`, the values of `--set`.

The module imports no PyTorch: commands read their options before they load it.
"""

from collections.abc import Iterable
from typing import Any

from offbeat.core.errors import UsageError
from offbeat.documents import parse_yaml


def assignments(sets: Iterable[str]) -> list[tuple[str, Any]]:
    """Keys and values of the options `--set`: an algorithm's name, then sections, then the keys within.

    Args:
        sets: The values of `--set`, `key=value` each.

    Raises:
        UsageError: One has no YAML value, or a key stands twice, of which one value would be lost.
    """
    changes: dict[str, Any] = {}
    for text in sets:
        key, value = assignment(text)
        key = "algorithm" if key == "algorithm.name" else key
        if key in changes:
            raise UsageError(f"--set {key} is given twice, {changes[key]!r} and {value!r}: give it once")
        changes[key] = value
    return sorted(changes.items(), key=lambda pair: (pair[0] != "algorithm", pair[0].count(".")))


def assignment(
    text: str, option: str = "--set", form: str = "section.key=value", wrapped: str = "{}"
) -> tuple[str, Any]:
    """Key and YAML value of an option `key=value`.

    Args:
        text: What was given.
        option: The option.
        form: What should have been given, for errors.
        wrapped: The YAML around the value; a list for `[{}]`.

    Raises:
        UsageError: The text has no key, no equals sign, or no YAML value.
    """
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise UsageError(f"{option} {text} is not allowed: write {form}")
    return key, parse_yaml(wrapped.format(value), f"{option} {text}")


def set_key(document: dict[str, Any], key: str, value: Any, where: str = "--set") -> None:
    """Set a dotted key of a document, and make the sections that it lacks.

    Args:
        document: Changed in place.
        key: The key, such as `world.speed`.
        value: What it becomes.
        where: The option or place of the change, for errors.

    Raises:
        UsageError: A part of the key is no section.
    """
    *path, last = key.split(".")
    for part in path:
        inner = document.get(part)
        if inner is None:
            inner = document[part] = {}
        if not isinstance(inner, dict):
            raise UsageError(f"{where} {key} is not allowed: {part} is not a section but {inner!r}")
        document = inner
    document[last] = value
