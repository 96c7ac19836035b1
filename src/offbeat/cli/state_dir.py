"""A server's state directory: the names of its files, and the process that has locked it."""

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from offbeat.core.errors import OffbeatError, UsageError, reason_of
from offbeat.core.printable import printable
from offbeat.documents import read_text
from offbeat.runs.own_files import write_own
from offbeat.runs.permissions import private_directory
from offbeat.runs.schema import DATABASE
from offbeat.units import duration_text

SERVER, TOKENS, PAGE_TOKEN = "server.json", "tokens.json", "dashboard-token"  # files in a state directory
STOPPED_BY = "stopped-by"
"""The file by which `offbeat stop` tells a server who stops it."""
_MOST_BYTES = 2**16  # bytes of the server's file
# Seconds between two signs of life of a server, and seconds after which it counts as silent.
SIGN_SECONDS, SILENT_SECONDS = 5.0, 30.0


def server_pid(directory: Path) -> int:
    """The id of the process that serves a directory. Raises `UsageError` if none does."""
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory: give the state directory of a running server")
    if not (directory / DATABASE).is_file() or not is_locked(directory):
        raise UsageError(f"no server is running on {directory}")
    try:
        return _pid(directory)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(
            f"{directory} is in use, but not by a server of this machine that can be stopped; one that has "
            "just been started can be in a moment"
        ) from None


def tell_who_stops(directory: Path, name: str) -> None:
    """Tell the server of a directory who is about to stop it, which no signal can."""
    with suppress(OSError):
        write_own(directory / STOPPED_BY, name)


def stopped_by(directory: Path) -> str:
    """The person who stops the server of a directory, as `tell_who_stops` has told; "" for a bare signal."""
    try:
        name = read_text(directory / STOPPED_BY, _MOST_BYTES)
        (directory / STOPPED_BY).unlink()
    except (OSError, UnicodeDecodeError):
        return ""
    return printable(name)


def enrolled_sites(directory: Path) -> frozenset[str] | None:
    """Names of the sites that the server of a directory takes by its tokens, wherever these are.

    None where the server goes by no tokens, where they cannot be read here, and where it has ended: which
    tokens count is then not known.
    """
    from offbeat.net.auth.tokens import read

    try:
        place = json.loads(read_text(directory / SERVER, _MOST_BYTES))["tokens"]
        return None if place is None else frozenset(read(Path(place)).sites)
    except (OffbeatError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def touch(directory: Path) -> None:
    """Give a sign of life of the server of a directory, which is the time of its file."""
    with suppress(OSError):
        os.utime(directory / SERVER)


def not_running(directory: Path, *, locked: bool, served: bool) -> str | None:
    """Why a run that has not ended does not go on. None means that it goes on.

    Args:
        directory: The run's directory.
        locked: Whether a process had locked the directory, before it was read that the run has not ended.
        served: Whether the run is a server's.
    """
    if not locked and not served:
        return f"no process simulates it: offbeat resume {directory} continues it"
    try:
        pid = _pid(directory)
        silent = time.time() - (directory / SERVER).stat().st_mtime
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None if locked else "no server has it: serve it again, as it was served, to continue it"
    if not locked:
        return f"its server (process {pid}) has died: the same offbeat serve resumes the run"
    # In another container, the number is another process's, or nobody's.
    if _is_stopped(pid):
        return f"its server (process {pid}) is stopped: kill -CONT {pid} lets it go on"
    if silent > SILENT_SECONDS:
        silence = duration_text(round(silent))
        return f"its server (process {pid}) has not answered for {silence}: see its log, or end it"
    return None


def _pid(directory: Path) -> int:
    """The process number in a directory's file. Raises `ValueError` for one that is none, and as reading."""
    pid: Any = json.loads(read_text(directory / SERVER, _MOST_BYTES))["pid"]
    if type(pid) is not int or not 0 < pid < 2**31:
        # A signal to 0 or −1 would reach many processes.
        raise ValueError(f"{pid!r} is no process")
    return pid


def _is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal or a debugger, as far as the system tells."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return state.rpartition(") ")[2][:1] in ("T", "t")


def is_locked(directory: Path) -> bool:
    """Whether a process writes this run. Raises `UsageError` if the lock file cannot be read."""
    from offbeat.runs.lock import is_held

    try:
        return is_held(directory)
    except OSError as error:
        raise UsageError(f"{error.filename or directory} cannot be read: {reason_of(error)}") from None


def make_directory(directory: Path, *, private: bool = False) -> None:
    """Make a directory for a run, or for several, if it is missing; a private one is its owner's alone."""
    try:
        if private:
            private_directory(directory)
        else:
            directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{directory} cannot be made: {reason_of(error)}") from None
