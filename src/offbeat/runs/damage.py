"""Damage of a directory's files as one error, which names the file, the loss, and a remedy."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EIO
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import msgspec
from pydantic import ValidationError
from safetensors import SafetensorError

from offbeat.core.errors import DamageError, OffbeatError, RunError, reason_of
from offbeat.core.validation import format_error
from offbeat.runs.permissions import ASK_TO_WRITE

MISMATCH = "does not match its checksum"
"""The problem of a file whose bytes have changed."""
_COPY = "restore the directory from a copy made whole"
_ANEW = f"{_COPY}, or begin the run anew in another directory"


class Contents(NamedTuple):
    """The contents that are lost with a file, and the remedy."""

    lost: str
    remedy: str


_CONTENTS = {
    "run.db*": Contents("what the run has recorded", _ANEW),
    "state-*.safetensors": Contents("the checkpoint's model", _ANEW),
    "version-*.safetensors": Contents("a version that tasks of the checkpoint started from", _ANEW),
    "update-*.safetensors": Contents("an update that the checkpoint holds", _ANEW),
    "client-*.safetensors": Contents("what a client keeps from task to task", _ANEW),
    "clients/client-*.safetensors": Contents("a client's own tensors", f"{_COPY}, or repeat the run"),
    "model.safetensors": Contents(
        "the final model", f"{_COPY}, or repeat the run; its journal and evaluations can be read"
    ),
    "best.safetensors": Contents(
        "the best version so far", f"{_COPY}, or delete the file: the best version from then on is kept"
    ),
    "best.new.safetensors": Contents("a new best version", "delete the file: the best one before is kept"),
    "secrets.db*": Contents("the noise of releases after the last checkpoint", _ANEW),
    "updates.log": Contents("updates that arrived after the last checkpoint", _COPY),
    "client.safetensors": Contents(
        "what the site keeps from task to task",
        "restore it from a copy, or delete client.safetensors and update.safetensors there: then the site "
        "starts again without state",
    ),
    "known_runs.safetensors": Contents(
        "what runs have promised the site, and the newest task of each",
        "restore the newest copy; without the file the site takes what a run promises next for what it has "
        "promised at first",
    ),
    "newest.safetensors": Contents(
        "the newest version that the site was sent",
        "delete the file: then the site cannot tell whether the server has gone back meanwhile",
    ),
    "helper.db*": Contents(
        "the helper's key, and which updates it has helped to release",
        "name a new committee; never restore the file from a copy, which would allow an update to be "
        "released twice",
    ),
    "examples.safetensors": Contents(
        "what the site's examples have spent of their privacy",
        "restore the newest copy; an older one has tasks missing, and without any the budget begins anew, so "
        "take part with other examples",
    ),
    "statistics.safetensors": Contents(
        "of which data the site has told statistics",
        "restore the newest copy; without the file the difference of two runs may tell of single samples",
    ),
    "update.safetensors": Contents(
        "the site's update that is not acknowledged", "delete the file: the site does its task again"
    ),
}
_OTHER = Contents("the file", "restore it from a copy")
_ENVIRONMENT = {
    sqlite3.SQLITE_AUTH, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}  # fmt: skip
"""SQLite's primary error codes that say nothing of the file's contents."""


def contents(path: Path) -> Contents:
    """The contents that are lost with a file, by its name, and the remedy."""
    # Patterns with a folder need the longer name.
    names = (f"{path.parent.name}/{path.name}", path.name)
    for name in names:
        for pattern, found in _CONTENTS.items():
            if fnmatchcase(name, pattern):
                return found
    return _OTHER


def damage(path: Path, problem: str) -> DamageError:
    """The error of a damaged file.

    Args:
        path: The file.
        problem: What is wrong with it, as a predicate: "is missing".
    """
    return DamageError(path, problem, *contents(path))


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Context in which a file is read and decoded: an error there is damage of the file.

    Args:
        path: The file.

    Raises:
        DamageError: It is missing, or its contents are not as they were written.
        RunError: It cannot be opened for another reason, such as its permissions or a lock.
    """
    try:
        yield
    except OffbeatError:
        raise
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise damage(path, "is missing") from None
    except OSError as error:
        if error.errno == EIO:
            raise damage(path, f"cannot be read ({error.strerror})") from None
        raise RunError(f"{path} cannot be read: {reason_of(error)}") from None
    except sqlite3.Error as error:
        raise database_error(path, error, "read") from None
    # Decoding a damaged file raises one of these.
    except (
        SafetensorError, msgspec.MsgspecError, ValueError, KeyError, IndexError, TypeError, AttributeError,
        RuntimeError, OverflowError, MemoryError,
    ) as error:  # fmt: skip
        raise damage(path, _problem(path, error)) from None


def is_environment(error: sqlite3.Error) -> bool:
    """Whether an error of SQLite is one of permissions, locks or space, and not of the file's contents."""
    return _code(error) in _ENVIRONMENT


def database_error(path: Path, error: sqlite3.Error, doing: str) -> RunError:
    """The error of a database that cannot be used: damage of the file, or a problem of its environment.

    Args:
        path: The database.
        error: What SQLite has raised.
        doing: What failed: "read" or "write".
    """
    if not path.exists():
        return damage(path, "is missing")
    if is_environment(error) or (doing == "write" and _code(error) in (sqlite3.SQLITE_IOERR, None)):
        remedy = f": {ASK_TO_WRITE}" if _code(error) == sqlite3.SQLITE_READONLY else ""
        return RunError(f"cannot {doing} {path}: {error}{remedy}")
    return damage(path, _problem(path, error))


def _code(error: sqlite3.Error) -> int | None:
    """SQLite's primary error code, where it gave one."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _problem(path: Path, error: Exception) -> str:
    if path.is_file() and path.stat().st_size == 0:
        return "is empty"
    if isinstance(error, ValidationError):
        return f"has what is not allowed ({format_error(error)})"
    what = f"{type(error).__name__}: {error}" if isinstance(error, LookupError | TypeError) else str(error)
    return f"cannot be read ({' '.join(what.split())})"
