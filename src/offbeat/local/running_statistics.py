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
from offbeat.core.streams import Purpose, stream
from offbeat.data.dataset import to_device
from offbeat.data.federated import FederatedData
from offbeat.local.criterion import call, split
from offbeat.local.errors import reading
from offbeat.local.flat_module import FlatModule
from offbeat.local.seeding import generators_kept, seed_generators

SAMPLES = 2048
# The larger a batch, the nearer a later layer's inputs are to those in evaluation mode.
BATCH = 256


def estimate_from(data: FederatedData, bench: FlatModule, model: Model, seed: int, device: str) -> Model:
    """Estimate a model's running statistics from random samples, as `TorchLearner.estimated` says.

    Args:
        data: The samples.
        bench: The module, on the device.
        model: A global model.
        seed: The run's seed, which determines the samples.
        device: PyTorch device.

    Raises:
        UsageError: There are fewer than two samples.
    """
    own, test = data.rows.indices, data.test
    samples = data.train if len(own) or test is None else test
    available = own if len(own) else torch.arange(len(samples))
    if len(available) < 2:
        raise UsageError(
            f"running statistics cannot be estimated from {len(available)} samples: give at least two, "
            "or choose buffers follow or mean"
        )
    rng = stream(seed, Purpose.STATISTICS)
    drawn = rng.choice(len(available), min(SAMPLES, len(available)), replace=False)
    rows = available[torch.from_numpy(drawn)]
    with torch.random.fork_rng(devices=[]), generators_kept(own_code=True):
        seed_generators(int(rng.integers(2**63)), device, own_code=True)
        with reading("BatchNorm's statistics", "sample {}".format):
            batches = (to_device(samples.gather(part), device) for part in pieces(rows))
            return estimate(bench, model, (split(batch)[0] for batch in batches))


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
