"""The option `--allow`, and the person's own file of allowed names.

A name that a person types on the command line is the person's word. A name that comes out of a file is
not, be it a recipe, a study or a run's directory: it needs `--allow`, or an entry in the file of allowed
names. So does a built-in callback that leaves the run's directory, such as `csv` with a `path`.
"""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.core.errors import UsageError, reason_of

if TYPE_CHECKING:
    from offbeat.allowed import Allowed

AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="NAME",
        help="what a file or server may name: MODULE (what it exposes), MODULE:FUNCTION, or a callback such "
        "as csv, with its places; repeatable",
    ),
]
VARIABLE = "OFFBEAT_ALLOWED_NAMES"
"""The environment variable with the path of the file of allowed names."""
_MOST_BYTES = 2**20
_NAME = re.compile(r"[\w.]+:[\w.]+")


def allowed_names(
    allow: Sequence[str] | None, folders: Sequence[Path | None] = (), *typed: Sequence[str] | None
) -> "Allowed":
    """The names that a command's files, or its server, may give.

    Args:
        allow: The values of `--allow`.
        folders: The folders of the recipe, the study or the run's record. None is what has no folder.
        typed: Texts that the person has typed, such as those of `--set`: the names in them are allowed. They
            replace all of a recipe's callbacks where they give any.

    Raises:
        UsageError: A value of `--allow` is no name.
    """
    from offbeat.allowed import CALLBACKS, Allowed, is_entry
    from offbeat.named import open_modules

    for name in allow or ():
        if not is_entry(name):
            raise UsageError(f"--allow {name} is not allowed: give MODULE or MODULE:FUNCTION, such as clinic")
    beside = tuple(folder.resolve() for folder in folders if folder is not None)
    own = [name for texts in typed for text in texts or () for name in typed_names(text)]
    installed, note = _read(beside)
    # What a module that the person typed imports from the current directory is allowed by its own name.
    open_modules(name.partition(":")[0] for name in allow or () if name not in CALLBACKS)
    return Allowed((*(allow or ()), *own), installed, beside, note)


def recipe_folder(recipe: str) -> Path | None:
    """The folder of a recipe's or a study's file; None for a built-in one."""
    path = Path(recipe)
    return path.resolve().parent if path.is_file() else None


def typed_names(text: str) -> Iterator[str]:
    """The names in a text such as `algorithm=mine:schedule` or `mine:schedule`, and those of callbacks."""
    from offbeat.allowed import CALLBACKS
    from offbeat.documents import parse_yaml

    if _NAME.fullmatch(text):
        yield text
        return
    key, _, value = text.partition("=")
    wrapped = f"[{value}]" if "," in value and not value.strip().startswith(("[", "{")) else value
    given = parse_yaml(wrapped, text)
    yield from _names(given)
    if key == "callbacks" and isinstance(given, list):
        entries = (entry.get("name") if isinstance(entry, dict) else entry for entry in given)
        yield from (entry for entry in entries if entry in CALLBACKS)


def _names(value: Any) -> Iterator[str]:
    """The texts of a value that are names; keys are none."""
    if isinstance(value, str) and _NAME.fullmatch(value):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _names(inner)


def names_file() -> Path:
    """The person's file of allowed names."""
    if given := os.environ.get(VARIABLE):
        return Path(given)
    # The XDG specification ignores a relative path.
    configured = Path(os.environ.get("XDG_CONFIG_HOME") or "")
    return (configured if configured.is_absolute() else Path.home() / ".config") / "offbeat" / "allowed-names"


def _read(folders: Sequence[Path]) -> tuple[tuple[str, ...], str]:
    """The names in the person's file; and, where it does not count, why, as the end of a message."""
    from offbeat.allowed import is_entry
    from offbeat.documents import read_text

    try:
        file = names_file()
        if not file.exists():
            return (), ""
        if (problem := _distrust(file, folders)) is not None:
            return (), f"; the file {file} does not count: {problem}"
        lines = [line.partition("#")[0].strip() for line in read_text(file, _MOST_BYTES).splitlines()]
    except (OSError, UnicodeDecodeError, RuntimeError) as error:
        # `Path.home` raises RuntimeError where there is no home directory.
        return (), f"; the file of allowed names cannot be read: {reason_of(error)}"
    names = tuple(line for line in lines if line)
    wrong = next((name for name in names if not is_entry(name)), None)
    if wrong is not None:
        return (), f"; the file {file} does not count: {wrong!r:.60} is neither MODULE nor MODULE:FUNCTION"
    return names, ""


def _distrust(file: Path, folders: Sequence[Path]) -> str | None:
    """Why a file cannot be the person's own word; None where it can."""
    if not file.is_absolute():
        return f"{VARIABLE} must be an absolute path"
    if any(path.is_relative_to(own) for own in folders for path in (file.absolute(), file.resolve())):
        return "it lies in a folder with what names functions"
    if not file.is_file() or file.stat().st_size > _MOST_BYTES:
        return f"it is not a file of at most {_MOST_BYTES} bytes"
    if os.name == "posix":
        for place in (file, file.resolve().parent):
            found = place.stat()
            if found.st_uid not in (os.getuid(), 0):
                return f"{place} is another user's"
            if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return f"others can write {place} (chmod go-w {place})"
    return None
