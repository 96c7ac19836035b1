"""The large updates since the last checkpoint: one file, written from its start again after each checkpoint.

Blocks that a disk has given once are written several times faster than new ones, and one fsync is enough for
all updates of a batch. An update is a safetensors file within this one; where it is, the database says, and
what the database names is not written over.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offbeat.core.model import Tensors
from offbeat.runs.damage import damage, reading
from offbeat.runs.files import CHECKSUM, checksum, sync_directory, unpack_tensors
from offbeat.runs.permissions import make_file

UPDATES = "updates.log"
"""Name of the file in a state directory."""
_NAMES = {torch.float32: "F32", torch.float64: "F64", torch.int32: "I32", torch.int64: "I64"}
# `fdatasync` is enough, but not every system has it.
_sync = getattr(os, "fdatasync", os.fsync)


class UpdateLog:
    """The writing end of the file in a directory. What a file holds already is kept until it is cleared.

    Args:
        directory: The state directory.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / UPDATES
        make_file(self._path)
        self._file = os.open(self._path, os.O_RDWR | getattr(os, "O_BINARY", 0))
        self._end = os.fstat(self._file).st_size
        sync_directory(directory)

    def append(self, tensors: Tensors) -> tuple[int, int]:
        """Write an update, which is durable after `sync`.

        Args:
            tensors: The update's tensors by name.

        Returns:
            Where it begins, and its number of bytes.

        Raises:
            OSError: It cannot be written, such as on a full disk; then nothing of it is in the file.
        """
        begin = os.lseek(self._file, self._end, os.SEEK_SET)
        for piece in _pieces(tensors):
            left = memoryview(piece)
            while left:
                left = left[os.write(self._file, left) :]
        self._end = os.lseek(self._file, 0, os.SEEK_CUR)
        return begin, self._end - begin

    def sync(self) -> None:
        """Make durable what was written."""
        _sync(self._file)

    def clear(self) -> None:
        """Begin at the start again: the database names nothing in the file any more."""
        self._end = 0

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def delete(self) -> None:
        """Delete the file, at the end of the run."""
        self.close()
        self._path.unlink(missing_ok=True)


def read_update(directory: Path, begin: int, size: int) -> Tensors:
    """Read an update.

    Args:
        directory: The state directory.
        begin: Where it begins, as `append` returned it.
        size: Its number of bytes.

    Raises:
        DamageError: The file does not reach so far, as in a copy made while the server was writing.
        ValueError: What is there does not match its checksum.
        SafetensorError: What is there is no update.
    """
    path = directory / UPDATES
    with reading(path), path.open("rb") as file:
        if not 0 <= begin <= begin + size <= os.fstat(file.fileno()).st_size:
            raise damage(path, "does not have what run.db says")
        file.seek(begin)
        data = file.read(size)
    if len(data) < size:
        raise damage(path, "does not have what run.db says")
    return unpack_tensors(data)


def _pieces(tensors: Tensors) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file: its head, then the tensors as they lie in memory."""
    at: int = 0
    head: dict[str, Any] = {"__metadata__": {CHECKSUM: checksum(tensors, {})}}
    for name, tensor in tensors.items():
        offsets = [at, at + tensor.nbytes]
        head[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        at = offsets[1]
    said = json.dumps(head).encode()
    said += b" " * (-len(said) % 8)
    yield len(said).to_bytes(8, "little") + said
    for tensor in tensors.values():
        if tensor.numel():
            yield tensor.detach().contiguous().numpy().reshape(-1).view(np.uint8).data
