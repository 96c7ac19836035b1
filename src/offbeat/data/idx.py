"""Reader of the idx format of MNIST and its relatives: unsigned bytes, plain or gzipped.

A file is four bytes of magic (0, 0, type, number of dimensions), one big-endian 32-bit length per dimension,
then the values. The header is checked before it is used: a file cannot make the reader allocate more than it
really holds.
"""

import gzip
import math
import struct
import zlib
from io import BufferedIOBase
from pathlib import Path

import numpy as np
import numpy.typing as npt

from offbeat.core.errors import UsageError, reason_of
from offbeat.unpacking import MOST_DATASET

_UNSIGNED_BYTE = 0x08
_CHUNK = 1 << 20


def read_idx(path: Path, dims: int) -> npt.NDArray[np.uint8]:
    """Read an idx file (gzipped if its name ends in .gz): unsigned bytes in `dims` dimensions.

    Raises `UsageError` naming the file when it cannot be read, is not such a file, is truncated or goes on
    after its end.
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            shape = _read_header(file, path, dims)
            content = _read_at_most(file, math.prod(shape) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(
            f"{path}: cannot be read ({reason_of(error)}); put an intact copy of the file there"
        ) from error
    if len(content) != math.prod(shape):
        what = "is truncated" if len(content) < math.prod(shape) else "goes on after its end"
        raise UsageError(
            f"{path}: {what}: its header says {'x'.join(map(str, shape))} = {math.prod(shape)} values; "
            "put an intact copy of the file there"
        )
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _read_header(file: BufferedIOBase, path: Path, dims: int) -> tuple[int, ...]:
    header = _read_at_most(file, 4 + 4 * dims)
    expected = bytes([0, 0, _UNSIGNED_BYTE, dims])
    if len(header) >= 4 and header[:4] != expected:
        raise UsageError(
            f"{path}: magic {header[:4].hex()} is not {expected.hex()}, idx of unsigned bytes in {dims} "
            "dimension(s); put the right file there"
        )
    if len(header) < 4 + 4 * dims:
        raise UsageError(f"{path}: is truncated in its header; put an intact copy of the file there")
    shape: tuple[int, ...] = struct.unpack(f">{dims}I", header[4:])
    if math.prod(shape) > MOST_DATASET:
        raise UsageError(
            f"{path}: its header says {'x'.join(map(str, shape))} values, more than the {MOST_DATASET} "
            "allowed; put the right file there"
        )
    return shape


def _read_at_most(file: BufferedIOBase, size: int) -> bytearray:
    # In chunks, because read(size) reserves `size` bytes before it knows whether the file has them.
    content = bytearray()
    while len(content) < size and (chunk := file.read(min(_CHUNK, size - len(content)))):
        content += chunk
    return content
