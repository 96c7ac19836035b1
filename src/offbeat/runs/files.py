"""Atomic files of tensors: written aside, fsynced, renamed, and checked by a checksum when they are read."""

import os
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from offbeat.core.layout import Layout
from offbeat.core.model import Model
from offbeat.core.module_tensors import found_by_name
from offbeat.runs.damage import MISMATCH, damage, reading
from offbeat.runs.durable_files import write_pieces
from offbeat.runs.own_files import replacing
from offbeat.runs.packing import intact, packed_pieces, read_pieces, signed
from offbeat.runs.tensor_format import CHECKSUM

ON_DEVICE = "on_device"
"""Key of the names, as JSON, of the tensors of a checkpoint's state that were not on the CPU."""


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
