"""Functions of users by name, "module:function": their import, and errors in it."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from traceback import extract_tb, walk_tb
from typing import Any

from offbeat.core.errors import OffbeatError, UsageError

EXPOSED = "__offbeat_exposed__"
"""Attribute of what its module lets files and messages name, once a person allows the module."""


def load_named(text: str, option: str, *, in_directory: bool = True) -> Any:
    """Import an object by a name that the person has typed; `Allowed.load` is for the names of others.

    Args:
        text: "module:function".
        option: The option that names it, for messages.
        in_directory: Whether the module may be in the current directory. False means that it is installed.

    Raises:
        UsageError: There is no such module or attribute, or the module raises while it is imported.
    """
    module, colon, attribute = text.partition(":")
    if not (module and colon and attribute):
        raise UsageError(f"{option} {text}: give module:function")
    if in_directory:
        open_modules([module])
    try:
        with named_errors(text, option, passing=ModuleNotFoundError):
            imported = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            # An import within the module has failed.
            raise _one_line_error(text, option, error) from error
        raise UsageError(
            f"{option} {text}: there is no module {error.name}: install it"
            + (", or give the name of one in the current directory" if in_directory else "")
        ) from None
    try:
        return reduce(getattr, attribute.split("."), imported)
    except AttributeError:
        raise UsageError(f"{option} {text}: the module {module} has no {attribute}") from None


_OPENED = "OFFBEAT_OPENED_MODULES"
"""The environment variable, which worker processes get too, with the folders of opened modules by name."""


def open_modules(modules: Iterable[str]) -> None:
    """Let modules be imported from the current directory, where they are not installed.

    Nothing else there can be imported, such as a file with the name of an optional library: the directory may
    come from somebody else.

    Args:
        modules: Their names; a module in a package opens the package.
    """
    opened = {module.partition(".")[0]: str(Path.cwd()) for module in modules}
    os.environ[_OPENED] = json.dumps({**_opened(), **opened})


def _opened() -> dict[str, str]:
    folders: dict[str, str] = json.loads(os.environ.get(_OPENED, "{}"))
    return folders


class _OpenedModules:
    """Finds opened modules, as the last of Python's finders."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, _: object = None) -> ModuleSpec | None:
        if path is not None or (folder := _opened().get(name)) is None:
            return None
        return PathFinder.find_spec(name, [folder])


sys.meta_path.append(_OpenedModules)


@contextmanager
def named_errors(text: str, option: str, passing: type[Exception] = OffbeatError) -> Iterator[None]:
    """Turn an error of a user's code within the context into one line with its file and line.

    Args:
        text: "module:function".
        option: The option that names it.
        passing: What is not turned.
    """
    try:
        yield
    except (OffbeatError, passing):
        raise
    except Exception as error:
        raise _one_line_error(text, option, error) from error


def name_of(function: Any) -> str:
    """The name of a function or a class, "module:function"; ":name" if it cannot be imported by name."""
    name: str | None = getattr(function, "__qualname__", None)
    if name is None:
        # An object has no name of its own, only its class has one.
        return f":{type(function).__name__}"
    return f"{'' if '<' in name or '.' in name else function.__module__}:{name}"


def _one_line_error(text: str, option: str, error: Exception) -> UsageError:
    """The error in one line, with the innermost line of the user's own package, if any of it was reached."""
    package = text.partition(":")[0].partition(".")[0]
    frames = list(walk_tb(error.__traceback__))
    own = [n for n, (f, _) in enumerate(frames) if f.f_globals.get("__name__", "").split(".")[0] == package]
    where = ""
    if isinstance(error, SyntaxError):
        where = f"{error.filename}:{error.lineno}: "
    elif own:
        place = extract_tb(error.__traceback__)[own[-1]]
        where = f"{place.filename}:{place.lineno}: "
    told = f"{option} {text}: {where}{type(error).__name__}: {' '.join(str(error).split())}"
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and PathFinder.find_spec(missing.partition(".")[0], [str(Path.cwd())]):
        told += f"; one is in the current directory: give --allow {missing} too (in Python allow=)"
    return UsageError(told)
