"""Layout of a model: the tensors of a module that belong to it, and their places in its flat vectors.

A model has every parameter that is trained and every persistent buffer. Parameters that are frozen
(`requires_grad = False`), and tensors that stay at the clients, are no part of it. A frozen parameter has a
digest instead, since every party must have the same ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from hashlib import sha256
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from offbeat.core.errors import UsageError
from offbeat.core.module_tensors import ModuleTensors
from offbeat.core.tensor_kinds import unfit_for_copies, unfit_for_model


@dataclass(frozen=True)
class Entry:
    """One tensor of a model.

    Attributes:
        name: Name in the state dict of the plain module.
        shape: Shape.
        dtype: Name of the PyTorch dtype, such as "float32".
        section: "parameter", "buffer" (floating) or "integer".
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    section: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Names, shapes and dtypes of a model's tensors, in the order of their flat vectors.

    Attributes:
        entries: The tensors: parameters, then floating buffers, then integer buffers.
        shared: Length of the vector that travels with the model; 0 means none.
        aliases: Further names of tensors that have several in the module, such as tied weights; each with
            the first.
    """

    entries: tuple[Entry, ...]
    shared: int = 0
    aliases: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, module: nn.Module, personal: Sequence[str] = ()) -> "Layout":
        """Read the layout of a module's trained parameters and persistent buffers.

        Args:
            module: The module.
            personal: Patterns such as "head.*" of tensors that stay at the clients.

        Raises:
            UsageError: A tensor is of a kind that a model cannot hold, or that cannot be copied.
        """
        tensors = ModuleTensors.of(module)

        def stays(name: str) -> bool:
            return matches(name, personal) or matches(tensors.wrapped.get(name, name), personal)

        buffers = {n: b for n, b in tensors.buffers.items() if n in tensors.persistent and not stays(n)}
        trained = {
            n: p for n, p in tensors.parameters.items() if (is_lazy(p) or p.requires_grad) and not stays(n)
        }
        for name, tensor in tensors.named.items():
            inside = name in trained or name in buffers
            _check(name, tensor, inside=inside)
        entries = [_entry(n, p, "parameter") for n, p in trained.items()]
        entries += [_entry(n, b, "buffer") for n, b in buffers.items() if b.is_floating_point()]
        entries += [_entry(n, b, "integer") for n, b in buffers.items() if not b.is_floating_point()]
        return cls(tuple(entries), aliases=tensors.aliases)

    @classmethod
    def flat(cls, size: int) -> "Layout":
        """A layout of one parameter vector of `size` elements, for models without a module."""
        return cls((Entry("w", (size,), "float32", "parameter"),))

    def section(self, *sections: str) -> list[Entry]:
        """The entries of these sections, in order."""
        return [e for e in self.entries if e.section in sections]

    @cached_property
    def parameters(self) -> int:
        """Number of parameters d: `values[:d]` are the parameters, `values[d:]` the buffers."""
        return sum(e.size for e in self.section("parameter"))

    @cached_property
    def values(self) -> int:
        """Length of the float32 vector: parameters and floating buffers."""
        return sum(e.size for e in self.section("parameter", "buffer"))

    @cached_property
    def integers(self) -> int:
        """Length of the int64 vector."""
        return sum(e.size for e in self.section("integer"))

    @property
    def nbytes(self) -> int:
        """Bytes of a model of this layout in memory and, uncompressed, on the wire."""
        return self.bytes_as(4)

    def bytes_as(self, width: int) -> int:
        """Bytes of a model whose values have so many bytes each."""
        return width * self.values + 4 * self.shared + 8 * self.integers

    def with_aliases(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors by name, each under its further names too, with memory of its own."""
        further = {name: tensors[first].clone() for name, first in self.aliases if first in tensors}
        return {**tensors, **further}

    def views(self, values: Tensor, integers: Tensor) -> Iterator[tuple[Entry, Tensor]]:
        """Iterate over the entries with their parts of the flat vectors, shaped, without a copy."""
        at = {"values": 0, "integers": 0}
        for entry in self.entries:
            kind, flat = ("integers", integers) if entry.section == "integer" else ("values", values)
            start = at[kind]
            at[kind] = start + entry.size
            yield entry, flat[start : start + entry.size].view(entry.shape)


def frozen_digest(module: nn.Module) -> str:
    """SHA-256 of a module's parameters that are frozen, which every party must have alike; "" for none.

    Args:
        module: The module.

    Raises:
        UsageError: A tensor cannot be copied.
    """
    tensors = ModuleTensors.of(module)
    frozen = {name: p for name, p in tensors.parameters.items() if not p.requires_grad}
    digest = sha256()
    for name, parameter in frozen.items():
        _check(name, parameter, inside=False)
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        try:
            digest.update(parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        except (RuntimeError, TypeError, NotImplementedError) as error:
            raise UsageError(
                f"model tensor {name} is frozen, and a {type(parameter).__name__} whose bytes cannot be read "
                f"({str(error).splitlines()[0]}): use a plain tensor"
            ) from None
    return digest.hexdigest() if frozen else ""


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a tensor's name matches one of the patterns, in which * stands for any characters."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _entry(name: str, tensor: Tensor, section: str) -> Entry:
    return Entry(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), section)


def _check(name: str, tensor: Tensor, *, inside: bool) -> None:
    """Raises `UsageError` for a tensor of a kind that a model cannot hold (`inside`), or that has no copy."""
    found = unfit_for_model(tensor) if inside else unfit_for_copies(tensor)
    if found is not None:
        raise UsageError(f"model tensor {name} {found}")
