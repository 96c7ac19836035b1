"""Random sparsification and quantisation: the compression of Hu, Chen and Larsson.

"Scheduling and Aggregation Design for Asynchronous Federated Learning over Wireless Networks", Section II-C2.
r coordinates, chosen uniformly at random, are kept as they are, not scaled up; the ν-level quantiser
(see `offbeat.codec.quantisation`) is applied to them with their own norm. r is the largest that satisfies
Equation 10 (see `offbeat.codec.budget`), whose left side is charged, rounded up to whole bits.

Without scaling E[û] = (r/d) u. With `unbiased`, the receiver multiplies by d/r, and E[û] = u; this is ours.

Beside the bits charged the payload (`offbeat.codec.sparse`) has the count of 32 bits, padding to whole bytes,
and the excess of the index code over log2 C(d, r). In all at most 2 % and 64 bits over for ν ≥ 2, at most
2.5 % and 64 bits for ν = 1. It is empty for r = 0: the device sends nothing, is charged nothing, and û = 0.
"""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from offbeat.codec.quantisation import MOST_LEVELS
from offbeat.codec.selection import random_subset
from offbeat.codec.sparse import Sparse
from offbeat.codec.validation import Floats
from offbeat.core.types import NUMBER, Indices, PositiveShare
from offbeat.core.validation import checked_dataclass


@checked_dataclass
class SparseQuantised(Sparse):
    """Sparse quantised codec: r random coordinates with ν levels, r as large as the budget allows.

    Attributes:
        levels: ν, from 1 to 32,767.
        fraction: At most ⌈fraction · d⌉ coordinates are kept, also without a budget; in (0, 1].
        unbiased: Whether the receiver scales the values by d/r.
    """

    levels: Annotated[int, Field(ge=1, le=MOST_LEVELS), NUMBER] = 4
    fraction: PositiveShare = 1.0
    unbiased: bool = False
    kind: Literal["sparse_quantised"] = "sparse_quantised"

    def choose(self, values: Floats, r: int, rng: np.random.Generator) -> Indices:
        """Any r coordinates, each with the same probability."""
        return random_subset(len(values), r, rng)

    def scale(self, size: int, r: int) -> float:
        """d/r, or 1."""
        return size / r if self.unbiased else 1.0
