"""A model as flat vectors: one of float32 values, one of integers, and a layout of names and shapes.

`values` holds every parameter that is trained and then every floating-point buffer (BatchNorm's running mean
and variance); `integers` holds the integer buffers (BatchNorm's batch counter). Aggregation is then
arithmetic on one vector, whatever the architecture. `core.layout` says which tensors these are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from offbeat.core.errors import UsageError
from offbeat.core.layout import Layout
from offbeat.core.module_tensors import ModuleTensors, PlainNames
from offbeat.core.number_types import NumberType
from offbeat.core.wire_types import rounded

Tensors = dict[str, Tensor]
"""Named tensors: the memory of a part, the state of a client. Saved and restored with a run."""

Arrays = dict[str, npt.NDArray[np.generic]]
"""Named arrays."""


def to_arrays(tensors: Tensors) -> Arrays:
    """Tensors on the CPU as arrays that share their memory; bfloat16, which NumPy has not, as float32."""
    return {n: (t.float() if t.dtype is torch.bfloat16 else t).numpy() for n, t in tensors.items()}


class Model(msgspec.Struct, frozen=True):
    """One immutable version of a model. Never write to its vectors.

    Attributes:
        layout: Names, shapes and dtypes of its tensors.
        values: Parameters and floating buffers, float32 [values]: on the CPU, or
            on the device where a simulation trains.
        integers: Integer buffers, int64 [integers].
        shared: Vector that travels with the model, float32 [shared].
        number: Type of number that its values are, and in which they travel.
    """

    layout: Layout
    values: Tensor
    integers: Tensor
    shared: Tensor = msgspec.field(default_factory=lambda: torch.zeros(0))
    number: NumberType = "float32"

    def __repr__(self) -> str:
        """The model in a line, without its tensors."""
        return f"<Model: tensors: {len(self.layout.entries)}, parameters: {self.layout.parameters:,}>"

    @classmethod
    def of(cls, module: nn.Module, personal: Sequence[str] = ()) -> "Model":
        """Copy a module's trained parameters and persistent buffers; arguments as of `Layout.of`.

        Raises:
            UsageError: As of `Layout.of`, or a tensor has no values.
        """
        layout, tensors = Layout.of(module, personal), ModuleTensors.of(module).named
        for name, tensor in tensors.items():
            if tensor.is_meta:
                raise UsageError(
                    f"model tensor {name} is on the device meta and has no values: make the module on the CPU"
                )
        return cls.of_tensors(layout, tensors)

    @classmethod
    def of_tensors(cls, layout: Layout, tensors: Mapping[str, Tensor]) -> "Model":
        """Copy tensors by name, among which are all of the layout."""
        model = cls.empty(layout)
        for entry, view in layout.views(model.values, model.integers):
            view.copy_(tensors[entry.name].detach())
        return model

    @classmethod
    def empty(cls, layout: Layout) -> "Model":
        """A model of zeros."""
        return cls(layout, torch.zeros(layout.values), torch.zeros(layout.integers, dtype=torch.int64))

    def sharing(self, vectors: int) -> "Model":
        """This model with a shared vector of `vectors` · d elements, all zero."""
        size = vectors * self.layout.parameters
        if size == self.layout.shared:
            return self
        return Model(
            replace(self.layout, shared=size), self.values, self.integers, self.values.new_zeros(size)
        )

    def to(self, device: str | torch.device) -> "Model":
        """This model with its vectors on a device; itself, where they are there."""
        if self.values.device == torch.device(device):
            return self
        values, integers, shared = (v.to(device) for v in (self.values, self.integers, self.shared))
        return Model(self.layout, values, integers, shared, self.number)

    def rounded(self, to: NumberType) -> "Model":
        """This model with values of another type of number; itself, where they have it.

        Raises:
            RunError: A finite value is too large for the type.
        """
        if to == self.number:
            return self
        return Model(self.layout, rounded(self.values, self.layout, to), self.integers, self.shared, to)

    def state_dict(self) -> dict[str, Tensor]:
        """The tensors by name, with their shapes and dtypes, as `nn.Module.load_state_dict` takes them.

        A tensor with several names, such as a tied weight, is there under each. Parameters that are frozen,
        and tensors that stay at the clients, are not: with such a module give `strict=False`.
        """
        return self.layout.with_aliases(self._tensors())

    def arrays(self) -> "Arrays":
        """The tensors by first names as NumPy arrays, copied; bfloat16, which NumPy has not, as float32."""
        return to_arrays(self.to("cpu")._tensors())

    def _tensors(self) -> Tensors:
        return {
            e.name: v.to(getattr(torch, e.dtype)).clone()
            for e, v in self.layout.views(self.values, self.integers)
        }

    def digest(self) -> str:
        """SHA-256 of the values and the integers, in hexadecimal digits."""
        digest = sha256()
        for vector in (self.values, self.integers):
            digest.update(vector.cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def load_into(self, module: nn.Module) -> nn.Module:
        """Write this model into a module, whose other tensors stay, and return it.

        Raises:
            UsageError: The module has no such tensor, or one of another shape; it names the first.
        """
        there = ModuleTensors.of(module).named
        for entry in self.layout.entries:
            found = there.get(entry.name)
            if found is None or tuple(found.shape) != entry.shape:
                told = "which it has not" if found is None else f"whose shape there is {tuple(found.shape)}"
                raise UsageError(f"the module is not this model's: {entry.name} {entry.shape}, {told}")
        own, plain = self._tensors(), PlainNames(module)
        module.load_state_dict(
            {name: own[plain(name)] for name in module.state_dict() if plain(name) in own}, strict=False
        )
        return module
