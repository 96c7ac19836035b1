"""Atomic files of tensors: written aside, fsynced, renamed."""

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, load_file, save, save_file
from torch import Tensor

from offbeat.runs.permissions import file_mode


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a durable safetensors file; its name is durable after `sync_directory`.

    Raises `OSError` where it cannot be written, such as on a full disk.
    """
    part = path.with_suffix(".part")
    try:
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, part, None if metadata is None else dict(metadata))
    except SafetensorError as error:  # the library's own class for a failed write
        raise OSError(str(error)) from None
    part.chmod(file_mode(path.parent))
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file into memory.

    Into memory of PyTorch's own: the last bits of a dot product can depend on where a vector starts.
    """
    return {name: tensor.clone() for name, tensor in load_file(path).items()}


def read_metadata(path: Path) -> dict[str, str]:
    """Read the metadata of a safetensors file, and none of its tensors."""
    with safe_open(path, "pt") as file:
        return dict(file.metadata() or {})


def pack_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Serialize tensors as the bytes of a safetensors file."""
    return save({name: tensor.contiguous() for name, tensor in tensors.items()})


def unpack_tensors(data: bytes) -> dict[str, Tensor]:
    """Deserialize the bytes of `pack_tensors`, into memory of PyTorch's own."""
    return {name: tensor.clone() for name, tensor in load(data).items()}


def sync_directory(directory: Path) -> None:
    """Make the names of the files in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
