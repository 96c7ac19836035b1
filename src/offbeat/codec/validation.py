"""Validation of a codec's input: the vector, the budget, the size."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offbeat.core.errors import UsageError

Floats = npt.NDArray[np.float32]

MOST = 10**9 - 1
"""The longest vector: NumPy draws hypergeometric numbers up to a population of this size."""

PIECE = 1 << 18
"""Values processed at a time, where a temporary array is larger than its input."""


def pieces(size: int) -> Iterator[slice]:
    """Slices of `PIECE` values that cover 0 to `size`."""
    return (slice(start, min(start + PIECE, size)) for start in range(0, size, PIECE))


def checked(vector: Tensor, bits: int | None) -> Floats:
    """Values of a vector, without a copy. Raises `UsageError` for an invalid vector or budget."""
    if bits is not None and bits < 0:
        raise UsageError(f"bits = {bits} is not allowed: give at least 0, or None for no budget")
    if vector.dtype != torch.float32 or vector.ndim != 1 or vector.device.type != "cpu":
        raise UsageError(
            f"a vector of {vector.dtype} with {vector.ndim} dimensions on {vector.device} cannot be encoded: "
            "give one dimension of float32 on the CPU"
        )
    check_size(vector.numel())
    values: Floats = vector.detach().numpy()
    if not is_finite(values):
        raise UsageError("a vector with infinities or NaN cannot be encoded: its values must be finite")
    return values


def check_size(size: int) -> None:
    """Raises `UsageError` for a size beyond the range of the codecs."""
    if not 0 <= size <= MOST:
        raise UsageError(f"size = {size} is not allowed: vectors have 0 to {MOST} values")


def is_finite(values: Floats) -> bool:
    """Whether all values are finite."""
    return all(bool(np.isfinite(values[piece]).all()) for piece in pieces(len(values)))
