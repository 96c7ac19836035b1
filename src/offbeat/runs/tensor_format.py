"""The format of safetensors files without tensors: the head, the bytes of each tensor, and their checksum.

So a file can be checked without importing PyTorch. The checksum is XXH3, which finds damage, not forgery: who
can write the file can write its checksum. Files of other programs have none, and are read without it.
"""

import json
from collections.abc import Iterable, Mapping
from io import BufferedIOBase
from math import prod
from typing import Annotated, NamedTuple

import msgspec
from xxhash import xxh3_64

CHECKSUM = "xxh3_64"
"""Key of the checksum in the metadata."""
METADATA = "__metadata__"
"""Key of the metadata in the head."""
LENGTH = 8
"""Bytes at the start: the length of the head."""
# Bytes of a head, at most: those of 100,000 tensors. A longer one would take seconds, and has no model.
_LONGEST = 2**24
_MOST_VALUES = 2**59  # in a tensor, whose bytes a signed number of 64 bits counts
DTYPES: Mapping[str, tuple[str, int]] = {
    "F64": ("float64", 8), "F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2),
    "I64": ("int64", 8), "I32": ("int32", 4), "I16": ("int16", 2), "I8": ("int8", 1),
    "U64": ("uint64", 8), "U32": ("uint32", 4), "U16": ("uint16", 2), "U8": ("uint8", 1),
    "BOOL": ("bool", 1), "C64": ("complex64", 8), "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 1), "F8_E5M2": ("float8_e5m2", 1),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 1),
}  # fmt: skip
"""By what safetensors calls a dtype, what PyTorch calls it, and the bytes of a value."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Shape = Annotated[tuple[_Count, ...], msgspec.Meta(max_length=64)]  # NumPy has no more dimensions


class TensorEntry(msgspec.Struct):
    """What the head says of a tensor."""

    dtype: str
    shape: _Shape
    data_offsets: tuple[_Count, _Count]


class Octets(NamedTuple):
    """A tensor as it is summed: its name, PyTorch's name of its dtype, its shape, its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


class TensorBytes(NamedTuple):
    """What a file has: the bytes of each tensor by name, the metadata, and the checksum of both."""

    data: dict[str, bytes]
    metadata: dict[str, str]
    checksum: str

    @property
    def intact(self) -> bool:
        """Whether they match the checksum in the metadata, if there is one."""
        return self.metadata.get(CHECKSUM) in (None, self.checksum)


def read_head(file: BufferedIOBase, size: int) -> tuple[list[tuple[str, TensorEntry]], dict[str, str]]:
    """Read the head of the next `size` bytes of a file; its entries are in the order of the tensors' bytes.

    Raises:
        ValueError: It is no head of such a file.
    """
    length = int.from_bytes(file.read(LENGTH), "little")
    end = size - LENGTH - length
    if length > _LONGEST or end < 0:
        raise ValueError(f"its head cannot have {length} bytes")
    entries, metadata = _decode(file.read(length))
    at, ordered = 0, sorted(entries.items(), key=lambda own: own[1].data_offsets)
    for name, entry in ordered:
        begin, until = entry.data_offsets
        if entry.dtype not in DTYPES:
            raise ValueError(f"the dtype of {name}, {entry.dtype}, is not known")
        if begin != at or until > end or until - begin != prod(entry.shape) * DTYPES[entry.dtype][1]:
            raise ValueError(f"the bytes of {name}, {begin} to {until}, are not those of its shape")
        # A size of 0 hides others of which PyTorch cannot compute the strides.
        if prod(max(1, n) for n in entry.shape) > _MOST_VALUES:
            raise ValueError(f"the shape of {name} is larger than any tensor's")
        at = until
    if at != end:
        raise ValueError(f"it has {end - at} bytes after its tensors")
    return ordered, metadata


def read_contents(file: BufferedIOBase, size: int) -> TensorBytes:
    """Read the next `size` bytes of a file. Raises `ValueError` where they are no tensors."""
    entries, metadata = read_head(file, size)
    found = []
    for name, entry in entries:
        begin, until = entry.data_offsets
        data = file.read(until - begin)
        if len(data) < until - begin:
            raise ValueError(f"it ends within {name}")
        found.append(Octets(name, DTYPES[entry.dtype][0], entry.shape, data))
    return TensorBytes({each.name: bytes(each.data) for each in found}, metadata, summed(found, metadata))


def summed(tensors: Iterable[Octets], metadata: Mapping[str, str]) -> str:
    """XXH3 of names, dtypes, shapes and bytes of tensors, and of their metadata but itself."""
    digest = xxh3_64(json.dumps(sorted((k, v) for k, v in metadata.items() if k != CHECKSUM)).encode())
    for name, dtype, shape, data in sorted(tensors, key=lambda own: own.name):
        digest.update(f"{name} torch.{dtype} {shape}".encode())
        digest.update(data)
    return digest.hexdigest()


def _decode(data: bytes) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    """The entries of the tensors by name, and the metadata. Raises `ValueError`."""
    try:
        head = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(head.pop(METADATA, b"{}"), type=dict[str, str])
        return {name: msgspec.json.decode(own, type=TensorEntry) for name, own in head.items()}, metadata
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"its head cannot be read: {error}") from None
