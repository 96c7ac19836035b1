"""Files and directories of their owner's that are durable: fsynced, with names that are durable too."""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from offbeat.runs.own_files import PRIVATE, replacing
from offbeat.runs.permissions import private_directory

PRIVATE_PART = re.compile(r"\..+\.[0-9a-f]{8}", re.ASCII)
"""Name of a file that `write_private` has not finished."""


def make_directory(directory: Path) -> None:
    """Make a directory of its owner's whose name is durable. Raises `OSError` where it cannot be made."""
    missing = [place for place in (directory, *directory.parents) if not place.exists()]
    private_directory(directory)
    # The name of an existing directory may not be durable yet, if another process has just made it.
    for place in missing or [directory]:
        # The user may lack access to a parent directory, but not to the names below it.
        with suppress(PermissionError):
            sync_directory(place.parent)


def write_private(path: Path, data: bytes) -> None:
    """Replace a file as a whole, durably and readable by its owner only. Raises `OSError`."""
    # Several processes may write it.
    part = path.with_name(f".{path.name}.{token_hex(4)}")
    with replacing(path, PRIVATE, part) as file:
        write_pieces(file, [data])
    sync_directory(path.parent)


def write_pieces(descriptor: int, pieces: Iterable[bytes | memoryview]) -> None:
    """Write pieces to an open file, of which the system may take less at once. Raises `OSError`."""
    for piece in pieces:
        left = memoryview(piece)
        while left:
            left = left[os.write(descriptor, left) :]


def sync_directory(directory: Path) -> None:
    """Make the names of the files in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
