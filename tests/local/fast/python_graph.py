"""A CUDA graph in Python, on the CPU: operations are noted once, and done again with the tensors of then.

As with a real graph, the first pass changes no tensor that was there before, draws no random numbers, and may
not read values.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_WRITES = {"native_batch_norm"}
"""Operations that write to their arguments without saying so."""
_READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal"}


class _Noting(TorchDispatchMode):
    """Notes each operation with its arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in _READS:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nand more")
        if func._schema.is_mutable or name in _WRITES:
            for tensor in _tensors((args, kwargs)):
                self.before.setdefault(id(tensor), (tensor, tensor.clone()))
        out = func(*args, **kwargs)
        self.done.append((func, args, kwargs, _tensors(out)))
        return out


class PythonGraphs:
    """Captures as `capture_on` does. `launched` counts the launches."""

    def __init__(self) -> None:
        self.captured = self.launched = 0

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Note what the work does."""
        noting, random = _Noting(), torch.get_rng_state()
        with noting:
            work()
        for tensor, was in noting.before.values():
            tensor.data.copy_(was)
        torch.set_rng_state(random)
        self.captured += 1

        def launch() -> None:
            self.launched += 1
            with torch.no_grad():
                for func, args, kwargs, results in noting.done:
                    for result, again in zip(results, _tensors(func(*args, **kwargs)), strict=True):
                        if result.data_ptr() != again.data_ptr():
                            result.data.copy_(again)

        return launch


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
