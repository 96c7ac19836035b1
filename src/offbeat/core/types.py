"""Checked types of options that several modules use."""

from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field

LARGEST_WHOLE = 2**53
"""Largest whole number of an option: a float has all up to here exactly, and their sums fit in 64 bits."""


def _not_too_large(value: int) -> int:
    """Refuse a number that PyTorch or NumPy cannot take: options come from recipes and plans of others."""
    if value > LARGEST_WHOLE:
        raise ValueError("it must be at most 2^53")
    return value


Whole = Annotated[int, AfterValidator(_not_too_large)]
"""A whole number. Each option that is one has this type, or a smaller limit of its own."""
Count = Annotated[Whole, Field(ge=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Seconds = Positive
Indices = npt.NDArray[np.int64]
