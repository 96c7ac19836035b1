"""Sparse gradients, such as those of `Embedding(sparse=True)`, where only dense ones can be taken."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from offbeat.local.fast.adam import FusedAdam
from offbeat.local.fast.sgd import SGD


def make_dense(parameters: Iterable[Tensor]) -> None:
    """Make the sparse gradients of parameters dense ones."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.layout is not torch.strided:
            parameter.grad = parameter.grad.to_dense()


def takes_sparse(optimizer: Any) -> bool:
    """Whether an optimizer takes sparse gradients: PyTorch's three, and one of the user's own class."""
    if isinstance(optimizer, SGD):
        return not optimizer.weight_decay
    if isinstance(optimizer, FusedAdam):
        return False
    if isinstance(optimizer, torch.optim.SparseAdam):
        return True
    if isinstance(optimizer, torch.optim.SGD | torch.optim.Adagrad):
        return not any(group["weight_decay"] for group in optimizer.param_groups)
    return not type(optimizer).__module__.startswith("torch.optim")
