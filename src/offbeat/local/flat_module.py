"""A module whose tensors are read from and written to flat vectors, task after task."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from offbeat.core.errors import UsageError
from offbeat.core.layout import Entry, Layout, matches
from offbeat.core.learner import PERSONAL
from offbeat.core.model import Model, Tensors
from offbeat.core.module_tensors import ModuleTensors
from offbeat.core.tensor_kinds import EXPANDED, overlaps
from offbeat.data.dataset import Batch
from offbeat.vectors.memory_pool import POOL


def _cutter(entries: Sequence[Entry]) -> Callable[[Tensor], list[Tensor]]:
    """A function that cuts a flat vector into its tensors, without a copy."""
    sizes, shapes = [entry.size for entry in entries], [entry.shape for entry in entries]

    def views(flat: Tensor) -> list[Tensor]:
        parts = flat.split_with_sizes(sizes)
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    return views


class FlatModule:
    """One module on its device, with its tensors in the order of the flat vectors.

    Args:
        module: The module, which is moved to the device.
        device: Name of a PyTorch device.
        channels_last: Whether convolutions use this memory layout. None means where the module has any and
            the device is a CPU or a CUDA GPU.
        personal: Patterns of tensors that stay at the clients.

    Attributes:
        device: Name of the device.
        trained: The parameters that are trained, by name.
        floats: Shapes a model's flat values as the parameters and floating buffers, without a copy.
    """

    def __init__(
        self, module: nn.Module, device: str, channels_last: bool | None, personal: Sequence[str] = ()
    ) -> None:
        convolutional = any(isinstance(m, nn.Conv2d) for m in module.modules())
        supported = torch.device(device).type in ("cpu", "cuda")
        self.channels_last = (convolutional and supported) if channels_last is None else channels_last
        self.module = module.to(device)
        if self.channels_last:
            self.module = self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.layout = Layout.of(self.module, personal)
        module_tensors = ModuleTensors.of(self.module)
        tensors, self._wrapped = module_tensors.named, module_tensors.wrapped
        floats = self.layout.section("parameter", "buffer")
        self.parameters = [tensors[e.name] for e in self.layout.section("parameter")]
        personal_tensors = {
            name: tensor
            for name, tensor in tensors.items()
            if matches(name, personal) or matches(self._wrapped.get(name, name), personal)
        }
        self.personal = {name: tensor.detach() for name, tensor in personal_tensors.items()}
        self.trainable = self.parameters + [
            tensor for tensor in personal_tensors.values() if tensor.requires_grad
        ]
        names = {id(tensor): name for name, tensor in tensors.items()}
        self.trained = {names[id(parameter)]: parameter for parameter in self.trainable}
        self.buffers = [tensors[e.name] for e in self.layout.section("buffer")]
        self.float_names = [e.name for e in floats]
        self.float_dtypes = [tensors[name].dtype for name in self.float_names]
        self._floats = [tensors[name].detach() for name in self.float_names]
        self.integers = [tensors[e.name] for e in self.layout.section("integer")]
        self.device = device
        self.floats = _cutter(floats)
        self._cut_integers = _cutter(self.layout.section("integer"))
        # `delta` reuses this vector.
        self._flat = torch.empty(self.layout.values, dtype=torch.float32, device=device)
        self._flat_views = self.floats(self._flat)
        self.module.train()
        scratch = [
            b
            for n, b in module_tensors.buffers.items()
            if n not in module_tensors.persistent and n not in personal_tensors
        ]
        # PyTorch 2.6 may refuse to copy a nested tensor's clone back to it: the shapes count as different.
        plain = [tensor.values() if tensor.is_nested else tensor for tensor in scratch]
        self._scratch = [(tensor, tensor.clone()) for tensor in (*plain, *self.personal.values())]
        kept = {id(tensors[e.name]): e for e in self.layout.entries}
        self._places = [
            (part, name, tensor, kept.get(id(tensor)))
            for part in self.module.modules()
            for name, tensor in (*part._parameters.items(), *part._buffers.items())
            if tensor is not None
        ]
        for entry in self.layout.entries:
            if overlaps(tensors[entry.name]):
                raise UsageError(f"model tensor {entry.name} {EXPANDED}")

    def load(self, model: Model) -> list[Tensor]:
        """Write a model into the module, whose other tensors become the initial ones; returns w_o, shaped."""
        self.reclaim()
        values = model.values.to(self.device)
        views = self.floats(values)
        with torch.no_grad():
            torch._foreach_copy_(self._floats, views)
            # No buffer outside the model may carry anything from one task to the next.
            for buffer, made in self._scratch:
                buffer.copy_(made)
            if self.integers:
                found = self._cut_integers(model.integers.to(self.device, non_blocking=True))
                for tensor, view in zip(self.integers, found, strict=True):
                    tensor.copy_(view)
        return views[: len(self.parameters)]

    def restore_personal(self, state: Tensors) -> None:
        """Write a client's own tensors, as far as its state has them, in place of the initial ones."""
        for name, tensor in self.personal.items():
            if (own := state.get(PERSONAL + name)) is not None:
                tensor.copy_(own)

    def replaced(self) -> str | None:
        """The name of a tensor that the module has replaced by a new one; None where it has replaced none."""
        return next((name for part, name, t, _ in self._places if getattr(part, name, None) is not t), None)

    def reclaim(self) -> None:
        """Put the tensors back that the module has replaced by new ones, with the values of the new ones.

        A module that writes `self.mean = 0.9 * self.mean + …` in training makes a new tensor; the model's is
        the one before.

        Raises:
            UsageError: A tensor of the model has another shape now, or is gone.
        """
        for part, name, tensor, entry in self._places:
            now = getattr(part, name, None)
            if now is tensor and (entry is None or tensor.shape == entry.shape):
                continue
            same = now if isinstance(now, Tensor) and now.shape == tensor.shape else None
            if entry is not None and (same is None or tensor.shape != entry.shape):
                told = f"shape {list(now.shape)}" if isinstance(now, Tensor) else "no value"
                raise UsageError(
                    f"{type(self.module).__name__} gives its tensor {entry.name} {list(entry.shape)} {told} "
                    "in training, and the tensors of a model keep their shapes: make it with its last shape, "
                    "or not persistent"
                )
            if same is not None:
                with torch.no_grad():
                    tensor.copy_(same)
            setattr(part, name, tensor)

    def tensors(self) -> list[Tensor]:
        """All tensors that training writes to: parameters, and buffers of any kind."""
        return [*self._floats, *self.integers, *(buffer for buffer, _ in self._scratch)]

    def delta(self, base: Model) -> tuple[Tensor, Tensor]:
        """The module's float tensors minus the base's, flat, and its integer buffers; where the base is."""
        with torch.no_grad():
            torch._foreach_copy_(self._flat_views, self._floats)
            integers, there = base.integers, base.values.device
            if self.integers:
                integers = torch.cat([t.reshape(-1).to(torch.int64) for t in self.integers]).to(there)
            return torch.sub(self._flat.to(there), base.values, out=POOL.like(base.values)), integers

    def to_cpu(self, state: Tensors) -> Tensors:
        """Move a client's new state to the CPU; copies the module's tensors, which are written to again."""
        if not state:
            return {}
        if self.device != "cpu":
            return {name: tensor.detach().to("cpu") for name, tensor in state.items()}
        own = {tensor.untyped_storage().data_ptr() for tensor in self.tensors()}
        return {
            name: tensor.detach().to("cpu", copy=tensor.untyped_storage().data_ptr() in own)
            for name, tensor in state.items()
        }

    def train(self) -> None:
        """Set the module to training mode, unless it is: a call on every submodule takes a while."""
        if not self.module.training:
            self.module.train()

    def laid_out(self, batch: Batch) -> Batch:
        """Convert the images of a batch, x or (x, y), to the memory layout in which the module is fastest.

        A batch that has this layout already, as one of a dataset in it has, is not copied.
        """
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        match batch:
            case Tensor(ndim=4):
                return batch.contiguous(memory_format=layout)
            case (Tensor(ndim=4) as x, y):
                return x.contiguous(memory_format=layout), y
            case _:
                return batch
