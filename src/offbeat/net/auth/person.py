"""The person who gives a command, for the audit."""

import getpass
import os
from pathlib import Path

from offbeat.core.printable import printable

try:
    import pwd
except ImportError:
    # Windows has no such database.
    pwd = None  # type: ignore[assignment]


def owner(path: Path) -> str:
    """The name of the system's user to whom a file belongs; "" where nobody can tell."""
    try:
        return path.owner()
    except (KeyError, OSError, NotImplementedError):
        return ""


def person(name: str | None = None) -> str:
    """The name of a person: the given one, else that of the system's user."""
    if name is not None:
        return printable(name)
    try:
        return getpass.getuser() if pwd is None else pwd.getpwuid(os.getuid()).pw_name
    except (KeyError, OSError, ImportError):
        # A container's user may have a number alone.
        return str(os.getuid()) if hasattr(os, "getuid") else "unknown"
