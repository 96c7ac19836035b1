"""Identity codec: every value as float32, little-endian, 32 d bits."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from offbeat.codec.bitpacking import Reader
from offbeat.codec.budget import refuse
from offbeat.codec.validation import check_size, checked
from offbeat.core.codec import PayloadError
from offbeat.core.validation import checked_dataclass


@checked_dataclass
class Identity:
    """Identity codec; refuses a budget below 32 d bits. The payload has exactly the bits charged."""

    kind: Literal["identity"] = "identity"

    def bits(self, size: int) -> int:
        """32 d."""
        return 32 * size

    def apply(self, vector: Tensor, bits: int | None, rng: np.random.Generator) -> tuple[Tensor, int]:
        """Return a copy of the vector, and 32 d bits."""
        values = checked(vector, bits)
        refuse(self.kind, bits, 32 * len(values))
        return torch.from_numpy(values.copy()), 32 * len(values)

    def encode(self, vector: Tensor, bits: int | None, rng: np.random.Generator) -> bytes:
        """Encode as 4 d bytes."""
        values = checked(vector, bits)
        refuse(self.kind, bits, 32 * len(values))
        return values.astype("<f4", copy=False).tobytes()

    def decode(self, payload: bytes, size: int) -> Tensor:
        """Decode the vector; refuses values that are not finite."""
        check_size(size)
        if len(payload) != 4 * size:
            raise PayloadError(f"the payload has {len(payload)} bytes: {size} values take {4 * size}")
        return torch.from_numpy(Reader(payload).floats(size))
