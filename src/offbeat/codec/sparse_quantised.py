"""Random sparsification and quantisation: the compression of Hu, Chen and Larsson.

"Scheduling and Aggregation Design for Asynchronous Federated Learning over Wireless Networks", Section II-C2.
r coordinates, chosen uniformly at random, are kept as they are, not scaled up; the ν-level quantiser
(see `offbeat.codec.quantisation`) is applied to them with their own norm. r is the largest that satisfies
Equation 10 (see `offbeat.codec.budget`), whose left side is charged, rounded up to whole bits.

Without scaling E[û] = (r/d) u. With `unbiased`, the receiver multiplies by d/r, and E[û] = u; this is ours.

Payload: r (4 bytes), the norm, the levels, the indices (`offbeat.codec.entropy_coding`). Beside the bits
charged it has the count of 32 bits, padding to whole bytes, and the excess of the index code over log2 C(d,
r). In all at most 2 % and 64 bits over for ν ≥ 2, at most 2.5 % and 64 bits for ν = 1. It is empty for r = 0:
the device sends nothing, is charged nothing, and û = 0.
"""

from math import ceil
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from offbeat.codec.bitpacking import Reader
from offbeat.codec.budget import NORM_BITS, bits_needed, largest_sparse, share, value_bits
from offbeat.codec.entropy_coding import decode_indices, encode_indices
from offbeat.codec.quantisation import (
    LARGEST,
    MOST_LEVELS,
    Levels,
    dequantise,
    pack_levels,
    quantise,
    read_levels,
)
from offbeat.codec.selection import random_subset, scatter
from offbeat.codec.validation import Floats, check_size, checked
from offbeat.core.codec import PayloadError
from offbeat.core.errors import UsageError
from offbeat.core.types import Indices, PositiveShare
from offbeat.core.validation import STRICT


@dataclass(frozen=True, config=STRICT)
class SparseQuantised:
    """Sparse quantised codec: r random coordinates with ν levels, r as large as the budget allows.

    Attributes:
        levels: ν, from 1 to 32,767.
        fraction: At most ⌈fraction · d⌉ coordinates are kept, also without a budget; in (0, 1].
        unbiased: Whether the receiver scales the values by d/r.
    """

    levels: Annotated[int, Field(ge=1, le=MOST_LEVELS)] = 4
    fraction: PositiveShare = 1.0
    unbiased: bool = False
    kind: Literal["sparse_quantised"] = "sparse_quantised"

    def kept(self, size: int, bits: int | None) -> int:
        """Number r of values kept of a vector of `size`; 0 means that nothing is sent."""
        each = value_bits(self.levels)
        return largest_sparse(size, bits, each, NORM_BITS, share(size, self.fraction))

    def apply(self, vector: Tensor, bits: int | None, rng: np.random.Generator) -> tuple[Tensor, int]:
        """Return û, and the left side of Equation 10 in whole bits; zeros and 0 bits if r = 0."""
        values = checked(vector, bits)
        size, r = len(values), self.kept(len(values), bits)
        if r == 0:
            return torch.zeros(size), 0
        indices, norm, signed = self._compress(values, r, rng)
        sent = dequantise(norm, signed, self.levels, self._scale(size, r))
        return scatter(sent, indices, size), ceil(bits_needed(size, r, self.levels))

    def encode(self, vector: Tensor, bits: int | None, rng: np.random.Generator) -> bytes:
        """Encode r, the norm, the levels and the indices; empty if r = 0."""
        values = checked(vector, bits)
        size, r = len(values), self.kept(len(values), bits)
        if r == 0:
            return b""
        indices, norm, signed = self._compress(values, r, rng)
        packed = pack_levels(norm, signed, self.levels)
        return r.to_bytes(4, "little") + packed + encode_indices(indices, size)

    def decode(self, payload: bytes, size: int) -> Tensor:
        """Decode û."""
        check_size(size)
        if not payload:
            return torch.zeros(size)
        reader = Reader(payload)
        r = reader.count(size)
        norm, signed = read_levels(reader, r, self.levels)
        if norm * self._scale(size, r) > LARGEST:
            raise PayloadError(f"the payload's norm is {norm:.4g}: scaled by d/r it is no float32")
        indices = decode_indices(reader, r, size)
        return scatter(dequantise(norm, signed, self.levels, self._scale(size, r)), indices, size)

    def _scale(self, size: int, r: int) -> float:
        return size / r if self.unbiased else 1.0

    def _compress(
        self, values: Floats, r: int, rng: np.random.Generator
    ) -> tuple[Indices | None, float, Levels]:
        """The indices kept (None means all), the norm of their values and their levels."""
        indices = None if r == len(values) else random_subset(len(values), r, rng)
        chosen = values if indices is None else values[indices]
        norm, signed = quantise(chosen, self.levels, rng)
        if norm * self._scale(len(values), r) > LARGEST:
            raise UsageError(f"a vector of norm {norm:.4g} cannot be encoded: scaled by d/r it is no float32")
        return indices, norm, signed
