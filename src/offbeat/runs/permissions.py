"""Access to a run: a state directory is private to its owner, and a file is as open as its directory."""

import logging
import os
import stat
from pathlib import Path

ASK_TO_READ = "ask its owner for read permission, or for a copy"
ASK_TO_WRITE = "ask its owner for write permission, or copy the directory to one that is yours"
_EFFECTIVE = os.access in os.supports_effective_ids
_LOG = logging.getLogger("offbeat.runs")


def private_directory(directory: Path) -> None:
    """Make a directory that its owner alone can read; one that is there and open to others gets a warning.

    Raises `OSError` where it cannot be made.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.name == "posix" and directory.stat().st_mode & 0o077:
        _LOG.warning("others can read %s, and data of the run: chmod -R go= %s", directory, directory)


def may_read(file: Path) -> bool:
    """Whether this user may read a file."""
    return os.access(file, os.R_OK, effective_ids=_EFFECTIVE)


def why_unwritable(directory: Path) -> str | None:
    """Why this user can make no file in a directory. None means that it can."""
    if not directory.is_dir():
        return f"{directory} is no directory"
    if os.access(directory, os.W_OK | os.X_OK, effective_ids=_EFFECTIVE):
        return None
    if os.name == "posix" and os.statvfs(directory).f_flag & os.ST_RDONLY:
        return f"{directory} is on a read-only file system"
    return f"this user cannot write to {directory}"


def file_mode(directory: Path) -> int:
    """The mode of a new file: as open as its directory, whatever the umask, and never writable by all.

    Its owner can read and write it, also where root makes it in a directory that nobody else can write.
    """
    return stat.S_IMODE(directory.stat().st_mode) & 0o664 | 0o600
