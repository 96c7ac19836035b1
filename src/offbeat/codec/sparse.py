"""Sparse codecs: some coordinates of a vector, as float32 or quantised, and which ones they are.

Payload: r (4 bytes), the values, the indices (`offbeat.codec.entropy_coding`). Values are float32, or the
norm and the levels (`offbeat.codec.quantisation`). It is empty for r = 0: nothing is sent or charged, and the
receiver has zeros.
"""

from abc import ABC, abstractmethod
from math import ceil

import numpy as np
import torch
from torch import Tensor

from offbeat.codec.bitpacking import Reader
from offbeat.codec.budget import NORM_BITS, largest_sparse, share, sparse_bits, value_bits
from offbeat.codec.entropy_coding import decode_indices, encode_indices
from offbeat.codec.quantisation import LARGEST, Levels, dequantise, pack_levels, quantise, read_levels
from offbeat.codec.selection import scatter
from offbeat.codec.validation import Floats, check_size, checked
from offbeat.core.codec import PayloadError
from offbeat.core.errors import UsageError
from offbeat.core.types import Indices


class Sparse(ABC):
    """Common base of the codecs that keep r of d coordinates, r as large as the budget allows.

    Attributes:
        levels: ν of quantised values. None means float32 values.
        fraction: At most ⌈fraction · d⌉ coordinates are kept, also without a budget; in (0, 1].
    """

    levels: int | None
    fraction: float

    @abstractmethod
    def choose(self, values: Floats, r: int, rng: np.random.Generator) -> Indices:
        """The r coordinates to keep, ascending; r is below the number of values."""

    def scale(self, size: int, r: int) -> float:
        """Factor of the receiver for quantised values."""
        return 1.0

    def kept(self, size: int, bits: int | None) -> int:
        """Number r of values kept of a vector of `size`; 0 means that nothing is sent."""
        return largest_sparse(size, bits, *self._cost(), share(size, self.fraction))

    @staticmethod
    def count(payload: bytes) -> int:
        """Number r of values in a payload that `decode` takes."""
        return int.from_bytes(payload[:4], "little")

    def bits(self, size: int) -> int:
        """The bits of as many coordinates as `fraction` allows."""
        r = self.kept(size, None)
        return ceil(sparse_bits(size, r, *self._cost())) if r else 0

    def apply(self, vector: Tensor, bits: int | None, rng: np.random.Generator) -> tuple[Tensor, int]:
        """Return the vector as received, and log2 C(d, r) + the bits of the values, rounded up."""
        values = checked(vector, bits)
        size, r = len(values), self.kept(len(values), bits)
        if r == 0:
            return torch.zeros(size), 0
        indices, kept = self._chosen(values, r, rng)
        if self.levels is not None:
            norm, signed = self._quantised(kept, self.levels, size, rng)
            kept = dequantise(norm, signed, self.levels, self.scale(size, r))
        elif indices is None:
            kept = kept.copy()
        return scatter(kept, indices, size), ceil(sparse_bits(size, r, *self._cost()))

    def encode(self, vector: Tensor, bits: int | None, rng: np.random.Generator) -> bytes:
        """Encode r, the values and the indices; empty if r = 0."""
        values = checked(vector, bits)
        size, r = len(values), self.kept(len(values), bits)
        if r == 0:
            return b""
        indices, chosen = self._chosen(values, r, rng)
        if self.levels is None:
            packed = chosen.astype("<f4", copy=False).tobytes()
        else:
            packed = pack_levels(*self._quantised(chosen, self.levels, size, rng), self.levels)
        return r.to_bytes(4, "little") + packed + encode_indices(indices, size)

    def decode(self, payload: bytes, size: int) -> Tensor:
        """Decode the vector as received."""
        check_size(size)
        if not payload:
            return torch.zeros(size)
        reader = Reader(payload)
        r = reader.count(size)
        if self.levels is None:
            values = reader.floats(r)
        else:
            (norm, signed), scale = read_levels(reader, r, self.levels), self.scale(size, r)
            if norm * scale > LARGEST:
                raise PayloadError(f"the payload's norm is {norm:.4g}: scaled by d/r it is no float32")
            values = dequantise(norm, signed, self.levels, scale)
        return scatter(values, decode_indices(reader, r, size), size)

    def _cost(self) -> tuple[int, int]:
        """Bits of each value, and of all together."""
        return (32, 0) if self.levels is None else (value_bits(self.levels), NORM_BITS)

    def _chosen(self, values: Floats, r: int, rng: np.random.Generator) -> tuple[Indices | None, Floats]:
        """The indices kept (None means all) and their values."""
        indices = None if r == len(values) else self.choose(values, r, rng)
        return indices, values if indices is None else values[indices]

    def _quantised(
        self, chosen: Floats, levels: int, size: int, rng: np.random.Generator
    ) -> tuple[float, Levels]:
        """The norm and the signed levels of the values kept."""
        norm, signed = quantise(chosen, levels, rng)
        if norm * self.scale(size, len(chosen)) > LARGEST:
            raise UsageError(f"a vector of norm {norm:.4g} cannot be encoded: scaled by d/r it is no float32")
        return norm, signed
