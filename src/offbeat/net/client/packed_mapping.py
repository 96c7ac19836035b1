"""A small mapping as a tensor, which goes into a file of a site's state beside other tensors."""

import json

import numpy as np
import torch
from torch import Tensor


def packed(about: dict[str, object]) -> Tensor:
    """A small mapping as a tensor, to go into the same file."""
    return octets(json.dumps(about).encode())


def unpacked(tensor: Tensor) -> dict[str, object]:
    """The mapping of such a tensor."""
    about: dict[str, object] = json.loads(tensor.numpy().tobytes())
    return about


def octets(data: bytes) -> Tensor:
    """Bytes as a tensor."""
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())
