"""A device that is none: its tensors compute on the CPU, and each wait for them is counted.

PyTorch lets a backend be written in Python, under the device type "privateuseone", named "pretended" here. A
tensor of it wraps a CPU tensor. So a whole run can be made "on the device" with its real values, and be
compared with the run on the CPU bit for bit. As on a GPU, operands of both devices do not mix.

What is noted is what a CUDA GPU makes the program wait for: a value that is read (`item`, `bool`), a copy to
the CPU, a blocking copy to the device, and operations the size of whose result follows from values
(`nonzero`, an index by a mask).
"""

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from weakref import finalize

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

DEVICE = "pretended"
_HERE = torch.device("cpu")
_WAITING = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "equal",
    "_unique2",
    "unique_dim",
    "is_nonzero",
}
_COPIES = {"copy_", "_foreach_copy_", "_to_copy", "_copy_from"}
_HARMLESS = {"_has_compatible_shallow_copy_type"}


class MixedDevicesError(RuntimeError):
    """An operation on tensors of two devices, which a GPU refuses."""


class _Module(_DummyBackendModule):
    """What PyTorch asks of a device's module; random numbers are the CPU's."""

    def manual_seed(self, seed: int) -> None:
        """The CPU's generator, which draws for the device, is seeded by the caller."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Types of autocast."""
        return [torch.bfloat16]


def register() -> None:
    """Register the backend with PyTorch, once for a process."""
    if not hasattr(torch, DEVICE):
        _setup_privateuseone_for_python_backend(DEVICE, backend_module=_Module())


@dataclass
class Noted:
    """What has happened on the device.

    Attributes:
        waits: The waits, each as "operation at file:line" of the code outside of PyTorch.
        uploaded, downloaded: Bytes copied to the device and back.
        live, peak: Bytes of tensors on the device now, and at most.
        operations: Number of operations by name.
    """

    waits: list[str] = field(default_factory=list)
    uploaded: int = 0
    downloaded: int = 0
    live: int = 0
    peak: int = 0
    operations: Counter[str] = field(default_factory=Counter)


class _Memory:
    """The bytes of the storages that tensors on the device use."""

    def __init__(self) -> None:
        self._uses: Counter[int] = Counter()
        self.watching: Noted | None = None
        self.mode: PretendedDevice | None = None

    def hold(self, tensor: "Pretended", raw: Tensor) -> None:
        """Count a tensor's storage until the tensor is gone."""
        storage = raw.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        self._uses[key] += 1
        if self._uses[key] == 1 and self.watching is not None:
            self.watching.live += size
            self.watching.peak = max(self.watching.peak, self.watching.live)
        # The finalizer keeps the storage, whose address is no other's until then.
        finalize(tensor, self._release, storage, size).atexit = False

    def _release(self, storage: torch.UntypedStorage, size: int) -> None:
        key = storage._cdata
        self._uses[key] -= 1
        if not self._uses[key]:
            del self._uses[key]
            if self.watching is not None:
                self.watching.live -= size


_MEMORY = _Memory()


class Pretended(Tensor):
    """A tensor on the pretended device; `raw` is its CPU tensor."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> "Pretended":
        """Wrap a CPU tensor."""
        made: Pretended = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, raw.size(), strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype,
            layout=raw.layout, device=torch.device(DEVICE, 0), requires_grad=False,
        )  # fmt: skip
        made.raw = raw
        _MEMORY.hold(made, raw)
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute on the CPU."""
        return _compute(func, args, kwargs or {})

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        """The CPU tensor; to show it is no wait."""
        return f"Pretended({self.raw!r})"


class PretendedDevice(TorchDispatchMode):
    """Within it, tensors can be made on `DEVICE`; `noted` says what has happened there."""

    def __init__(self) -> None:
        super().__init__()
        register()
        self.noted = Noted()
        self._depth, self._lifted = 0, False

    def __enter__(self) -> Self:
        """Begin to note."""
        if _MEMORY.mode is None:
            self._lifted = torch._C._only_lift_cpu_tensors()
            torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor makes it here, and copies it
            _MEMORY.watching, _MEMORY.mode = self.noted, self
        self._depth += 1
        super().__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End."""
        super().__exit__(kind, error, trace)
        self._depth -= 1
        if not self._depth:
            _MEMORY.watching = _MEMORY.mode = None
            torch._C._set_only_lift_cpu_tensors(self._lifted)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute on the CPU, wherever the result shall be."""
        return _compute(func, args, kwargs or {})

    @contextmanager
    def phase(self) -> Iterator[Noted]:
        """What happens within the block, by itself; its peak is above what was there before."""
        gc.collect()  # what is freed within the block is what was made there
        gc.freeze()  # the next block's collection need not search what is there now
        before, self.noted = self.noted, Noted()
        _MEMORY.watching = self.noted
        try:
            yield self.noted
        finally:
            before.waits += self.noted.waits
            before.uploaded += self.noted.uploaded
            before.downloaded += self.noted.downloaded
            before.peak = max(before.peak, before.live + self.noted.peak)
            before.live += self.noted.live
            before.operations += self.noted.operations
            self.noted = _MEMORY.watching = before


