"""A module's tensors by their names in the plain module.

`torch.compile`, `DataParallel` and `DistributedDataParallel` wrap a module and put `_orig_mod.` or `module.`
before the names of its tensors. These prefixes are taken off, at any depth, so that what a run records of a
wrapped module is what the plain module calls it.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

_PREFIXES = ("_orig_mod", "module")
"""Names under which wrappers hold the module inside."""


@dataclass(frozen=True)
class ModuleTensors:
    """The tensors of a module, under their first names.

    Attributes:
        parameters: The parameters, also those that are frozen.
        buffers: The buffers of any kind.
        persistent: Names that are in the module's state dict.
        aliases: Further names of tensors that have several, such as tied weights; each with the first.
        wrapped: For each name that a wrapper has changed the one that PyTorch gives it.
    """

    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    persistent: frozenset[str]
    aliases: tuple[tuple[str, str], ...]
    wrapped: Mapping[str, str]

    @classmethod
    def of(cls, module: nn.Module) -> "ModuleTensors":
        """Read the tensors of a module."""
        plain = PlainNames(module)
        parameters: dict[str, Tensor] = {plain(name): tensor for name, tensor in module.named_parameters()}
        buffers = {plain(name): tensor for name, tensor in module.named_buffers()}
        first = {id(tensor): name for name, tensor in (parameters | buffers).items()}
        told = {plain(name): tensor for name, tensor in module.state_dict(keep_vars=True).items()}
        aliases = tuple((n, first[id(t)]) for n, t in told.items() if first.get(id(t), n) != n)
        return cls(parameters, buffers, frozenset(told), aliases, plain.changed)

    @property
    def named(self) -> dict[str, Tensor]:
        """Parameters and buffers."""
        return self.parameters | self.buffers


class PlainNames:
    """Takes the prefixes of a module's wrappers off the names of its tensors; `changed` has those changed."""

    def __init__(self, module: nn.Module) -> None:
        found = module.named_modules(remove_duplicate=False)
        held = ((path, _held(part)) for path, part in found)
        inner = [(f"{path}." if path else "", f"{name}.") for path, name in held if name]
        # The prefixes of the innermost wrappers are taken off first.
        self._inner = sorted(inner, key=lambda pair: -len(pair[0]))
        self.changed: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        """The name in the plain module."""
        plain = name
        for path, inside in self._inner:
            if plain.startswith(path + inside):
                plain = path + plain[len(path + inside) :]
        if plain != name:
            self.changed[plain] = name
        return plain


def plain_state_dict(module: nn.Module) -> dict[str, Tensor]:
    """The tensors of a module's state dict, by their names in the plain module."""
    plain = PlainNames(module)
    return {plain(n): t for n, t in module.state_dict().items() if isinstance(t, Tensor)}


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside of wrappers around the whole of it."""
    while (name := _held(module)) is not None:
        module = getattr(module, name)
    return module


def without_prefixes(name: str) -> str:
    """A name in a file without parts that look like a wrapper's prefix, at any depth."""
    return ".".join(part for part in name.split(".") if part not in _PREFIXES)


def found_by_name(tensors: Mapping[str, Tensor], name: str) -> Tensor | None:
    """The tensor of a name; else the only one whose name differs by wrappers' prefixes; else None."""
    if name in tensors:
        return tensors[name]
    # Files that PyTorch itself writes have the prefixes of wrappers.
    bare = without_prefixes(name)
    alike = [tensor for other, tensor in tensors.items() if without_prefixes(other) == bare]
    return alike[0] if len(alike) == 1 else None


def _held(module: nn.Module) -> str | None:
    """The name under which a wrapper holds the module inside; None if the module is no wrapper."""
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return "module"
    # Importing the compiler takes seconds. A compiled module has imported it already.
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is not None and isinstance(module, compiler.OptimizedModule):
        return "_orig_mod"
    return None
