"""The contract of codecs: the compression of an update's vector.

A codec has two sides. A simulator needs no bytes: `apply` gives the vector as the receiver gets it and the
bits charged for it. A network needs bytes: `encode` makes them and `decode` reads them. Both sides draw the
same numbers from the rng in the same order, so with rngs of the same state

    decode(encode(v, bits, rng), size) equals apply(v, bits, rng)[0] bit for bit.

The receiver knows the vector's size and the codec's options; they are not in the payload. A payload comes
from another party, so `decode` trusts nothing in it: every length is checked against `size` and the payload's
length before anything is allocated.
"""

from typing import Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from offbeat.core.errors import OffbeatError
from offbeat.core.layout import Layout


class PayloadError(OffbeatError, ValueError):
    """A payload that `encode` cannot have made for a vector of this size."""


@runtime_checkable
class Sized(Protocol):
    """A codec that knows how many bits it charges."""

    def bits(self, size: int) -> int | None:
        """Bits charged for a vector of `size` values without a budget. None means that values decide."""


class Codec(Protocol):
    """Lossy or lossless compression of a flat float32 vector; holds options, no state."""

    @property
    def kind(self) -> str:
        """Name of the codec, as in `CodecSpec`."""

    def apply(self, vector: Tensor, bits: int | None, rng: np.random.Generator) -> tuple[Tensor, int]:
        """Simulate the transfer of a vector.

        Args:
            vector: float32 [size] on the CPU, with finite values.
            bits: Budget of the vector, at least 0. None means no budget.
            rng: Random stream of the codec's draws.

        Returns:
            The vector as the receiver gets it, a new tensor, and the bits charged for it, at most `bits`.

        Raises:
            UsageError: The budget cannot be met, or the vector has another shape or dtype or values that are
                not finite.
        """

    def encode(self, vector: Tensor, bits: int | None, rng: np.random.Generator) -> bytes:
        """Encode a vector as a payload; arguments and errors as of `apply`.

        Its length may differ from the bits charged: each codec documents by how much.
        """

    def decode(self, payload: bytes, size: int) -> Tensor:
        """Decode a payload.

        Args:
            payload: The bytes received, which are not trusted.
            size: Number of values of the vector.

        Returns:
            The vector, float32 [size].

        Raises:
            PayloadError: `encode` cannot have made the payload for a vector of this size.
        """


def update_bits(codec: Codec | None, layout: Layout) -> int:
    """Bits of an update as it is sent, without a budget; of a codec that cannot tell, those of the model."""
    charged = codec.bits(layout.values) if isinstance(codec, Sized) else None
    values = 32 * layout.values if charged is None else charged
    return values + 64 * layout.integers + 32 * layout.shared
