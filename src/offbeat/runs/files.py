"""Atomic files of tensors: written aside, fsynced, renamed, and checked by a checksum when they are read.

The checksum is XXH3, which finds damage, not forgery: who can write the file can write its checksum. Files of
earlier versions have none, and are read without it.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from errno import EINVAL
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save_file
from torch import Tensor
from xxhash import xxh3_64

from offbeat.core.layout import Layout
from offbeat.core.model import Model
from offbeat.core.module_tensors import found_by_name
from offbeat.runs.damage import damage, reading
from offbeat.runs.permissions import file_mode, make_file, private_directory

CHECKSUM = "xxh3_64"
"""Key of the checksum in a file's metadata."""
ON_DEVICE = "on_device"
"""Key of the names, as JSON, of the tensors of a checkpoint's state that were not on the CPU."""
MISMATCH = "does not match its checksum"
PRIVATE_PART = re.compile(r"\..+\.[0-9a-f]{8}", re.ASCII)
"""Name of a file that `write_private` has not finished."""
_SYSTEM_REASON = re.compile(r"I/O error: (.+?) \(os error \d+\)")
_LENGTH = 8  # bytes at the start of a safetensors file: the length of its header
_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.bool: "BOOL",
}  # fmt: skip
"""What safetensors calls the dtypes."""
_IN_NUMPY = _NAMES.keys() - {torch.bfloat16}


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> str:
    """Write a durable safetensors file; its name is durable after `sync_directory`. Returns its checksum.

    Raises `OSError` where it cannot be written, such as on a full disk.
    """
    check_replaceable(path)
    part = path.with_suffix(".part")
    # The file gets its mode before anybody can read data from it.
    make_file(part)
    try:
        contiguous = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
        signed = _signed(contiguous, metadata or {})
        save_file(contiguous, part, signed)
    except SafetensorError as error:
        # Safetensors raises its own class for a failed write, with the system's reason and number.
        reason = _SYSTEM_REASON.search(str(error))
        raise OSError(reason[1] if reason else str(error)) from None
    part.chmod(file_mode(path.parent))
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(path)
    return signed[CHECKSUM]


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file into memory.

    Into memory of PyTorch's own: the last bits of a dot product can depend on where a vector starts.

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
    with reading(path), safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        metadata = dict(file.metadata() or {})
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


def pack_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Serialize tensors as the bytes of a safetensors file, with a checksum."""
    return b"".join(packed_pieces(tensors))


def packed_pieces(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The bytes of `pack_tensors` in pieces: the head, then the tensors as they lie in memory.

    Safetensors' own function takes several times as long for a small update.
    """
    at: int = 0
    octets = {name: _octets(tensor) for name, tensor in tensors.items()}
    head: dict[str, Any] = {"__metadata__": {CHECKSUM: _checksum(tensors, octets, {})}}
    for name, tensor in tensors.items():
        offsets = [at, at + tensor.nbytes]
        head[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        at = offsets[1]
    said = json.dumps(head).encode()
    said += b" " * (-len(said) % 8)
    yield len(said).to_bytes(_LENGTH, "little") + said
    yield from (data for data in octets.values() if data)


def unpack_tensors(data: bytes) -> dict[str, Tensor]:
    """Deserialize the bytes of `pack_tensors`, into memory of PyTorch's own.

    Raises:
        ValueError: They do not match their checksum.
        SafetensorError: They are no tensors.
    """
    tensors = {name: tensor.clone() for name, tensor in load(data).items()}
    header = json.loads(data[_LENGTH : _LENGTH + int.from_bytes(data[:_LENGTH], "little")])
    if not intact(tensors, header.get("__metadata__", {})):
        raise ValueError("the tensors do not match their checksum")
    return tensors


def checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """XXH3 of names, dtypes, shapes and bytes of tensors, and of their metadata but itself."""
    return _checksum(tensors, {name: _octets(tensor) for name, tensor in tensors.items()}, metadata)


def _checksum(
    tensors: Mapping[str, Tensor], octets: Mapping[str, memoryview], metadata: Mapping[str, str]
) -> str:
    """The checksum of tensors whose bytes are known."""
    digest = xxh3_64(json.dumps(sorted((k, v) for k, v in metadata.items() if k != CHECKSUM)).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(octets[name])
    return digest.hexdigest()


def _octets(tensor: Tensor) -> memoryview:
    """The bytes of a tensor, which are a copy where it is not on the CPU or has gaps."""
    if tensor.dtype not in _IN_NUMPY:
        tensor = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    # NumPy takes a third of PyTorch's time, which is most of it for few values.
    return np.ascontiguousarray(tensor.numpy(force=True)).reshape(-1).view(np.uint8).data


def intact(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bool:
    """Whether tensors and metadata match the checksum in the metadata, if there is one."""
    return metadata.get(CHECKSUM) in (None, checksum(tensors, metadata))


def _signed(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> dict[str, str]:
    return {**metadata, CHECKSUM: checksum(tensors, metadata)}


def make_directory(directory: Path) -> None:
    """Make a directory of its owner's whose name is durable. Raises `OSError` where it cannot be made."""
    missing = [place for place in (directory, *directory.parents) if not place.exists()]
    private_directory(directory)
    # The name of an existing directory may not be durable yet, if another process has just made it.
    for place in missing or [directory]:
        # The user may lack access to a parent directory, but not to the names below it.
        with suppress(PermissionError):
            sync_directory(place.parent)


def check_replaceable(path: Path) -> None:
    """Raise `OSError` where a file would take the place of a device or a pipe, such as /dev/null."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(EINVAL, "it is a device or a pipe; give the name of a file", str(path))


def write_private(path: Path, data: bytes) -> None:
    """Replace a file as a whole, durably and readable by its owner only. Raises `OSError`."""
    check_replaceable(path)
    part = path.with_name(f".{path.name}.{token_hex(4)}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make the names of the files in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
