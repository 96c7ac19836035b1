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
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from offbeat.algorithms.aggregators import Normalization, combine, scaled
from offbeat.algorithms.registry import Concurrency, Epochs, ServerRate, Steps, algorithm
from offbeat.algorithms.schedules import Buffered
from offbeat.core.algorithm import Aggregator, Algorithm, Update
from offbeat.core.features import Feature
from offbeat.core.model import Model, Tensors
from offbeat.core.programme import programme
from offbeat.core.staleness import ConstantWeight, StalenessWeight
from offbeat.core.validation import STRICT
from offbeat.local.objectives import Plain, Proximal
from offbeat.vectors.chunked import for_each_chunk

RESUM = 1000  # arrivals: so often the running sum is made anew, which ends its rounding errors


@dataclass(frozen=True, config=STRICT)
class Window(Aggregator):
    """The last K updates, k the ones in the window, once K have come before.

    - "delta" (Eq. 4): w := w + scale · Σ s(τ_k) q_k Δ_k / Σ q_k;
    - "param" (Eq. 3): w := Σ s(τ_k) q_k w_k / Σ s(τ_k) q_k.

    q_k is 1 ("equal") or p_k ("share"). With `normalize` Δ_k is divided by a_k, and the step multiplied by
    ā = Σ q_k a_k / Σ q_k. Updates that come together are taken in turn: deltas add up, of the means the
    last one counts. An arrival costs the same whatever K: a running sum gains the new one and loses the
    oldest.
    """

    size: Annotated[int, Field(ge=1)]
    kind: Literal["delta", "param"] = "delta"
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    staleness: StalenessWeight = ConstantWeight()
    weights: Literal["equal", "share"] = "equal"
    normalize: Normalization | None = None
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
        if not memory:
            memory.update(self._empty(model.values))
        step: Tensor | None = None
        for update in updates:
            if self._slide(update, memory) <= self.size:
                continue
            if self.kind == "param":
                step = scaled(memory["sum"], 1 / float(memory["c"].sum()), step).sub_(model.values)
            else:
                scale = self.scale * self._per_share(memory)
                step = scaled(memory["sum"], scale) if step is None else step.add_(memory["sum"], alpha=scale)
        return torch.zeros_like(model.values) if step is None else step

    def _per_share(self, memory: Tensors) -> float:
        """ā / Σ q_k, where ā = Σ q_k a_k / Σ q_k is 1 unless deltas are normalised."""
        q, a = memory["q"], memory["a"]
        total = float(q.sum()) if self.weights == "share" else float(self.size)
        return (float((q * a).sum()) / total if self.normalize else 1.0) / total

    def _empty(self, like: Tensor) -> Tensors:
        """A ring of K entries x_k (Δ_k or w_k), Σ c_k x_k, and by entry c_k = s(τ_k) q_k / a_k, q_k, a_k.

        The x_k are tensors of their own: to take a row of one takes longer than to replace a short row.
        q and a are kept up where they are not all 1.
        """
        return {
            **{f"x{k}": torch.zeros_like(like) for k in range(self.size)},
            "sum": torch.zeros_like(like),
            **{name: torch.zeros(self.size, dtype=torch.float64) for name in "cqa"},
            "arrivals": torch.zeros((), dtype=torch.int64),
        }

    def _slide(self, update: Update, memory: Tensors) -> int:
        """The update takes the place of the oldest one; returns how many have arrived."""
        task, c = update.task, memory["c"].numpy()  # a tensor's numbers take several times longer to reach
        arrivals = int(memory["arrivals"].item()) + 1
        memory["arrivals"].fill_(arrivals)
        k = arrivals % self.size
        oldest, newest = float(c[k]), self.staleness(task.staleness)
        if self.weights == "share" or self.normalize:
            q = task.share if self.weights == "share" else 1.0
            a = self.normalize.a(task.steps) if self.normalize else 1.0
            memory["q"][k], memory["a"][k] = q, a
            newest = newest * q / a
        c[k] = newest
        total, own = memory["sum"], f"x{k}"
        if self.kind == "delta":  # kept as it is: nobody writes to a delta

            def slide(s: Tensor, x: Tensor, delta: Tensor) -> None:
                s.sub_(x, alpha=oldest).add_(delta, alpha=newest)

            for_each_chunk(slide, total, memory[own], update.delta)
            memory[own] = update.delta
        else:

            def replace(s: Tensor, x: Tensor, base: Tensor, delta: Tensor) -> None:
                s.sub_(x, alpha=oldest)
                s.add_(torch.add(base, delta, out=x), alpha=newest)

            for_each_chunk(replace, total, memory[own], update.base.values, update.delta)
        if arrivals % RESUM == 0:
            total.copy_(combine([memory[f"x{n}"] for n in range(self.size)], c.tolist()))
        return arrivals


@algorithm(
    paper="Xu et al., FedFa: A Fully Asynchronous Training Paradigm for Federated Learning, IJCAI 2024, "
    "Algorithms 1-2, Equations 3-4"
)
def fedfa(
    size: Annotated[int, Field(ge=1, description="window size K")] = 10,
    kind: Annotated[
        Literal["delta", "param"],
        Field(description="delta: add the window's deltas; param: mean of its models"),
    ] = "delta",
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    concurrency: Concurrency = None,
    server_lr: ServerRate = 1.0,
    staleness: StalenessWeight = ConstantWeight(),
    weights: Annotated[
        Literal["equal", "share"], Field(description="weigh updates equally, or by data share p_k")
    ] = "equal",
    normalize: Annotated[bool, Field(description="divide each delta by its steps, as FedNova does")] = False,
    mu: Annotated[
        float,
        Field(ge=0, allow_inf_nan=False, description="weight μ of the proximal term, halved as in (μ/2)‖·‖²"),
    ] = 0.0,
) -> Algorithm:
    """Every arrival takes the oldest one's place among the last K, and they make the next model at once.

    "delta" (Eq. 4): w := w + (η_g / K) Σ Δ_k; "param" (Eq. 3): w := (1 / K) Σ w_k, over the window. The
    first K arrivals only fill it. `size` is the paper's K, `concurrency` its M_c, `server_lr` its η_g (for
    deltas). Each delta is applied K times at 1/K: its whole weight is η_g, in FedBuff it is η_g / K.

    Table 6's combinations: `normalize` (FedNova; for deltas) takes Δ_k / steps_k times the window's mean
    number of steps; `mu` (FedProx) adds (μ/2)‖w − w_o‖² to the clients' loss. Weights by staleness and by
    data share are options beyond the paper, off by default.
    """
    return Algorithm(
        schedule=Buffered(programme(steps, epochs), size=1, concurrency=concurrency),
        aggregator=Window(size, kind, server_lr, staleness, weights, Normalization() if normalize else None),
        objective=Proximal(mu) if mu else Plain(),
        buffers="mean",  # summed changes could take a running variance below 0
    )
