"""Small files and YAML that may come from others: read within limits, refused in one line.

A YAML text of a few lines can mean lists within lists without end, by aliases, or a number of a million
digits. So its size, its depth and the number of its values are checked first, an alias as often as used. A
key that stands twice in a mapping is refused: one of its values would be dropped without a word. So is a
number that YAML reads otherwise than a person: 010 as 8, and 1:30 as 90.
"""

import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from offbeat.core.errors import UsageError

MOST_TEXT = 2**22
"""Most bytes of a recipe, a study or another text in YAML."""
_DEEPEST = 40
_MOST_VALUES = 2**22
_LONGEST_NUMBER = 100  # characters
_LARGEST = 2**64
_MISREAD = re.compile(r"[-+]?(0[0-9_]+$|.*:)")


def user_path(given: str | Path) -> Path:
    """The path that a user gave, in which a first part ~ or ~NAME is a home directory.

    A shell replaces it in most places, but not in --out=~/runs, in a recipe or in Python.

    Raises:
        UsageError: There is no such user.
    """
    try:
        return Path(given).expanduser()
    except RuntimeError:
        raise UsageError(f"{given}: there is no such home directory; give the whole path") from None


def read_text(path: Path, most: int = MOST_TEXT, *, encoding: str = "utf-8") -> str:
    """Read a text file.

    Args:
        path: The file.
        most: Most bytes that it may have.
        encoding: Its encoding.

    Raises:
        OSError: It cannot be opened, is no regular file or is larger.
        UnicodeDecodeError: It is no text.
    """
    return read_bytes(path, most).decode(encoding)


def read_bytes(path: Path, most: int = MOST_TEXT) -> bytes:
    """Read a small file, and wait for no pipe; arguments and errors as of `read_text`."""
    descriptor = os.open(
        user_path(path), os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError("it is no regular file")
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(f"it has more than {most} bytes")
    return data


def parse_yaml(text: str, what: str) -> Any:
    """The value of a YAML text.

    Args:
        text: The text.
        what: What the text is, as the error begins.

    Raises:
        UsageError: It is not valid, or too large, too deep or too many values.
    """
    try:
        return _parse(text, what)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" at line {where.line + 1}" if where is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UsageError(f"{what} is not valid YAML{line}: {problem}") from None
    except UsageError:
        raise
    except (ValueError, TypeError, ArithmeticError, AttributeError, RecursionError) as error:
        # PyYAML lets the errors of values through, such as of a date.
        raise UsageError(f"{what} is not valid YAML: {error}") from None


def _parse(text: str, what: str) -> Any:
    """Read a text. Libyaml is ten times as fast; PyYAML's own parser has better errors."""
    with suppress(yaml.YAMLError, UnicodeEncodeError):
        return _load(text, what, _FastLoader)
    return _load(text, what, _Loader)


def _load(text: str, what: str, loader: type[yaml.SafeLoader]) -> Any:
    _check_size(text, what, loader)
    reader: Any = loader(text)
    try:
        root = reader.get_single_node()
        if root is None:
            return None
        _check_keys(root)
        return reader.construct_document(root)
    finally:
        reader.dispose()


def _check_keys(root: yaml.Node) -> None:
    """Refuse a mapping with a key twice, of which YAML would keep the last; a merged key may be replaced."""
    nodes, seen = [root], set[int]()
    while nodes:
        node = nodes.pop()
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            continue
        # A node stands in each place where an alias stands for it.
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            nodes += node.value
            continue
        lines: dict[tuple[str, str], int] = {}
        for key, value in node.value:
            nodes += [key, value]
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if (before := lines.get((key.tag, key.value))) is not None:
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    f"the key {key.value[:60]!r} is there already, at line {before}",
                    key.start_mark,
                )
            lines[key.tag, key.value] = key.start_mark.line + 1


def _number(loader: yaml.SafeLoader, node: Any) -> int | float:
    """The value of a number, whose length is limited."""
    if len(node.value) > _LONGEST_NUMBER:
        raise yaml.constructor.ConstructorError(
            None, None, f"a number of more than {_LONGEST_NUMBER} characters", node.start_mark
        )
    whole = node.tag.endswith(":int")
    value: int | float = loader.construct_yaml_int(node) if whole else loader.construct_yaml_float(node)
    if whole and abs(value) > _LARGEST:
        raise yaml.constructor.ConstructorError(None, None, "an integer beyond 64 bits", node.start_mark)
    if _MISREAD.match(node.value):
        # YAML 1.1 has octal numbers with a leading zero, and numbers to the base 60 with colons.
        raise yaml.constructor.ConstructorError(
            None, None, f"it reads {node.value} as {value}: write the number that is meant", node.start_mark
        )
    return value


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with numbers of limited length."""


# The same with libyaml, where PyYAML is built with it.
_FastLoader: type[yaml.SafeLoader] = type("_FastLoader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {})

for _loader in (_Loader, _FastLoader):
    for _tag in ("int", "float"):
        _loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _number)


@dataclass(slots=True)
class _Collection:
    """A list or mapping whose end has not come: its anchor, its values so far, and its levels below."""

    anchor: str | None
    values: int = 1
    levels: int = 1


def _check_size(text: str, what: str, loader: type[yaml.SafeLoader]) -> None:
    """Raises `UsageError` for a text with too many values or levels, an alias as often as it is used."""
    if len(text) > MOST_TEXT:
        raise UsageError(f"{what} is not allowed: it has more than {MOST_TEXT} characters")
    ended: dict[str, _Collection] = {}
    opened = [_Collection(None)]
    for event in yaml.parse(text, Loader=loader):
        inner = _Collection(getattr(event, "anchor", None))
        match event:
            case yaml.CollectionStartEvent():
                opened.append(inner)
                if len(opened) > _DEEPEST:
                    raise UsageError(f"{what} is nested too deep: {_DEEPEST} levels are allowed")
                continue
            case yaml.CollectionEndEvent():
                inner = opened.pop()
                inner.levels += 1
            case yaml.AliasEvent():
                if any(own.anchor == event.anchor for own in opened):
                    raise UsageError(f"{what} is not allowed: its alias *{event.anchor:.60} contains itself")
                inner = ended.get(str(event.anchor), inner)
            case yaml.ScalarEvent():
                pass
            case _:
                continue
        if inner.anchor is not None and not isinstance(event, yaml.AliasEvent):
            ended[inner.anchor] = inner
        last = opened[-1]
        last.values, last.levels = last.values + inner.values, max(last.levels, inner.levels)
        if len(opened) + inner.levels > _DEEPEST + 1:
            raise UsageError(f"{what} is nested too deep: {_DEEPEST} levels are allowed")
        if last.values > _MOST_VALUES:
            raise UsageError(f"{what} has too many values: {_MOST_VALUES} are allowed, those of aliases too")
