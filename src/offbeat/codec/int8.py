"""Int8 codec: every value as a whole number from −127 to 127 times the scale of its block.

A block has `BLOCK` values, the last one fewer. Its scale is its largest magnitude divided by 127. Values are
rounded to the nearest, ties to even: nothing is drawn, so the codec is biased, and goes with error feedback.
Payload: the scales (float32, little-endian), then one byte per value.
"""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from offbeat.codec.bitpacking import Reader
from offbeat.codec.budget import refuse
from offbeat.codec.validation import Floats, check_size, checked
from offbeat.core.codec import PayloadError
from offbeat.core.validation import checked_dataclass

BLOCK, LEVELS = 4096, 127


@checked_dataclass
class Int8:
    """Int8 codec: 8 d bits, and 32 for each block; refuses a budget below that."""

    kind: Literal["int8"] = "int8"

    def bits(self, size: int) -> int:
        """8 d, and 32 for each block."""
        return 8 * size + 32 * -(-size // BLOCK)

    def apply(self, vector: Tensor, bits: int | None, rng: np.random.Generator) -> tuple[Tensor, int]:
        """Return the rounded vector, and its bits."""
        values = checked(vector, bits)
        refuse(self.kind, bits, self.bits(len(values)))
        scales, numbers = _rounded(values)
        return torch.from_numpy(_values(scales, numbers, len(values))), self.bits(len(values))

    def encode(self, vector: Tensor, bits: int | None, rng: np.random.Generator) -> bytes:
        """Encode the scales and the numbers; the payload has exactly the bits charged."""
        values = checked(vector, bits)
        refuse(self.kind, bits, self.bits(len(values)))
        scales, numbers = _rounded(values)
        return scales.astype("<f4").tobytes() + numbers.reshape(-1)[: len(values)].tobytes()

    def decode(self, payload: bytes, size: int) -> Tensor:
        """Decode the vector; refuses scales that are not finite or negative, and the number −128."""
        check_size(size)
        if 8 * len(payload) != self.bits(size):
            raise PayloadError(
                f"the payload has {len(payload)} bytes: {size} values take {self.bits(size) // 8}"
            )
        blocks = -(-size // BLOCK)
        scales = Reader(payload[: 4 * blocks]).floats(blocks)
        numbers = np.zeros((blocks, BLOCK), np.int8)
        numbers.reshape(-1)[:size] = np.frombuffer(payload, np.int8, size, 4 * blocks)
        if (scales < 0).any() or (numbers < -LEVELS).any():
            raise PayloadError("the payload has a scale below 0, or a number below −127")
        return torch.from_numpy(_values(scales, numbers, size))


def _rounded(values: Floats) -> tuple[Floats, np.ndarray]:
    """The scales [blocks] and the numbers [blocks, BLOCK] of values."""
    blocks = -(-len(values) // BLOCK)
    filled = np.zeros((blocks, BLOCK), np.float32)
    filled.reshape(-1)[: len(values)] = values
    scales = np.abs(filled).max(axis=1, initial=0.0) / np.float32(LEVELS)
    # A block of zeros has the scale 0, and a magnitude below the least of float32 times 127 one, too.
    divisors = np.where(scales > 0, scales, np.float32(1))[:, None]
    numbers = np.clip(np.rint(filled / divisors), -LEVELS, LEVELS)
    return scales, np.where(scales[:, None] > 0, numbers, 0).astype(np.int8)


def _values(scales: Floats, numbers: np.ndarray, size: int) -> Floats:
    product: Floats = scales[:, None] * numbers.astype(np.float32)
    return product.reshape(-1)[:size].copy()
