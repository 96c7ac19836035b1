"""Norm clipping: no update moves the model by more than one of norm C would (Sun et al. 2019, norm bounding).

Sun, Kairouz, Suresh, McMahan, Can You Really Backdoor Federated Learning?, 2019, divide by max(1, ‖Δ‖/C) too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt

import torch
from msgspec.structs import replace
from torch import Tensor

from offbeat.core.aggregator import Aggregator, Update
from offbeat.core.buffers import Buffers
from offbeat.core.client_cache import ClientCache
from offbeat.core.errors import UsageError
from offbeat.core.features import Feature
from offbeat.core.model import Model, Tensors
from offbeat.core.root import RootTraining
from offbeat.core.wrapper import Wrapper
from offbeat.vectors.arithmetic import chunks, head, scaled


@dataclass(frozen=True)
class Clipped(Wrapper, Aggregator):
    """Any aggregator, with updates clipped to the norm C: Δ_i := Δ_i min(1, C/‖Δ_i‖).

    The norm is that of the parameters, in float64. An update that is not finite becomes zeros. An update of a
    norm of at most C stays as it is, bit for bit. The clip bounds the effect of one update. Attackers
    together still move the model by their share of C.

    Attributes:
        inner: The aggregator.
        norm: C.
    """

    inner: Aggregator
    norm: float
    own_requires = frozenset({Feature.SINGLE_UPDATES})
    own_provides = frozenset({Feature.BOUNDED})

    def __post_init__(self) -> None:
        """Check C. Raises `UsageError` unless C is a finite number above 0."""
        if not 0 < self.norm < inf:
            raise UsageError(f"clip = {self.norm} is not allowed: give a number above 0")

    @property
    def title(self) -> str:
        """Name of the aggregator inside."""
        return self.inner.title

    @property
    def least(self) -> int:
        """Fewest updates of the aggregator inside."""
        return self.inner.least

    @property
    def buffers(self) -> Buffers:
        """The buffers' policy of the aggregator inside."""
        return self.inner.buffers

    @property
    def root_training(self) -> RootTraining | None:
        """Root training of the aggregator inside."""
        return self.inner.root_training

    @property
    def caches(self) -> bool:
        """Whether the aggregator inside keeps each client's last update."""
        return self.inner.caches

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """The step of the aggregator inside for the clipped updates."""
        return self.inner.step(self._clipped(updates, model), model, memory)

    def cached_step(
        self, updates: Sequence[Update], model: Model, memory: Tensors, cache: ClientCache
    ) -> Tensor:
        """The step of the aggregator inside, which keeps the clipped updates."""
        return self.inner.cached_step(self._clipped(updates, model), model, memory, cache)

    def _clipped(self, updates: Sequence[Update], model: Model) -> list[Update]:
        d = model.layout.parameters
        return [replace(u, delta=clip(u.delta, self.norm, d)) for u in updates]


def clip(delta: Tensor, norm: float, parameters: int) -> Tensor:
    """Δ min(1, C/‖Δ‖) in a fresh tensor; Δ itself where it is short enough, zeros where it is not finite.

    Args:
        delta: Δ over the flat values.
        norm: C.
        parameters: Number of values whose norm counts, the first ones.
    """
    found = length(head(delta, parameters))
    if not isfinite(found):
        return torch.zeros_like(delta)
    return delta if found <= norm else scaled(delta, norm / found)


def length(vector: Tensor) -> float:
    """‖v‖ in float64, summed chunk by chunk; not finite where a value is not."""
    return sqrt(sum(float(part.dot(part)) for (v,) in chunks(vector) for part in [v.double()]))
