"""QSGD: every coordinate, quantised to ν levels (Alistarh et al. 2017).

`fixed` gives each coordinate ⌈log2(ν + 1)⌉ + 1 bits, 32 + d (⌈log2(ν + 1)⌉ + 1) in all; the payload fills up
the last byte and has nothing else.

`elias` sends the coordinates whose level is not zero: their indices, their signs, and their levels in Elias'
gamma code. With a norm over many coordinates most levels are zero, and this is far shorter. Its length
depends on the values. Charged are 64 bits for the count and the norm, ⌈log2 C(d, n)⌉ for the n indices, and
the bits of signs and levels. The paper codes the gaps between indices with Elias' code as well; here they
have the Golomb code, which is shorter (`offbeat.codec.entropy_coding`). The payload is at most 3.5 % and 64 +
14 ⌊log2 ν⌋ bits longer where the indices are not clustered, for the index code and for the whole bytes of
each part of the gamma code. It is empty if every level is zero.

The norm is over the whole vector, as in the paper's Section 3; its experiments' buckets are not here.
"""

from math import ceil
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from offbeat.codec.bitpacking import Reader, pack
from offbeat.codec.budget import NORM_BITS, index_bits, refuse, value_bits
from offbeat.codec.entropy_coding import (
    decode_gamma,
    decode_indices,
    encode_gamma,
    encode_indices,
    gamma_bits,
)
from offbeat.codec.quantisation import (
    MOST_LEVELS,
    Levels,
    dequantise,
    pack_levels,
    pack_norm,
    quantise,
    read_levels,
    signed_levels,
)
from offbeat.codec.selection import scatter
from offbeat.codec.validation import check_size, checked
from offbeat.core.codec import PayloadError
from offbeat.core.types import NUMBER
from offbeat.core.validation import checked_dataclass


@checked_dataclass
class Qsgd:
    """QSGD codec: all coordinates with ν levels; refuses a budget that is too small.

    Attributes:
        levels: ν, from 1 to 32,767.
        coding: "fixed" (the same bits for each coordinate) or "elias" (few bits for small levels).
    """

    levels: Annotated[int, Field(ge=1, le=MOST_LEVELS), NUMBER] = 4
    coding: Literal["fixed", "elias"] = "fixed"
    kind: Literal["qsgd"] = "qsgd"

    def bits(self, size: int) -> int | None:
        """The bits of all levels; those of "elias" depend on the values."""
        return NORM_BITS + value_bits(self.levels) * size if self.coding == "fixed" else None

    def apply(self, vector: Tensor, bits: int | None, rng: np.random.Generator) -> tuple[Tensor, int]:
        """Return the quantised vector and its bits."""
        norm, signed, needed = self._compress(vector, bits, rng)
        return torch.from_numpy(dequantise(norm, signed, self.levels)), needed

    def encode(self, vector: Tensor, bits: int | None, rng: np.random.Generator) -> bytes:
        """Encode the norm and the levels, and for "elias" the indices."""
        norm, signed, _ = self._compress(vector, bits, rng)
        if self.coding == "fixed":
            return pack_levels(norm, signed, self.levels)
        indices = np.flatnonzero(signed)
        if len(indices) == 0:
            return b""
        found = signed[indices]
        head = len(indices).to_bytes(4, "little") + pack_norm(norm) + pack(found < 0, 1)
        gamma = encode_gamma(np.abs(found).astype(np.int32), self.levels)
        return head + gamma + encode_indices(indices, len(signed))

    def decode(self, payload: bytes, size: int) -> Tensor:
        """Decode the quantised vector."""
        check_size(size)
        reader = Reader(payload)
        if self.coding == "fixed":
            norm, signed = read_levels(reader, size, self.levels)
            reader.end()
            return torch.from_numpy(dequantise(norm, signed, self.levels))
        if not payload:
            return torch.zeros(size)
        count = reader.count(size)
        norm = reader.norm()
        negative = reader.numbers(count, 1) == 1
        sizes = decode_gamma(reader, count, self.levels)
        if bool((sizes > self.levels).any()):
            raise PayloadError(f"the payload has level {sizes.max()}: there are {self.levels}")
        signed = signed_levels(norm, sizes.astype(np.int16), negative)
        return scatter(dequantise(norm, signed, self.levels), decode_indices(reader, count, size), size)

    def _compress(
        self, vector: Tensor, bits: int | None, rng: np.random.Generator
    ) -> tuple[float, Levels, int]:
        """The norm, the signed levels and the bits charged."""
        values = checked(vector, bits)
        needed = NORM_BITS + value_bits(self.levels) * len(values)
        if self.coding == "fixed":
            refuse(self.kind, bits, needed)
        norm, signed = quantise(values, self.levels, rng)
        if self.coding == "elias":
            needed = _elias_bits(signed, self.levels)
            refuse(self.kind, bits, needed)
        return norm, signed, needed


def _elias_bits(signed: Levels, levels: int) -> int:
    """Bits charged for levels in Elias' code."""
    sizes = np.abs(signed[signed != 0]).astype(np.int32)
    if len(sizes) == 0:
        return 0
    indices = ceil(index_bits(len(signed), len(sizes)))
    return 32 + NORM_BITS + indices + len(sizes) + gamma_bits(sizes, levels)
