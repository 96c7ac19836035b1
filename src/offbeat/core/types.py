"""Checked types of options that several modules use."""

from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

LARGEST_WHOLE = 2**53
"""Largest whole number of an option: a float has all up to here exactly, and their sums fit in 64 bits."""


def _no_boolean(value: Any) -> Any:
    """A value that a number is made of: true and false would count as 1 and 0."""
    if isinstance(value, bool | np.bool_):
        raise PydanticCustomError("boolean", "should be a number")
    return value


def _not_too_large(value: int) -> int:
    """Refuse a number that PyTorch or NumPy cannot take: options come from recipes and plans of others."""
    if value > LARGEST_WHOLE:
        raise ValueError("it must be at most 2^53")
    return value


NUMBER = BeforeValidator(_no_boolean)
"""Refuses true and false where a number is wanted."""
Whole = Annotated[int, AfterValidator(_not_too_large), NUMBER]
"""A whole number. Each option that is one has this type, or a smaller limit of its own."""
Count = Annotated[Whole, Field(ge=1)]
Finite = Annotated[float, Field(allow_inf_nan=False), NUMBER]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), NUMBER]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), NUMBER]
Share = Annotated[float, Field(ge=0, le=1), NUMBER]
PositiveShare = Annotated[float, Field(gt=0, le=1), NUMBER]
Seconds = Positive
Indices = npt.NDArray[np.int64]
