"""Tensors as the bytes of a safetensors file, which go from and into the memory where the tensors lie.

Safetensors' own functions copy each tensor on its way, or map a file whose pages then count as memory beside
the tensors. They also take several times as long for a small update.

The checksum is XXH3, which finds damage, not forgery: who can write the file can write its checksum. Files of
other programs have none, and are read without it.
"""

import json
from collections.abc import Iterator, Mapping
from io import BufferedIOBase, BytesIO
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.core.errors import RunError
from offbeat.runs.tensor_format import CHECKSUM, DTYPES, LENGTH, METADATA, Octets, read_head, summed

_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, own) for name, (own, _) in DTYPES.items()}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
"""What safetensors calls the dtypes."""
_NOT_IN_NUMPY = {
    torch.bfloat16, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz
}  # fmt: skip


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
    head: dict[str, Any] = {METADATA: dict(metadata)}
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
    yield len(said).to_bytes(LENGTH, "little") + said
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
    entries, metadata = read_head(file, size)
    tensors = dict[str, Tensor]()
    for name, entry in entries:
        tensor = tensors[name] = torch.empty(entry.shape, dtype=_DTYPES[entry.dtype])
        if tensor.nbytes and file.readinto(_octets(tensor)) < tensor.nbytes:
            raise ValueError(f"it ends within {name}")
    return dict(sorted(tensors.items())), metadata


def checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """XXH3 of names, dtypes, shapes and bytes of tensors, and of their metadata but itself."""
    octets = (
        Octets(name, _named(tensor.dtype), tuple(tensor.shape), _octets(tensor))
        for name, tensor in tensors.items()
    )
    return summed(octets, metadata)


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
