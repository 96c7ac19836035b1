"""Gradients of batches by CUDA graphs: a step's kernels are captured once, and then launched as one.

A small model keeps a GPU waiting, because its program launches a hundred kernels or more in each step. A
graph launches them together. It computes with the tensors that it was captured with: each input is copied
into the captured one, and its gradients are in the same tensors each time. What Python did between the
launches is not repeated.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from offbeat.core.errors import UsageError
from offbeat.local.flat_module import FlatModule

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""capture(work): a function that does what `work` launches. `work` is called once, and launches nothing."""

FORMS = 16
"""Forms of inputs that are captured at most: each keeps its gradients on the GPU."""


def capture_on(device: str) -> Capture | None:
    """What captures on a device; None where there are no CUDA graphs."""
    if torch.device(device).type != "cuda":
        return None
    with torch.cuda.device(device):
        # Graphs that are launched one after the other can share the memory of what none of them gives back.
        pool = torch.cuda.graph_pool_handle()

    def capture(work: Callable[[], None]) -> Callable[[], None]:
        graph, own = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
        torch.cuda.synchronize(device)
        gc.collect()
        torch.cuda.empty_cache()
        with torch.cuda.device(device):
            try:
                # Unlike `torch.cuda.graph`, this leaves its stream when the capture fails too.
                with torch.cuda.stream(_new_stream(device)):
                    # Another thread may use the GPU meanwhile.
                    graph.capture_begin(pool, capture_error_mode="thread_local")
                    try:
                        work()
                    finally:
                        graph.capture_end()
            except BaseException:
                # After a failure the generator waits for the end of the capture forever.
                generator = torch.cuda.default_generators[torch.cuda.current_device()]
                generator.graphsafe_set_state(generator.clone_state())
                raise
        own.synchronize()
        return graph.replay

    return capture


def _new_stream(device: str) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _Captured:
    """The tensors of a captured input, of its loss, and of the gradients of the module's parameters."""

    inputs: list[Tensor]
    loss: Tensor
    gradients: tuple[Tensor | None, ...]
    launch: Callable[[], None]


class CapturedGradients:
    """The gradients of a module's losses, captured for each form of input when it comes for the second time.

    The first time makes what PyTorch makes at first use, such as the plans of convolutions. It also checks
    that the computation can be captured, because a capture that fails leaves CUDA in disorder.
    """

    def __init__(self, bench: FlatModule, capture: Capture) -> None:
        self._bench, self._capture = bench, capture
        self._captured: dict[Any, _Captured | None] = {}

    def of(self, inputs: Any, loss: Callable[[Any], Tensor]) -> Tensor:
        """Leave the gradients of a loss at the parameters.

        Args:
            inputs: Tensors on the module's device, in any nesting.
            loss: The loss, a function of the inputs and the module. That of one form of inputs is the same
                function each time.

        Returns:
            The loss, valid until the next one.

        Raises:
            UsageError: The computation cannot be captured.
        """
        leaves, structure = tree_flatten(inputs)
        form = structure, *((leaf.shape, leaf.stride(), leaf.dtype) for leaf in leaves)
        if form not in self._captured:
            first = len(self._captured) < FORMS
            if first:
                self._captured[form] = None
            value, gradients = self._checked(inputs, loss) if first else self._computed(inputs, loss)
            self._leave(gradients)
            return value
        captured = self._captured[form]
        if captured is None:
            captured = self._captured[form] = self._make(leaves, structure, loss)
        for own, leaf in zip(captured.inputs, leaves, strict=True):
            own.copy_(leaf)
        captured.launch()
        self._leave(captured.gradients)
        return captured.loss

    def takes(self, inputs: Any) -> bool:
        """Whether inputs are tensors on the module's device, and nothing else."""
        there = torch.device(self._bench.device).type
        return all(isinstance(leaf, Tensor) and leaf.device.type == there for leaf in tree_leaves(inputs))

    def _checked(self, inputs: Any, loss: Callable[[Any], Tensor]) -> "_Computed":
        """Compute as ever, and check that it can be captured."""
        try:
            with _RefusedReads():  # type: ignore[no-untyped-call]
                value, gradients = self._computed(inputs, loss)
        except Exception as error:
            if isinstance(found := _first(error), _ReadError):
                raise self._refused(str(found)) from error
            raise
        if any(gradient is not None and gradient.layout is not torch.strided for gradient in gradients):
            raise self._refused("a layer has sparse gradients")
        if (name := self._bench.replaced()) is not None:
            raise self._refused(f"it gives its tensor {name} a new one instead of new values")
        return value, gradients

    def _make(self, leaves: list[Tensor], structure: Any, loss: Callable[[Any], Tensor]) -> _Captured:
        """Capture the computation with inputs of this form."""
        own = [leaf.clone() for leaf in leaves]
        inputs = tree_unflatten(own, structure)
        found: list[_Computed] = []
        try:
            launch = self._capture(lambda: found.append(self._computed(inputs, loss)))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise self._refused(str(_first(error)).partition("\n")[0]) from error
        ((value, gradients),) = found
        return _Captured(own, value, gradients, launch)

    def _computed(self, inputs: Any, loss: Callable[[Any], Tensor]) -> "_Computed":
        value = loss(inputs)
        # Unlike `backward`, this does nothing on the stream of an earlier step.
        return value.detach(), torch.autograd.grad(value, self._bench.trainable, allow_unused=True)

    def _leave(self, gradients: tuple[Tensor | None, ...]) -> None:
        for parameter, gradient in zip(self._bench.trainable, gradients, strict=True):
            parameter.grad = gradient

    def _refused(self, why: str) -> UsageError:
        name = type(self._bench.module).__name__
        return UsageError(
            f"training.cuda_graph = true cannot capture a step of {name}: {why}. "
            "A step that is captured reads no values of tensors (item, bool, a mask as an index), copies "
            "nothing between GPU and CPU, and writes to tensors in place. Leave cuda_graph out to launch "
            "each step anew"
        )


_Computed = tuple[Tensor, tuple[Tensor | None, ...]]
"""A loss, and the gradients of the module's parameters; None for a parameter that it does not depend on."""


class _ReadError(RuntimeError):
    """A step reads values of tensors."""


class _RefusedReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises `_ReadError` for what makes a program wait for a GPU."""

    _READS = frozenset(
        {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "is_nonzero"}
    )
    _INDEXED = frozenset({"index", "index_put", "index_put_", "_index_put_impl_"})

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the operation, unless it reads or copies values of a GPU."""
        name, given = func.overloadpacket.__name__, args if kwargs is None else (args, kwargs)
        masks = name in self._INDEXED and any(t.dtype in (torch.bool, torch.uint8) for t in _tensors(args[1]))
        if name in self._READS or masks:
            raise _ReadError(f"it reads values (aten::{name})")
        out = func(*args, **(kwargs or {}))
        if len({t.device for t in _tensors((given, out)) if t.ndim}) > 1:
            raise _ReadError(f"it copies between {' and '.join(_devices((given, out)))} (aten::{name})")
        return out


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _devices(tree: Any) -> list[str]:
    return sorted({str(tensor.device) for tensor in _tensors(tree)})


def _first(error: BaseException) -> BaseException:
    """The error that came first: what handles it may raise others."""
    while error.__context__ is not None:
        error = error.__context__
    return error
