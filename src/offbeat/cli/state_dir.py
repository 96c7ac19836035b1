"""A server's state directory: the names of its files, and the process that has locked it."""

import json
from pathlib import Path

from offbeat.core.errors import UsageError
from offbeat.runs.permissions import private_directory
from offbeat.runs.schema import DATABASE

SERVER, TOKENS, PAGE_TOKEN = "server.json", "tokens.json", "dashboard-token"  # in a state directory


def server_pid(directory: Path) -> int:
    """The id of the process that serves a directory. Raises `UsageError` if none does."""
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory: give the state directory of a running server")
    if not (directory / DATABASE).is_file() or not is_locked(directory):
        raise UsageError(f"no server is running on {directory}")
    try:
        return int(json.loads((directory / SERVER).read_text(encoding="utf-8"))["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(
            f"{directory} is in use, but not by a server of this machine that can be stopped; one that has "
            "just been started can be in a moment"
        ) from None


def is_locked(directory: Path) -> bool:
    """Whether a process writes this run. Raises `UsageError` if the lock file cannot be opened."""
    from offbeat.runs.lock import lock

    try:
        lock(directory).release()
    except UsageError:
        return True
    except OSError as error:
        raise UsageError(f"{directory} cannot be written: {error}") from None
    return False


def make_directory(directory: Path, *, private: bool = False) -> None:
    """Make a directory for a run, or for several, if there is none; a private one is its owner's alone."""
    try:
        if private:
            private_directory(directory)
        else:
            directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{directory} cannot be made: {error}") from None
