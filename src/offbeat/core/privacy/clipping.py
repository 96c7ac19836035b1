"""The clipping of an update to a norm."""

from math import isfinite

import torch
from torch import Tensor


def clipped(delta: Tensor, parameters: int, clip: float) -> Tensor:
    """An update as a client sends it that is not masked: parameters within the norm, buffers zero.

    Args:
        delta: Δ over the flat values, float32. One whose parameters are not finite becomes zeros.
        parameters: L, the number of parameters, which come first.
        clip: Greatest L2 norm of the parameters' change, computed in float64.
    """
    sent, own = torch.zeros_like(delta), delta[:parameters].double()
    norm = float(torch.linalg.vector_norm(own))
    if isfinite(norm):
        sent[:parameters] = own * (clip / norm) if norm > clip else own
    return sent
