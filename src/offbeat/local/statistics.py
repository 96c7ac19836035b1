"""Estimation of running statistics: the means and variances that BatchNorm layers use in evaluation mode.

Batches go through the module in training mode, and a layer's statistics are the plain averages of theirs, as
with `momentum=None`. A layer that the module itself keeps out of training mode is frozen: it keeps its own.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from offbeat.core.errors import UsageError
from offbeat.core.model import Model
from offbeat.core.objective import flat
from offbeat.local.criterion import call
from offbeat.local.flat_module import FlatModule

SAMPLES = 2048
# The larger a batch, the nearer a later layer's inputs are to those in evaluation mode.
BATCH = 256


def estimate(bench: FlatModule, model: Model, batches: Iterable[Any]) -> Model:
    """Estimate a model's running statistics over batches.

    The layers' counters are then the number of batches; other buffers are the model's.

    Args:
        bench: The module.
        model: The model.
        batches: The module's inputs, batches of about one size.

    Returns:
        The model with these statistics.

    Raises:
        UsageError: The module has running statistics of another kind.
    """
    bench.load(model)
    bench.module.train()
    with torch.no_grad(), _averaging(bench.module):
        for batch in batches:
            call(bench.module, bench.laid_out(batch))
    bench.reclaim()
    values, integers = model.values.clone(), model.integers
    values[model.layout.parameters :] = flat(bench.buffers)
    if bench.integers:
        integers = flat([tensor.to(torch.int64) for tensor in bench.integers]).to(values.device)
    return Model(model.layout, values, integers, model.shared)


def pieces(rows: Tensor) -> Sequence[Tensor]:
    """Split rows into the fewest batches of at most `BATCH`; no two differ by more than one row."""
    return rows.tensor_split(-(-len(rows) // BATCH))


@contextmanager
def _averaging(module: nn.Module) -> Iterator[None]:
    """Context in which each BatchNorm layer in training mode computes the plain average over its batches."""
    momenta: dict[_BatchNorm, float | None] = {}
    for name, layer in module.named_modules():
        if isinstance(layer, _InstanceNorm) and layer.track_running_stats:
            raise UsageError(
                f"the running statistics of {name} ({type(layer).__name__}) cannot be estimated, only "
                "BatchNorm's: make it with track_running_stats=False, or choose buffers follow or mean"
            )
        if isinstance(layer, _BatchNorm) and layer.track_running_stats and layer.training:
            momenta[layer] = layer.momentum
    for layer in momenta:
        layer.reset_running_stats()
        layer.momentum = None
    try:
        yield
    finally:
        for layer, momentum in momenta.items():
            layer.momentum = momentum
