"""The weights of a user's training loop: in its module, or behind functions that give and take arrays."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from offbeat.core.errors import UsageError
from offbeat.core.layout import Entry, Layout
from offbeat.core.model import Arrays, Model, Tensors, to_arrays
from offbeat.core.module_tensors import ModuleTensors
from offbeat.local.flat_module import FlatModule

Named = Mapping[str, Any] | Sequence[Any]
"""A model's tensors or arrays by name, or in the order of its layout."""


class LoopModel:
    """The weights of a loop, as a module whose tensors are those of a layout.

    Args:
        layout: The layout of the run's models.
        module: The loop's module. None means that its weights are elsewhere.
        read: Gives the loop's present weights, where there is no module.
        write: Takes arrays by name into the loop's model, where there is no module.

    Raises:
        UsageError: The module's tensors are not those of the layout.
    """

    def __init__(
        self,
        layout: Layout,
        module: nn.Module | None = None,
        read: Callable[[], Named] | None = None,
        write: Callable[[Arrays], object] | None = None,
    ) -> None:
        self.is_module, self.reachable = module is not None, module is not None or read is not None
        self._layout, self._read, self._write = layout, read, write
        if module is None:
            self.bench = FlatModule(_TensorModule(layout), "cpu", False)
            return
        names = {entry.name for entry in layout.entries}
        tensors = ModuleTensors.of(module).named
        device = str(next(iter(tensors.values())).device) if tensors else "cpu"
        self.bench = FlatModule(module, device, False, [name for name in tensors if name not in names])
        _check_layout(type(module).__name__, self.bench.layout.entries, layout.entries)

    def entries(self) -> Iterator[tuple[Entry, Tensor]]:
        """The entries of the layout with their tensors."""
        bench = self.bench
        return zip(self._layout.entries, [*bench.parameters, *bench.buffers, *bench.integers], strict=True)

    def parameters(self) -> list[tuple[Entry, Tensor]]:
        """The entries of the parameters, with them."""
        return [(entry, tensor) for entry, tensor in self.entries() if entry.section == "parameter"]

    def copies(self) -> Tensors:
        """Copies on the CPU, by name."""
        return {entry.name: tensor.detach().to("cpu", copy=True) for entry, tensor in self.entries()}

    def set(self, named: Named) -> None:
        """Take these weights. Raises `UsageError` for some that are not the layout's."""
        found = named_tensors(named, self._layout.entries, "the model")
        with torch.no_grad():
            for entry, tensor in self.entries():
                tensor.copy_(found[entry.name])

    def pull(self) -> None:
        """Read the loop's present weights."""
        self.bench.reclaim()
        if self._read is not None:
            self.set(self._read())

    def push(self) -> None:
        """Write the weights to the loop's model."""
        if self._write is not None:
            self._write(to_arrays(self.copies()))


class _TensorModule(nn.Module):
    """The tensors of a layout."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        for number, entry in enumerate(layout.entries):
            tensor = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
            if entry.section == "parameter":
                self.register_parameter(str(number), nn.Parameter(tensor))
            else:
                self.register_buffer(str(number), tensor)


def named_tensors(named: Named, entries: Sequence[Entry], what: str) -> Tensors:
    """Tensors of the entries, by name.

    Args:
        named: Tensors or arrays by name, of which others are left out, or in the order of the entries.
        entries: Names and shapes.
        what: What they are, for errors.

    Raises:
        UsageError: One is missing, or has another shape.
    """
    if not isinstance(named, Mapping):
        if len(named) != len(entries):
            raise UsageError(f"{what} has {len(entries)} tensors, and the loop gives {len(named)}")
        named = dict(zip((entry.name for entry in entries), named, strict=True))
    tensors = {}
    for entry in entries:
        if entry.name not in named:
            raise UsageError(f"{what} has a tensor {entry.name} {entry.shape}, which the loop does not give")
        given = named[entry.name]
        tensor = given.detach() if isinstance(given, Tensor) else torch.from_numpy(np.array(given))
        if (shape := tuple(tensor.shape)) != entry.shape:
            raise UsageError(f"{what}: {entry.name} has shape {entry.shape}, and the loop gives {shape}")
        tensors[entry.name] = tensor
    return tensors


def _check_layout(module: str, entries: Sequence[Entry], expected: Sequence[Entry]) -> None:
    by_name = {entry.name: entry for entry in entries}
    for entry in expected:
        if (actual := by_name.get(entry.name)) != entry:
            text = (
                f"{actual.section} {actual.shape} of {actual.dtype}"
                if actual
                else "is none, or a frozen one,"
            )
            raise UsageError(
                f"{module} is not the run's model: {entry.name} is a {entry.section} {entry.shape} of "
                f"{entry.dtype} in the run, and {text} here"
            )
    if list(entries) != list(expected):
        raise UsageError(f"{module} is not the run's model: its tensors come in another order")


def model_of(tensors: Named) -> Model:
    """A model of a loop's own tensors or arrays: floating ones are parameters, the others integer buffers.

    Raises:
        UsageError: One of them holds no real numbers.
    """
    if not isinstance(tensors, Mapping):
        tensors = {f"array_{number}": tensor for number, tensor in enumerate(tensors)}
    floats: dict[str, npt.NDArray[Any]] = {}
    integers: dict[str, npt.NDArray[Any]] = {}
    for name, tensor in tensors.items():
        array: npt.NDArray[Any] = np.asarray(tensor)
        if array.dtype.kind not in "fiub":
            raise UsageError(f"initial: {name} has dtype {array.dtype}: give arrays of real numbers")
        if array.dtype.kind == "f":
            floats[name] = array.astype(np.float32)
        else:
            integers[name] = array.astype(np.int64)
    entries = [Entry(name, array.shape, "float32", "parameter") for name, array in floats.items()]
    entries += [Entry(name, array.shape, "int64", "integer") for name, array in integers.items()]
    model = Model.empty(Layout(tuple(entries)))
    for entry, view in model.layout.views(model.values, model.integers):
        view.copy_(torch.from_numpy({**floats, **integers}[entry.name]))
    return model
