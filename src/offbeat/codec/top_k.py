"""Top-k sparsification: the k values of largest magnitude, as float32 or quantised.

k is the largest with log2 C(d, k) + 32 k ≤ bits, or for quantised values the r of Equation 10. The left side
is charged, rounded up. The payload's length is within the bounds of `SparseQuantised` where the indices are
spread as if drawn at random; where they are clustered, the index code takes at most 0.6 bits more for each
kept value.
"""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from offbeat.codec.quantisation import MOST_LEVELS
from offbeat.codec.selection import largest
from offbeat.codec.sparse import Sparse
from offbeat.codec.validation import Floats
from offbeat.core.types import NUMBER, Indices, PositiveShare
from offbeat.core.validation import checked_dataclass


@checked_dataclass
class TopK(Sparse):
    """Top-k codec: the k largest |u_i|, k as large as the budget allows; of equal ones, the first.

    Attributes:
        levels: ν of quantised values, from 1 to 32,767. None means float32 values.
        fraction: At most ⌈fraction · d⌉ coordinates are kept, also without a budget; in (0, 1].
    """

    levels: Annotated[int, Field(ge=1, le=MOST_LEVELS), NUMBER] | None = None
    fraction: PositiveShare = 1.0
    kind: Literal["top_k"] = "top_k"

    def choose(self, values: Floats, r: int, rng: np.random.Generator) -> Indices:
        """The r largest."""
        return largest(values, r)