def _compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Do an operation on the CPU, and wrap what comes of it where it is the device's."""
    flat, spec = tree_flatten((args, kwargs))
    tensors = [t for t in flat if isinstance(t, Tensor)]
    there = [t for t in tensors if isinstance(t, Pretended)]
    name = func.overloadpacket.__name__
    target = kwargs.get("device")
    on_device = bool(there) if target is None else torch.device(target).type == DEVICE
    if torch.is_inference_mode_enabled() and (mode := _MEMORY.mode) is not None:
        with mode:  # operations made of others, such as `to`, come undivided in this mode
            made = func.decompose(*args, **kwargs)
        if made is not NotImplemented:
            return made
    if not there and not on_device:
        return func(*args, **kwargs)
    noted = _MEMORY.watching
    _note(noted, name, args, kwargs, on_device=on_device, there=there, tensors=tensors)
    wrapped = {id(t.raw): t for t in there}
    raw_args, raw_kwargs = tree_unflatten([t.raw if isinstance(t, Pretended) else t for t in flat], spec)
    if target is not None:
        raw_kwargs["device"] = _HERE
    crossed = name == "_to_copy" and bool(there) != on_device
    out = func(*raw_args, **raw_kwargs)
    if name == "_local_scalar_dense" or not on_device:
        return out
    flat_out, out_spec = tree_flatten(out)
    made = []
    for part in flat_out:
        if isinstance(part, Tensor):
            own = wrapped.get(id(part))
            if own is None or crossed:
                own = Pretended(part)
            made.append(own)
        else:
            made.append(part)
    return tree_unflatten(made, out_spec)


def _note(
    noted: Noted | None,
    name: str,
    args: Any,
    kwargs: dict[str, Any],
    *,
    on_device: bool,
    there: list[Pretended],
    tensors: list[Tensor],
) -> None:
    """Note what an operation copies and waits for. Raises `MixedDevicesError` where devices mix."""
    here = [t for t in tensors if not isinstance(t, Pretended)]
    waits = name in _WAITING
    uploaded = downloaded = 0
    if name in _COPIES:
        blocking = not (kwargs.get("non_blocking") or (len(args) > 2 and args[2] is True))
        if name == "_to_copy":
            source = tensors[0]
            if isinstance(source, Pretended) and not on_device:
                downloaded, waits = source.nbytes, True
            elif on_device and not isinstance(source, Pretended):
                uploaded, waits = source.nbytes, blocking
        else:
            targets, sources = (
                (args[0], args[1]) if isinstance(args[0], list | tuple) else ([args[0]], [args[1]])
            )
            for to, source in zip(targets, sources, strict=True):
                if isinstance(source, Pretended) and not isinstance(to, Pretended):
                    downloaded, waits = downloaded + source.nbytes, True
                elif isinstance(to, Pretended) and not isinstance(source, Pretended):
                    uploaded, waits = uploaded + source.nbytes, waits or (blocking and source.dim() > 0)
    elif name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        indices = [t for t in args[1] if isinstance(t, Tensor)]
        waits |= any(t.dtype in (torch.bool, torch.uint8) for t in indices)
        moved = [t for t in indices if not isinstance(t, Pretended)]
        uploaded, waits = sum(t.nbytes for t in moved), waits or bool(moved)
    elif there and any(t.dim() for t in here) and name not in _HARMLESS:
        kinds = ", ".join(
            f"{'device' if isinstance(t, Pretended) else 'CPU'} {list(t.shape)}" for t in tensors
        )
        raise MixedDevicesError(f"{name} of tensors on two devices: {kinds}")
    if noted is None:
        return
    noted.operations[name] += 1
    noted.uploaded += uploaded
    noted.downloaded += downloaded
    if waits:
        noted.waits.append(f"{name} at {_place()}")


def _place() -> str:
    """File and line of the innermost code that is neither PyTorch's nor this file's."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if "/torch/" not in name and name != __file__:
            break
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
