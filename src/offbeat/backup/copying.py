"""Copying of files: durable, private, with their checksums, and never through a link."""

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from offbeat.backup.manifest import CopiedFile
from offbeat.core.errors import OffbeatError, RunError, reason_of
from offbeat.runs.durable_files import sync_directory

PIECE = 2**20  # bytes that are read at once


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading, which is neither a link nor a pipe. Raises `OSError`."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    file = os.fdopen(os.open(path, flags | getattr(os, "O_BINARY", 0)), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError("it is no regular file")
    return file


def make_new(path: Path) -> BinaryIO:
    """Make a file that only its owner can read, and the folders above it. Raises `OSError`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, 0o600), "wb")


def copy_opened(source: BinaryIO, target: Path) -> CopiedFile:
    """Copy an open file, as long as it is now, durably. Raises `OSError`."""
    digest, left = sha256(), os.fstat(source.fileno()).st_size
    copied = 0
    with make_new(target) as file:
        while copied < left and (piece := source.read(min(PIECE, left - copied))):
            digest.update(piece)
            file.write(piece)
            copied += len(piece)
        file.flush()
        os.fsync(file.fileno())
    return CopiedFile(copied, digest.hexdigest())


def describe(path: Path) -> CopiedFile:
    """Length and checksum of a file, which is made durable. Raises `OSError`."""
    digest, size = sha256(), 0
    with open_regular(path) as file:
        while piece := file.read(PIECE):
            digest.update(piece)
            size += len(piece)
        os.fsync(file.fileno())
    return CopiedFile(size, digest.hexdigest())


def sync_folders(directory: Path) -> None:
    """Make the names of all files in a directory and below it durable. Raises `OSError`."""
    for place, _, _ in os.walk(directory):
        sync_directory(Path(place))


@contextmanager
def writing(place: Path, kept: str) -> Iterator[None]:
    """Context in which files are written to a place.

    Args:
        place: Where.
        kept: What is as it was, where that fails.

    Raises:
        RunError: They cannot be written.
    """
    try:
        yield
    except OffbeatError:
        raise
    except (OSError, sqlite3.Error) as error:
        where = f" ({error.filename})" if isinstance(error, OSError) and error.filename else ""
        raise RunError(f"the copy to {place} failed: {reason_of(error)}{where}; {kept}") from None
