"""Functions of users by name, "module:function": their import, and errors in it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from importlib import import_module
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
    if in_directory and (place := str(Path.cwd())) not in sys.path:
        # The directory stays in the path for what the module imports later.
        sys.path.append(place)
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
    return UsageError(f"{option} {text}: {where}{type(error).__name__}: {' '.join(str(error).split())}")
