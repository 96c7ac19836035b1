"""Copies of a user's module, so that a run never trains the object that it was given."""

from copy import deepcopy

from torch import Tensor, nn

from offbeat.core.errors import UsageError


def copied(module: nn.Module, whose: str = "module") -> nn.Module:
    """Copy a module.

    The parameters of a copy of a scripted or traced module follow from those of the original one in
    autograd's graph; they are cut off from it, so that gradients reach them.

    Args:
        module: The module.
        whose: What names it in messages.

    Raises:
        UsageError: The module has a part that cannot be copied.
    """
    try:
        made = deepcopy(module)
    except Exception as error:
        raise UsageError(
            f"{whose} = a {type(module).__name__} cannot be copied ({_told(error)}): give a function that "
            "makes it, or leave that part out of it"
        ) from error
    for parameter in made.parameters():
        if not parameter.is_leaf:
            wanted = parameter.requires_grad
            parameter.detach_().requires_grad_(wanted)
    return made


def shares_tensors(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules have a parameter or a buffer in common."""
    return bool({id(tensor) for tensor in _tensors(one)} & {id(tensor) for tensor in _tensors(other)})


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _told(error: Exception) -> str:
    """The first sentence of an error."""
    text = " ".join(str(error).split()) or "no reason given"
    return f"{type(error).__name__}: {text.partition('. ')[0]}"[:300]
