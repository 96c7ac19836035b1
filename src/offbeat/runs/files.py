"""Atomic files of tensors: written aside, fsynced, renamed, and checked by a checksum when they are read."""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from torch import Tensor

from offbeat.core.layout import Layout
from offbeat.core.model import Model
from offbeat.core.module_tensors import found_by_name
from offbeat.runs.damage import damage, reading
from offbeat.runs.own_files import PRIVATE, replacing
from offbeat.runs.packing import CHECKSUM, intact, packed_pieces, read_pieces, signed, write_pieces
from offbeat.runs.permissions import private_directory

ON_DEVICE = "on_device"
"""Key of the names, as JSON, of the tensors of a checkpoint's state that were not on the CPU."""
MISMATCH = "does not match its checksum"
PRIVATE_PART = re.compile(r"\..+\.[0-9a-f]{8}", re.ASCII)
"""Name of a file that `write_private` has not finished."""


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> str:
    """Write a durable safetensors file; its name is durable after `sync_directory`. Returns its checksum.

    Raises `OSError` where it cannot be written, such as on a full disk.
    """
    here = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    described = signed(here, metadata or {})
    with replacing(path, part=path.with_suffix(".part")) as file:
        write_pieces(file, packed_pieces(here, described))
    return described[CHECKSUM]


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file into memory.

    Raises:
        DamageError: The file is missing or damaged.
        RunError: It cannot be opened.
    """
    return read_file(path)[0]


def read_file(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the metadata of a safetensors file; errors: as of `read_tensors`."""
    if path.exists() and not path.is_file():
        # Reading from a named pipe would wait.
        raise damage(path, "is no file")
    with reading(path), path.open("rb") as file:
        tensors, metadata = read_pieces(file, os.fstat(file.fileno()).st_size)
    if not intact(tensors, metadata):
        raise damage(path, MISMATCH)
    metadata.pop(CHECKSUM, None)
    return tensors, metadata


def read_model(path: Path, layout: Layout) -> Model:
    """Read a model that was written by tensor names; errors: as of `read_tensors`."""
    with reading(path):
        tensors = read_tensors(path)
        named = {entry.name: found_by_name(tensors, entry.name) for entry in layout.entries}
        return Model.of_tensors(layout, {name: t for name, t in named.items() if t is not None})


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


def sync_directory(directory: Path) -> None:
    """Make the names of the files in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
