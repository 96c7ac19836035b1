"""Tensors as the bytes of a safetensors file, which go from and into the memory where the tensors lie.

Safetensors' own functions copy each tensor on its way, or map a file whose pages then count as memory beside
the tensors. They also take several times as long for a small update.

The checksum is XXH3, which finds damage, not forgery: who can write the file can write its checksum. Files of
other programs have none, and are read without it.
"""

import json
from collections.abc import Iterator, Mapping
from io import BufferedIOBase, BytesIO
from math import prod
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from torch import Tensor
from xxhash import xxh3_64

from offbeat.core.errors import RunError

CHECKSUM = "xxh3_64"
"""Key of the checksum in the metadata."""
_METADATA = "__metadata__"
"""Key of the metadata in the head."""
_LENGTH = 8  # bytes at the start: the length of the head
# Bytes of a head, at most: those of 100,000 tensors. A longer one would take seconds, and has no model.
_LONGEST = 2**24
_MOST_VALUES = 2**59  # in a tensor, whose bytes a signed number of 64 bits counts
_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.bool: "BOOL", torch.complex64: "C64", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2: "F8_E5M2", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
}  # fmt: skip
"""What safetensors calls the dtypes."""
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_NOT_IN_NUMPY = {
    torch.bfloat16, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz
}  # fmt: skip
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Shape = Annotated[tuple[_Count, ...], msgspec.Meta(max_length=64)]  # NumPy has no more dimensions


class _Entry(msgspec.Struct):
    """What the head says of a tensor."""

    dtype: str
    shape: _Shape
    data_offsets: tuple[_Count, _Count]


def pack_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Serialize tensors, with a checksum. Raises `RunError` as `packed_pieces` does."""
    return b"".join(packed_pieces(tensors, signed(tensors, {})))


def packed_pieces(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file in pieces: the head, then the tensors as they lie in memory.

    The widest dtypes come first, so that each tensor begins at a multiple of its dtype's width.

    Raises:
        RunError: A tensor has a dtype that the format does not have.
    """
    at: int = 0
    head: dict[str, Any] = {_METADATA: dict(metadata)}
    ordered = sorted(tensors.items(), key=lambda own: (-own[1].dtype.itemsize, own[0]))
    for name, tensor in ordered:
        if tensor.dtype not in _NAMES:
            allowed = ", ".join(map(_named, _NAMES))
            what = f"tensor {name!r} has the dtype {_named(tensor.dtype)}, which no file can have"
            raise RunError(f"{what}: use one of {allowed}")
        offsets = [at, at + tensor.nbytes]
        head[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        at = offsets[1]
    said = json.dumps(head).encode()
    said += b" " * (-len(said) % 8)
    yield len(said).to_bytes(_LENGTH, "little") + said
    yield from (_octets(tensor) for _, tensor in ordered if tensor.numel())


def _named(dtype: torch.dtype) -> str:
    return f"{dtype}".removeprefix("torch.")


def unpack_tensors(data: bytes) -> dict[str, Tensor]:
    """Deserialize the bytes of `pack_tensors`; errors: as of `read_packed`."""
    return read_packed(BytesIO(data), len(data))


def read_packed(file: BufferedIOBase, size: int) -> dict[str, Tensor]:
    """Read what `pack_tensors` has made, as `read_pieces` does.

    Raises:
        ValueError: The bytes are no tensors, or do not match their checksum.
    """
    tensors, metadata = read_pieces(file, size)
    if not intact(tensors, metadata):
        raise ValueError("the tensors do not match their checksum")
    return tensors


def read_pieces(file: BufferedIOBase, size: int) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors, in the order of their names, and metadata from the next `size` bytes of a file.

    Each tensor gets memory of PyTorch's own: the last bits of a dot product can depend on where a vector
    starts.

    Raises:
        ValueError: The bytes are no tensors.
    """
    length = int.from_bytes(file.read(_LENGTH), "little")
    end = size - _LENGTH - length
    if length > _LONGEST or end < 0:
        raise ValueError(f"its head cannot have {length} bytes")
    entries, metadata = _read_head(file.read(length))
    at, tensors = 0, dict[str, Tensor]()
    for name, entry in sorted(entries.items(), key=lambda own: own[1].data_offsets):
        (begin, until), dtype = entry.data_offsets, _DTYPES.get(entry.dtype)
        if dtype is None:
            raise ValueError(f"the dtype of {name}, {entry.dtype}, is not known")
        if begin != at or until > end or until - begin != prod(entry.shape) * dtype.itemsize:
            raise ValueError(f"the bytes of {name}, {begin} to {until}, are not those of its shape")
        # A size of 0 hides others of which PyTorch cannot compute the strides.
        if prod(max(1, n) for n in entry.shape) > _MOST_VALUES:
            raise ValueError(f"the shape of {name} is larger than any tensor's")
        tensor = tensors[name] = torch.empty(entry.shape, dtype=dtype)
        if tensor.nbytes and file.readinto(_octets(tensor)) < tensor.nbytes:
            raise ValueError(f"it ends within {name}")
        at = until
    if at != end:
        raise ValueError(f"it has {end - at} bytes after its tensors")
    return dict(sorted(tensors.items())), metadata


def _read_head(data: bytes) -> tuple[dict[str, _Entry], dict[str, str]]:
    """The entries of the tensors by name, and the metadata. Raises `ValueError`."""
    try:
        head = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(head.pop(_METADATA, b"{}"), type=dict[str, str])
        return {name: msgspec.json.decode(own, type=_Entry) for name, own in head.items()}, metadata
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"its head cannot be read: {error}") from None


def checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """XXH3 of names, dtypes, shapes and bytes of tensors, and of their metadata but itself."""
    digest = xxh3_64(json.dumps(sorted((k, v) for k, v in metadata.items() if k != CHECKSUM)).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(_octets(tensor))
    return digest.hexdigest()


def intact(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bool:
    """Whether tensors and metadata match the checksum in the metadata, if there is one."""
    return metadata.get(CHECKSUM) in (None, checksum(tensors, metadata))


def signed(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> dict[str, str]:
    """The metadata, with the checksum of both."""
    return {**metadata, CHECKSUM: checksum(tensors, metadata)}


def _octets(tensor: Tensor) -> memoryview:
    """The bytes of a tensor, which are a copy where it is not on the CPU or has gaps."""
    if tensor.dtype in _NOT_IN_NUMPY:
        tensor = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    # NumPy takes a third of PyTorch's time, which is most of it for few values.
    return np.ascontiguousarray(tensor.numpy(force=True)).reshape(-1).view(np.uint8).data
