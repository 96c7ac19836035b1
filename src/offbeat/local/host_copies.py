"""Copies of a device's tensors on the CPU, with one wait for all of them."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors to the CPU, in one piece; those that are there stay as they are.

    Args:
        tensors: Tensors on one device or on the CPU. They are put together on their device first, so they
            should be small beside its memory.
    """
    there = [t.detach() for t in tensors if t.device.type != "cpu"]
    if len(there) <= 1:
        return [t.detach().cpu() for t in tensors]
    # The widest first: each part then begins at a multiple of its element's size.
    order = sorted(range(len(there)), key=lambda i: -there[i].dtype.itemsize)
    octets = torch.cat([there[i].contiguous().view(-1).view(torch.uint8) for i in order]).cpu()
    here: dict[int, Tensor] = {}
    start = 0
    for i in order:
        own = there[i]
        size = prod(own.shape) * own.dtype.itemsize
        here[i] = octets[start : start + size].view(own.dtype).view(own.shape)
        start += size
    found = iter(here[i] for i in range(len(there)))
    return [t.detach() if t.device.type == "cpu" else next(found) for t in tensors]
