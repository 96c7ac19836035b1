"""Writer lock of a run: an advisory file lock, which the system frees when the process ends."""

from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from offbeat.core.errors import UsageError
from offbeat.runs.permissions import file_mode
from offbeat.runs.schema import LOCK


def lock(directory: Path, what: str = "this run") -> BaseFileLock:
    """Lock a directory until the returned lock is released, by whichever thread.

    Args:
        directory: The directory.
        what: What is in it, for an error.

    Raises:
        UsageError: Another process holds the lock.
    """
    if (directory / LOCK).is_symlink():
        raise UsageError(f"{directory / LOCK} is a link: delete it, {what} has a file of its own there")
    held = FileLock(directory / LOCK, mode=file_mode(directory), blocking=False, thread_local=False)
    try:
        held.acquire()
    except Timeout:
        raise UsageError(f"{directory}: another process is writing {what}; wait for it or stop it") from None
    return held
