"""Top-k sparsification: the k values of largest magnitude, as float32 or quantised.

k is the largest with log2 C(d, k) + 32 k ≤ bits, or for quantised values the r of Equation 10. The left side
is charged, rounded up. The payload is laid out as that of `SparseQuantised`. Its length is within the same
bounds where the indices are spread as if drawn at random; where they are clustered, the index code takes at
most 0.6 bits more for each kept value.
"""

from math import ceil
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from offbeat.codec.bitpacking import Reader
from offbeat.codec.budget import NORM_BITS, largest_sparse, share, sparse_bits, value_bits
from offbeat.codec.entropy_coding import decode_indices, encode_indices
from offbeat.codec.quantisation import MOST_LEVELS, dequantise, pack_levels, quantise, read_levels
from offbeat.codec.selection import largest, scatter
from offbeat.codec.validation import Floats, check_size, checked, is_finite
from offbeat.core.codec import PayloadError
from offbeat.core.types import Indices, PositiveShare
from offbeat.core.validation import STRICT


@dataclass(frozen=True, config=STRICT)
class TopK:
    """Top-k codec: the k largest |u_i|, k as large as the budget allows; of equal ones, the first.

    Attributes:
        levels: ν of quantised values, from 1 to 32,767. None means float32 values.
        fraction: At most ⌈fraction · d⌉ coordinates are kept, also without a budget; in (0, 1].
    """

    levels: Annotated[int, Field(ge=1, le=MOST_LEVELS)] | None = None
    fraction: PositiveShare = 1.0
    kind: Literal["top_k"] = "top_k"

    def kept(self, size: int, bits: int | None) -> int:
        """Number k of values kept of a vector of `size`; 0 means that nothing is sent."""
        return largest_sparse(size, bits, *self._cost(), share(size, self.fraction))

    def apply(self, vector: Tensor, bits: int | None, rng: np.random.Generator) -> tuple[Tensor, int]:
        """Return the vector with all but k values zero, and the bits of these; zeros and 0 bits if k = 0."""
        values = checked(vector, bits)
        size, k = len(values), self.kept(len(values), bits)
        if k == 0:
            return torch.zeros(size), 0
        indices, chosen = _choose(values, k)
        if self.levels is not None:
            chosen = dequantise(*quantise(chosen, self.levels, rng), self.levels)
        return scatter(chosen, indices, size), ceil(sparse_bits(size, k, *self._cost()))

    def encode(self, vector: Tensor, bits: int | None, rng: np.random.Generator) -> bytes:
        """Encode k, the values and the indices; empty if k = 0."""
        values = checked(vector, bits)
        size, k = len(values), self.kept(len(values), bits)
        if k == 0:
            return b""
        indices, chosen = _choose(values, k)
        if self.levels is None:
            packed = chosen.astype("<f4", copy=False).tobytes()
        else:
            packed = pack_levels(*quantise(chosen, self.levels, rng), self.levels)
        return k.to_bytes(4, "little") + packed + encode_indices(indices, size)

    def decode(self, payload: bytes, size: int) -> Tensor:
        """Decode the vector with all but k values zero."""
        check_size(size)
        if not payload:
            return torch.zeros(size)
        reader = Reader(payload)
        k = reader.count(size)
        if self.levels is None:
            values = np.frombuffer(reader.take(4 * k), "<f4").astype(np.float32)
            if not is_finite(values):
                raise PayloadError("the payload has values that are not finite")
        else:
            values = dequantise(*read_levels(reader, k, self.levels), self.levels)
        return scatter(values, decode_indices(reader, k, size), size)

    def _cost(self) -> tuple[int, int]:
        """Bits of each value, and of all together."""
        return (32, 0) if self.levels is None else (value_bits(self.levels), NORM_BITS)


def _choose(values: Floats, k: int) -> tuple[Indices | None, Floats]:
    """The indices kept (None means all) and a copy of their values."""
    indices = None if k == len(values) else largest(values, k)
    return indices, values.copy() if indices is None else values[indices]
