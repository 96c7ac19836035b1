"""Representations of samples: the input of a module's last linear layer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from offbeat.core.errors import UsageError
from offbeat.local.flat_module import FlatModule

Represent = Callable[[Sequence[Tensor] | None], Tensor]


@contextmanager
def representing(bench: FlatModule, wanted: bool) -> Iterator[Represent]:
    """Context with a function for the representation of the module's last batch.

    Called with None, the function returns the module's own, with gradients. Called with float tensors in the
    order of `bench`, it returns that of a frozen model with these tensors, in evaluation mode.

    Args:
        bench: The module.
        wanted: Whether the objective requires representations.

    Raises:
        UsageError: The module has no linear layer.
    """
    if not wanted:
        yield _unavailable
        return
    layers = [m for m in bench.module.modules() if isinstance(m, nn.Linear)]
    if not layers:
        raise UsageError(
            f"{type(bench.module).__name__} has no linear layer: this objective compares the inputs "
            "of the last one"
        )
    seen: list[Tensor] = []
    batch: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def before_last(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen[:] = [inputs[0].flatten(1)]

    def before_all(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        batch[:] = [(inputs, named)]

    def represent(values: Sequence[Tensor] | None) -> Tensor:
        representation = seen[0]
        if values is None:
            return representation
        frozen = {
            name: v.detach().to(dtype)
            for name, dtype, v in zip(bench.float_names, bench.float_dtypes, values, strict=True)
        }
        bench.module.eval()
        try:
            with torch.no_grad():
                functional_call(bench.module, frozen, *batch[0])
            return seen[0]
        finally:
            bench.module.train()
            seen[:] = [representation]

    with (
        layers[-1].register_forward_pre_hook(before_last),
        bench.module.register_forward_pre_hook(before_all, with_kwargs=True),
    ):
        yield represent


def _unavailable(_: Sequence[Tensor] | None) -> Tensor:
    raise RuntimeError("an objective that uses representations must have Feature.REPRESENTATIONS in requires")
