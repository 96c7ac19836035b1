"""Numbers read from tensors, with one wait for a device however many they are."""

from collections.abc import Sequence

import torch
from torch import Tensor


def read_numbers(scalars: Sequence[Tensor]) -> list[float]:
    """Read tensors of one element each, in their order.

    A program waits for a GPU at every number that it reads there. So those on a device are copied together.
    """
    if len(scalars) == 1:
        return [scalars[0].item()]
    if all(scalar.is_cpu for scalar in scalars):
        return [scalar.item() for scalar in scalars]
    on_device = [i for i, scalar in enumerate(scalars) if not scalar.is_cpu]
    numbers: list[float] = [0.0 if i in on_device else scalar.item() for i, scalar in enumerate(scalars)]
    # Booleans and integers up to 2^24 are float32 numbers too; a norm keeps its own type.
    kinds = {scalars[i].dtype for i in on_device}
    kind = kinds.pop() if len(kinds) == 1 else torch.float32
    together = torch.stack([scalars[i].detach().reshape(()).to(kind) for i in on_device]).cpu().tolist()
    for i, number in zip(on_device, together, strict=True):
        numbers[i] = number
    return numbers
