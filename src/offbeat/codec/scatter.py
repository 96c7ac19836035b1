"""Kept values back in their places."""

import numpy as np
import torch
from torch import Tensor

from offbeat.codec.selection import Indices
from offbeat.codec.validation import Floats


def scatter(values: Floats, indices: Indices | None, size: int) -> Tensor:
    """A vector with the values at their indices (all of them: None) and zeros elsewhere."""
    if indices is None:
        return torch.from_numpy(values)
    out = np.zeros(size, np.float32)
    out[indices] = values
    return torch.from_numpy(out)
