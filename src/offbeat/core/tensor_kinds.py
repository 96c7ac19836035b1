"""Kinds of tensors that the flat vectors of a model cannot hold, or that no copy can be made of."""

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
"""Floating dtypes whose values float32 covers."""

_LAZY = "has no shape yet: call the module once with a batch, so that its lazy layers know theirs"
EXPANDED = "is expanded: its elements share memory and cannot be set; give a copy (tensor.clone())"


def unfit_for_model(tensor: Tensor) -> str | None:
    """Why a model cannot hold a tensor, and what to do, to follow its name; None where it can."""
    if is_lazy(tensor):
        return _LAZY
    if (found := _no_plain_values(tensor)) is not None:
        return found
    if tensor.is_complex():
        return "is complex: use two real ones, or a buffer that is not persistent"
    if tensor.is_quantized:
        return "is quantized: train the float module, and quantize what comes of it"
    if tensor.is_floating_point() and tensor.dtype not in FLOATS:
        use = "use float32, float16 or bfloat16 (module.float())"
        return f"has dtype {tensor.dtype}: models travel as float32, so {use}"
    if is_traceable_wrapper_subclass(tensor) and not _copies(tensor):
        return f"is a {type(tensor).__name__}: use a plain tensor, such as its local or full one"
    if overlaps(tensor) and not isinstance(tensor, nn.Parameter):
        # A copy of a parameter has its own memory, so overlaps do not matter there.
        return EXPANDED
    return None


def unfit_for_copies(tensor: Tensor) -> str | None:
    """Why a tensor that is no part of a model cannot be copied, as `unfit_for_model` says it.

    Such are parameters that are frozen, and buffers that are not persistent.
    """
    if is_lazy(tensor):
        return _LAZY
    if (found := _no_plain_values(tensor)) is not None:
        try:
            deepcopy(tensor).copy_(tensor)
        except Exception:
            return found
    elif 0 in tensor.stride() and overlaps(tensor) and not isinstance(tensor, nn.Parameter):
        return EXPANDED
    return None


def _no_plain_values(tensor: Tensor) -> str | None:
    """Why the values of a tensor do not lie side by side, if they do not."""
    if tensor.is_nested:
        return "is a nested tensor, whose rows differ in length: pad it, or make it in forward"
    if tensor.layout is not torch.strided:
        kind = str(tensor.layout).removeprefix("torch.")
        return f"has layout {kind}: use a dense one (tensor.to_dense()), or make it in forward"
    return None


def overlaps(tensor: Tensor) -> bool:
    """Whether elements of a strided tensor share memory, as those of `expand` do, so that none can be set."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
    return False


def _copies(tensor: Tensor) -> bool:
    """Whether the values of a tensor of a class of its own can be written to a plain one."""
    try:
        torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
    except Exception:
        return False
    return True
