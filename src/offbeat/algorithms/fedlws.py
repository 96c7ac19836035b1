"""FedLWS: FedAvg whose layers are shrunk, the more the clients disagree (Shi et al., ICLR 2025)."""

from collections.abc import Sequence
from typing import Annotated, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from offbeat.algorithms.aggregators import MeanOfModels
from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import Concurrency, Epochs, NonNegative, Positive, Steps
from offbeat.algorithms.schedules import Rounds
from offbeat.core.aggregator import Aggregator, Update
from offbeat.core.algorithm import Algorithm
from offbeat.core.features import Feature
from offbeat.core.layout import Layout
from offbeat.core.model import Model, Tensors
from offbeat.core.programme import programme
from offbeat.core.validation import checked_dataclass
from offbeat.local.objectives import Plain
from offbeat.vectors.arithmetic import chunks, weighted_sum

__all__ = ["ShrunkMean", "fedlws"]

Beta = Annotated[Positive, Field(description="strength β of the shrinking")]
Low = Annotated[NonNegative, Field(description="least τ of a layer")]
High = Annotated[NonNegative, Field(description="largest τ of a layer")]


@checked_dataclass
class ShrunkMean(Aggregator):
    """w_l := γ_l w_avg,l for each layer l, with w_avg = Σ n_i w_i / Σ n_i.

    γ_l = ‖w‖ / (‖w‖ + τ_l ‖w_avg − w‖), τ_l = clip(β · mean_k ‖Δ_k − Δ̄‖₂, low, high), Δ_k = w_k − w and
    Δ̄ their plain mean, all over the layer: the parameters up to and including one bias, in the model's
    order. Floating buffers are not shrunk. A layer of zeros is not shrunk either: γ = 0 would keep it so.
    """

    beta: Beta = 0.03
    low: Low = 0.01
    high: High = 0.2
    requires = frozenset({Feature.SINGLE_UPDATES})

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low = {self.low} must not be above high = {self.high}")
        return self

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """Toward γ_l w_avg,l, layer by layer."""
        step = MeanOfModels().step(updates, model, memory)  # w_avg − w
        # Δ_k = w_k − w
        deltas = [u.delta if u.base is model else u.base.values - model.values + u.delta for u in updates]
        for layer in layers(model.layout):
            w, g = model.values[layer], step[layer]
            norm = float(w.norm())
            tau = min(max(self.beta * spread([d[layer] for d in deltas]), self.low), self.high)
            gamma = norm / (norm + tau * float(g.norm())) if norm else 1.0
            g.mul_(gamma).add_(w, alpha=gamma - 1)  # γ w_avg − w
        return step


def layers(layout: Layout) -> list[slice]:
    """The layers' parts of the flat parameters: each ends with a bias, the last one where they end."""
    ends, at = [], 0
    for entry in layout.section("parameter"):
        at += entry.size
        if entry.name.split(".")[-1] == "bias":
            ends.append(at)
    if at not in ends:
        ends.append(at)
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def spread(deltas: Sequence[Tensor]) -> float:
    """mean_k ‖Δ_k − Δ̄‖₂."""
    squares = torch.zeros(len(deltas), dtype=torch.float64)
    equal = [1 / len(deltas)] * len(deltas)
    for parts in chunks(*deltas):
        mean = weighted_sum(parts, equal)
        squares += torch.tensor([float((part - mean).norm()) ** 2 for part in parts], dtype=torch.float64)
    return float(squares.sqrt().mean())


@algorithm(
    paper="Shi et al., FedLWS: Federated Learning with Adaptive Layer-wise Weight Shrinking, ICLR 2025",
    kind="synchronous",
)
def fedlws(
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    clients_per_round: Concurrency = None,
    beta: Beta = 0.03,
    low: Low = 0.01,
    high: High = 0.2,
) -> Algorithm:
    """FedAvg that shrinks each layer a little per round, and more if the clients disagree about it.

    w_l := γ_l w_avg,l with γ_l = ‖w‖ / (‖w‖ + τ_l ‖w_avg − w‖) and τ_l = clip(β · mean_k ‖Δ_k − Δ̄‖₂, low,
    high), over the parameters of a layer: those up to and including one bias. The defaults are the paper's.
    """
    return Algorithm(
        schedule=Rounds(programme(steps, epochs), clients_per_round),
        aggregator=ShrunkMean(beta, low, high),
        objective=Plain(),
    )
