"""Access to a run: a state directory is private to its owner, and a file is as open as its directory."""

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

_LOG = logging.getLogger("offbeat.runs")


def private_directory(directory: Path) -> None:
    """Make a directory that its owner alone can read; one that is there and open to others gets a warning.

    Raises `OSError` where it cannot be made.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.name == "posix" and directory.stat().st_mode & 0o077:
        _LOG.warning("others can read %s, and data of the run: chmod -R go= %s", directory, directory)


def file_mode(directory: Path) -> int:
    """The mode of a new file: as open as its directory, whatever the umask, and never writable by all."""
    return stat.S_IMODE(directory.stat().st_mode) & 0o664


def make_file(path: Path) -> None:
    """Make an empty file with that mode for others to write; one that is there stays as it is."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        path.chmod(file_mode(path.parent))
