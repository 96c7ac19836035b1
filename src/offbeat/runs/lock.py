"""Writer lock of a run: an advisory file lock, which the system frees when the process ends."""

import os
from errno import EINVAL
from pathlib import Path
from stat import S_ISREG

from filelock import BaseFileLock, FileLock, Timeout

from offbeat.core.errors import UsageError
from offbeat.runs.permissions import ASK_TO_WRITE, file_mode, why_unwritable
from offbeat.runs.schema import LOCK

_PROBE_SECONDS = 1.0
"""Seconds after which a lock that is held is a writer's."""


def lock(directory: Path, what: str = "this run") -> BaseFileLock:
    """Lock a directory until the returned lock is released, by whichever thread.

    Args:
        directory: The directory.
        what: What is in it, for an error.

    Raises:
        UsageError: Another process holds the lock, or this user cannot write to the directory.
    """
    if directory.is_dir() and (why := why_unwritable(directory)) is not None:
        raise UsageError(f"{why}: to write {what}, {ASK_TO_WRITE}")
    if (directory / LOCK).is_symlink():
        raise UsageError(f"{directory / LOCK} is a link: delete it, {what} has a file of its own there")
    # A process that asks whether the directory is in use has the lock for a moment.
    held = FileLock(directory / LOCK, timeout=_PROBE_SECONDS, mode=file_mode(directory), thread_local=False)
    try:
        held.acquire()
    except PermissionError:
        raise UsageError(
            f"this user cannot write {directory / LOCK}: to write {what}, {ASK_TO_WRITE}"
        ) from None
    except Timeout:
        raise UsageError(f"{directory}: another process is writing {what}; wait for it or stop it") from None
    return held


def is_held(directory: Path) -> bool:
    """Whether a process writes the run of a directory, which may be a copy that is mounted read-only.

    Raises:
        OSError: The lock file cannot be read, or is something else than a file.
    """
    # Some systems lack this module.
    import fcntl

    try:
        file = os.open(directory / LOCK, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        if not S_ISREG(os.fstat(file).st_mode):
            raise OSError(EINVAL, "it is no file", str(directory / LOCK))
        # The writer's lock is exclusive, so that this one fails beside it.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
