"""Writing into a directory that others may have made: never through a link, nor into a pipe or a device.

A run's directory may come from somebody else, and a link in it can lead to any file of the user.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EINVAL
from pathlib import Path

from offbeat.runs.permissions import file_mode

PRIVATE = 0o600
"""Mode of a file that its owner alone can read."""
# Windows has the first of these only, and others the rest.
_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def make_new(path: Path, mode: int | None = None) -> int:
    """Make an empty file in place of whatever had its name, and open it for reading and writing.

    Args:
        path: The file.
        mode: Its mode; None means as open as its directory.

    Raises:
        OSError: It cannot be made.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS
    try:
        file = os.open(path, flags, PRIVATE)
    except FileExistsError:
        path.unlink(missing_ok=True)
        file = os.open(path, flags, PRIVATE)
    return _with_mode(file, path, mode)


def open_own(path: Path, mode: int | None = None) -> int:
    """Open a file for reading and writing, and make it where it is missing.

    Args:
        path: The file.
        mode: The mode that it gets; None means as open as its directory where it is made.

    Raises:
        OSError: It is no regular file, or cannot be opened.
    """
    check_own(path)
    is_new = not path.exists()
    # Another process may make it meanwhile.
    file = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, PRIVATE)
    return _with_mode(file, path, mode) if is_new or mode is not None else file


def check_own(path: Path) -> None:
    """Raise `OSError` where something else than a regular file has a name; no file may have it."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        problem = f"{path.name} is a link, a folder, a pipe or a device: put a file there, or delete it"
        raise OSError(EINVAL, problem, str(path))


def check_own_folder(path: Path) -> None:
    """Raise `OSError` where a link has a folder's name: what is written into it would be elsewhere."""
    if path.is_symlink():
        raise OSError(EINVAL, f"{path.name} is a link: delete it, or put a folder there", str(path))


def check_replaceable(path: Path) -> None:
    """Raise `OSError` where a file would take the place of a device or a pipe, such as /dev/null."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(EINVAL, "it is a device or a pipe; give the name of a file", str(path))


@contextmanager
def replacing(path: Path, mode: int | None = None, part: Path | None = None) -> Iterator[int]:
    """Context in which a file is written that takes the place of another one, or of a link, as a whole.

    Its name is durable after `sync_directory`.

    Args:
        path: The file.
        mode: Its mode; None means as open as its directory.
        part: The file until it is whole; None means its name with ".part".

    Yields:
        What is written, as a file descriptor.

    Raises:
        OSError: It cannot be written, such as on a full disk.
    """
    check_replaceable(path)
    part = part or path.with_name(f"{path.name}.part")
    file = make_new(part, mode)
    try:
        try:
            yield file
            os.fsync(file)
        finally:
            os.close(file)
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def write_own(path: Path, data: bytes | str) -> None:
    """Replace a file as a whole; a text is UTF-8. Raises `OSError`."""
    with replacing(path) as file, os.fdopen(file, "wb", closefd=False) as opened:
        opened.write(data.encode() if isinstance(data, str) else data)


def _with_mode(file: int, path: Path, mode: int | None) -> int:
    try:
        path.chmod(file_mode(path.parent) if mode is None else mode)
    except BaseException:
        os.close(file)
        raise
    return file
