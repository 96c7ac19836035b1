"""Whether code of the user's runs in a learner's tasks and evaluations, which may draw at random."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from offbeat.core.wrapper import Wrapper
from offbeat.data.dataset import Dataset

_LAYERS = "torch.nn.modules.", "offbeat."
_KNOWN = (*_LAYERS, "torch.nn.functional", "torch.optim.")
"""Modules of Python whose code draws from PyTorch's global generator alone."""


def runs_own_code(module: nn.Module, samples: Iterable[Any], functions: Iterable[Any]) -> bool:
    """Whether any part is neither PyTorch's nor Offbeat's.

    Args:
        module: The module in training.
        samples: Collections of samples; None for one that is not there.
        functions: Functions and objects that are called; names and None are Offbeat's.
    """
    return (
        any(collection is not None and type(collection) is not Dataset for collection in samples)
        or any(not (f is None or isinstance(f, str) or is_known(f)) for f in functions)
        or not all(map(_is_plain, module.modules()))
    )


def is_known(part: Any) -> bool:
    """Whether a function or an object, and what it is a wrapper of, is PyTorch's or Offbeat's."""
    while isinstance(part, Wrapper):
        if not part.__module__.startswith(_KNOWN):
            return False
        part = part.inner
    return (getattr(part, "__module__", None) or "").startswith(_KNOWN)


def _is_plain(layer: nn.Module) -> bool:
    if not type(layer).__module__.startswith(_LAYERS):
        return False
    return not (layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer))
