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
    on_device = [t.detach() for t in tensors if t.device.type != "cpu"]
    if len(on_device) <= 1:
        return [t.detach().cpu() for t in tensors]
    # The widest first: each part then begins at a multiple of its element's size.
    order = sorted(range(len(on_device)), key=lambda i: -on_device[i].dtype.itemsize)
    octets = torch.cat([on_device[i].contiguous().view(-1).view(torch.uint8) for i in order]).cpu()
    copies: dict[int, Tensor] = {}
    start = 0
    for i in order:
        source = on_device[i]
        size = prod(source.shape) * source.dtype.itemsize
        copies[i] = octets[start : start + size].view(source.dtype).view(source.shape)
        start += size
    copied = iter(copies[i] for i in range(len(on_device)))
    return [t.detach() if t.device.type == "cpu" else next(copied) for t in tensors]
