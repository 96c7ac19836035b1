"""Checked types of options that several modules use."""

from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

Count = Annotated[int, Field(ge=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Seconds = Positive
Indices = npt.NDArray[np.int64]
