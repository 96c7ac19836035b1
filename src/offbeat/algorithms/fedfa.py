"""FedFa: a sliding window over the last K updates (Xu et al., IJCAI 2024, Algorithms 1-2).

The first K arrivals only fill the window. Every later one takes the place of the oldest, and then the
whole window makes the next model. No arrival waits for another, so a version is an arrival.

Eq. 4 applies each delta in K steps in a row at weight 1/K: its whole weight is η_g, where FedBuff's is
η_g / K. So FedBuff with η_g = K is what FedFa-Delta with η_g = 1 compares with. (With the window anchored,
so that a delta ends with weight 1/K, it would be FedBuff of one update and η_g = 1/K.) Clients that train
at the same time all add their whole deltas, where FedAvg adds the mean: many of them need a smaller η_g.

The paper's Algorithm 1 counts from 0, which would let K + 1 results into a sum that is divided by K; the
window here holds K, as the text says.

The paper says that a window hides the update in it. That is its claim and not a guarantee: two windows in
a row differ by (w_new − w_oldest)/K.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from offbeat.algorithms.aggregators import Normalization
from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import Concurrency, Count, Epochs, ProximalWeight, ServerRate, Steps
from offbeat.algorithms.schedules import Buffered
from offbeat.core.aggregator import Aggregator, Update
from offbeat.core.algorithm import Algorithm
from offbeat.core.buffers import Buffers
from offbeat.core.features import Feature
from offbeat.core.model import Model, Tensors
from offbeat.core.programme import programme
from offbeat.core.staleness import ConstantWeight, StalenessWeight
from offbeat.core.validation import checked_dataclass
from offbeat.local.objectives import Plain, Proximal
from offbeat.vectors.arithmetic import RunningWindow, scaled

__all__ = ["Window", "fedfa"]

Size = Annotated[Count, Field(description="window size K")]
WindowKind = Annotated[
    Literal["delta", "param"], Field(description="delta: add the window's deltas; param: mean of its models")
]
Weights = Annotated[
    Literal["equal", "share"], Field(description="weigh updates equally, or by data share p_k")
]


@checked_dataclass
class Window(Aggregator):
    """The last K updates, k the ones in the window, once K have come before.

    - "delta" (Eq. 4): w := w + scale · Σ s(τ_k) q_k Δ_k / Σ q_k;
    - "param" (Eq. 3): w := Σ s(τ_k) q_k w_k / Σ s(τ_k) q_k.

    q_k is 1 ("equal") or p_k ("share"). With `normalize` Δ_k is divided by a_k, and the step multiplied by
    ā = Σ q_k a_k / Σ q_k. Updates that come together are taken in turn: deltas add up, of the means the
    last one counts.
    """

    size: Size
    kind: WindowKind = "delta"
    scale: ServerRate = 1.0
    staleness: StalenessWeight = ConstantWeight()
    weights: Weights = "equal"
    normalize: Normalization | None = None
    # Summed changes could take a running variance below 0.
    buffers: ClassVar[Buffers] = "mean"
    requires = frozenset({Feature.SINGLE_UPDATES})

    @model_validator(mode="after")
    def _deltas_only(self) -> Self:
        if self.kind == "param" and self.normalize:
            raise ValueError('normalize divides deltas by their steps: it needs kind = "delta", not "param"')
        if self.kind == "param" and self.scale != 1:
            raise ValueError(
                f'a server rate of {self.scale} scales deltas: it needs kind = "delta", not "param"'
            )
        return self

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """The window's step, or zeros while the first K arrive."""
        window, step = RunningWindow(memory, self.size, model.values, columns="qa"), None
        for update in updates:
            weight, numbers = self.staleness(update.task.staleness), tuple[float, ...]()
            if self.weights == "share" or self.normalize:
                q = update.task.share if self.weights == "share" else 1.0
                a = self.normalize.a(update.task.steps) if self.normalize else 1.0
                weight, numbers = weight * q / a, (q, a)
            start = update.base.values if self.kind == "param" else None
            window.push(update.delta, start, weight, *numbers)
            if not window.full:
                continue
            if self.kind == "param":
                step = scaled(window.sum, 1 / float(window.weights.sum()), step).sub_(model.values)  # Eq. 3
            else:
                factor = self.scale * self._mean_a_by_sum_q(memory["q"], memory["a"])
                step = scaled(window.sum, factor) if step is None else step.add_(window.sum, alpha=factor)
        return torch.zeros_like(model.values) if step is None else step

    def _mean_a_by_sum_q(self, q: Tensor, a: Tensor) -> float:
        """ā / Σ q_k, where ā = Σ q_k a_k / Σ q_k is 1 unless deltas are normalised."""
        sum_q = float(q.sum()) if self.weights == "share" else float(self.size)
        return (float((q * a).sum()) / sum_q if self.normalize else 1.0) / sum_q


@algorithm(
    paper="Xu et al., FedFa: A Fully Asynchronous Training Paradigm for Federated Learning, IJCAI 2024, "
    "Algorithms 1-2, Equations 3-4",
    kind="asynchronous",
)
def fedfa(
    size: Size = 10,
    kind: WindowKind = "delta",
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    concurrency: Concurrency = None,
    server_lr: ServerRate = 1.0,
    staleness: StalenessWeight = ConstantWeight(),
    weights: Weights = "equal",
    normalize: Annotated[bool, Field(description="divide each delta by its steps, as FedNova does")] = False,
    mu: ProximalWeight = 0.0,
) -> Algorithm:
    """Every arrival replaces the oldest of the last K updates, which make the next model at once.

    "delta" (Eq. 4): w := w + (η_g / K) Σ Δ_k; "param" (Eq. 3): w := (1 / K) Σ w_k, over the window. The
    first K arrivals only fill it. `size` is the paper's K, `concurrency` its M_c, `server_lr` its η_g (for
    deltas). Each delta is applied K times at 1/K, so its total weight is η_g; in FedBuff it is η_g / K.

    Table 6's combinations: `normalize` (FedNova; for deltas) takes Δ_k / steps_k times the window's mean
    number of steps; `mu` (FedProx) adds (μ/2)‖w − w_o‖² to the clients' loss. Weights by staleness and by
    data share are options beyond the paper, off by default.
    """
    return Algorithm(
        schedule=Buffered(programme(steps, epochs), size=1, concurrency=concurrency),
        aggregator=Window(size, kind, server_lr, staleness, weights, Normalization() if normalize else None),
        objective=Proximal(mu) if mu else Plain(),
    )
