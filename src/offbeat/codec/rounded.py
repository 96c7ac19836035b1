"""Rounding codec: every value as bfloat16 or float16, 16 d bits."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from offbeat.codec.budget import refuse
from offbeat.codec.validation import Floats, check_size, checked
from offbeat.core.codec import PayloadError
from offbeat.core.errors import UsageError
from offbeat.core.validation import checked_dataclass
from offbeat.core.wire_types import DTYPES


@checked_dataclass
class Rounded:
    """Rounding codec, to the nearest value; refuses a budget below 16 d bits, and values that are too large.

    Attributes:
        to: The type of the values.
    """

    kind: Literal["rounded"] = "rounded"
    to: Literal["bfloat16", "float16"] = "bfloat16"

    def bits(self, size: int) -> int:
        """16 d."""
        return 16 * size

    def apply(self, vector: Tensor, bits: int | None, rng: np.random.Generator) -> tuple[Tensor, int]:
        """Return the rounded vector, and 16 d bits."""
        rounded = self._round(checked(vector, bits), bits)
        return rounded.to(torch.float32), 16 * len(rounded)

    def encode(self, vector: Tensor, bits: int | None, rng: np.random.Generator) -> bytes:
        """Encode as 2 d bytes, little-endian."""
        rounded = self._round(checked(vector, bits), bits)
        return rounded.view(torch.int16).numpy().astype("<i2", copy=False).tobytes()

    def decode(self, payload: bytes, size: int) -> Tensor:
        """Decode the vector; refuses values that are not finite."""
        check_size(size)
        if len(payload) != 2 * size:
            raise PayloadError(f"the payload has {len(payload)} bytes: {size} values take {2 * size}")
        numbers = np.frombuffer(payload, "<i2").astype(np.int16)
        values = torch.from_numpy(numbers).view(DTYPES[self.to]).to(torch.float32)
        if not bool(torch.isfinite(values).all()):
            raise PayloadError("the payload has a value that is not finite")
        return values

    def _round(self, values: Floats, bits: int | None) -> Tensor:
        refuse(self.kind, bits, 16 * len(values))
        rounded = torch.from_numpy(values).to(DTYPES[self.to])
        if not bool(torch.isfinite(rounded).all()):
            largest = float(np.abs(values).max())
            raise UsageError(
                f"the update has the value {largest:g}, which is too large for {self.to}: choose bfloat16 or "
                "float32 for wire.up"
            )
        return rounded
