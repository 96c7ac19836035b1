"""Options that a command takes as `--set GROUP.KEY=VALUE`: the fields of a dataclass, such as `server.lease`.

Their help is read from the source of the dataclass, since importing it would load PyTorch.
"""

import ast
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from offbeat.core.errors import UsageError
from offbeat.recipes.assignments import assignments, set_key

_ATTRIBUTE = re.compile(r"^    (\w+): (.+(?:\n {5,}.+)*)", re.MULTILINE)
_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")


@dataclass(frozen=True)
class Key:
    """A field of a dataclass of options.

    Attributes:
        name: The field's name.
        default: Its default as YAML; empty where the default is an object of options itself.
        meaning: The first sentence of what the dataclass's docstring says about it, as it stands in a help.
    """

    name: str
    default: str
    meaning: str


@dataclass(frozen=True)
class KeyGroup:
    """The keys of one dataclass.

    Attributes:
        module: The dataclass's module.
        cls: The dataclass's name.
        elsewhere: Fields, or words that may be taken for some, that are set in another way; and that way.
    """

    module: str
    cls: str
    elsewhere: tuple[tuple[str, str], ...] = ()

    @property
    def keys(self) -> list[Key]:
        """The keys in the order of the dataclass, without those that are set elsewhere."""
        return [key for key in _read(self.module, self.cls) if key.name not in dict(self.elsewhere)]


@cache
def _read(module: str, cls: str) -> tuple[Key, ...]:
    """The fields of a dataclass, read from its source."""
    package, _, file = module.rpartition(".")
    tree = ast.parse((files(package) / f"{file}.py").read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls)
    text = inspect.cleandoc(ast.get_docstring(found) or "")
    meanings = {name: _first_sentence(words) for name, words in _ATTRIBUTE.findall(text)}
    return tuple(
        Key(node.target.id, _yaml(node.value), meanings.get(node.target.id, ""))
        for node in found.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    )


def _first_sentence(text: str) -> str:
    """The first sentence, without line breaks, links and a capital letter that is not a name's."""
    words = _LINK.sub(r"\1", " ".join(text.split()))
    sentence = re.split(r"(?<=[.;])\s", words)[0].rstrip(".;")
    # A name such as PyTorch keeps its capital letter.
    is_name = any(letter.isupper() for letter in sentence.partition(" ")[0][1:])
    return sentence if is_name else sentence[:1].lower() + sentence[1:]


def _yaml(default: ast.expr | None) -> str:
    """A default as YAML; empty without one, or where it is made by a call or a name."""
    try:
        return "" if default is None else json.dumps(ast.literal_eval(default), default=str)
    except ValueError:
        return ""


def split_sets(
    sets: Sequence[str] | None, groups: Mapping[str, KeyGroup]
) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Divide the values of `--set` into those of the groups and the others.

    Args:
        sets: The values, `key=value` each.
        groups: The groups by the first part of their keys, or by the first two for one within another.

    Returns:
        The values that are of no group, as they are; and of each outermost group that is given, the values by
        key, nested where a group is within another.

    Raises:
        UsageError: A value has no YAML, its key stands twice, or is set in another way.
    """

    def group(text: str) -> str:
        return text.partition("=")[0].partition(".")[0]

    grouped, settings = [text for text in sets or () if group(text) in groups], dict[str, Any]()
    for text in grouped:
        if "=" not in text:
            raise UsageError(f"--set {text} is not allowed: give --set {group(text)}.KEY=VALUE")
    for key, value in assignments(grouped):
        first, text = group(key), f"{key}={value}"
        named = {key.partition(".")[2]} if "." in key else set(value if isinstance(value, dict) else ())
        for name, way in groups[first].elsewhere:
            if name in {own.partition(".")[0] for own in named}:
                raise UsageError(f"--set {text} is not allowed: {way}")
        if key == first and not isinstance(value, dict):
            raise UsageError(f"--set {text} is not allowed: give --set {first}.KEY=VALUE")
        set_key(settings, key, value)
    return [text for text in sets or () if text not in grouped], settings


def grouped_sets(sets: Sequence[str] | None, groups: Mapping[str, KeyGroup]) -> dict[str, dict[str, Any]]:
    """The values of `--set` by group, where each must be of one. Raises `UsageError`."""
    ungrouped, settings = split_sets(sets, groups)
    if ungrouped:
        keys = ", ".join(f"{group}.KEY" for group in groups)
        raise UsageError(f"--set {ungrouped[0]} is not allowed: give one of {keys}")
    return settings


def key_rows(names: Sequence[str], groups: Mapping[str, KeyGroup]) -> Iterator[tuple[str, str]]:
    """The rows of a help: `server.lease=60.0`, and the meaning of the key.

    Args:
        names: Keys with their group, such as `server.lease`, or `policy.*` for all of a group.
        groups: The groups by the first part, or parts, of their keys.
    """
    for name in names:
        group, _, last = name.rpartition(".")
        for key in groups[group].keys:
            if last in (key.name, "*"):
                yield f"{group}.{key.name}={key.default}", key.meaning
