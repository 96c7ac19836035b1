"""Asynchronous federated learning over a shared radio (Hu, Chen, Larsson, 2023, Sections III-V).

Devices train at their own pace and say when they are ready. Every T̃ seconds the server measures the
channels of those that are, 𝒦(t), and schedules some of them, Π(t), to upload: the symbols of the period
are shared so that each can send the same number of bits, and each compresses its update to them. The new
model is a mean of models, w := Σ_{k∈Π} w_k (w_o + û_k), weighted by data and age, and goes to all of
𝒦(t), scheduled or not: the updates of the others are discarded. Who is not ready keeps training.

- the age a_k = t − s_k counts the iterations since a device received its model; a device that received
  one at the end of iteration t − 1 and is ready at t has age 0;
- iterations count on when nobody is ready;
- γ < 1 favours fresh updates (the paper's proposal), γ > 1 old ones.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from offbeat.algorithms.aggregators import toward_models
from offbeat.algorithms.options import Epochs, Positive, ProximalWeight, Steps
from offbeat.algorithms.registry import algorithm
from offbeat.algorithms.wireless.bandwidth import Halving, equal_bits
from offbeat.algorithms.wireless.iterations import Period, RadioIterations, Scheduled, Slot
from offbeat.algorithms.wireless.over_radio import OverRadio, UploadSlots
from offbeat.algorithms.wireless.policies import (
    AgeBased,
    BestChannel,
    BestChannelBestNorm,
    Candidate,
    DataImportance,
    Policy,
    Random,
)
from offbeat.codec import AnyCodec, SparseQuantised
from offbeat.core.algorithm import Aggregator, Algorithm, Update
from offbeat.core.model import Model, Tensors
from offbeat.core.programme import programme
from offbeat.core.staleness import AgeWeight
from offbeat.core.validation import STRICT
from offbeat.local.objectives import Plain, Proximal

__all__ = [
    "AgeBased",
    "AgeWeighted",
    "BestChannel",
    "BestChannelBestNorm",
    "Candidate",
    "DataImportance",
    "OverRadio",
    "RadioIterations",
    "Random",
    "UploadSlots",
    "equal_bits",
    "wireless",
]
Gamma = Annotated[Positive, Field(description="γ of the age weights; below 1 favours fresh updates")]


@dataclass(frozen=True, config=STRICT)
class AgeWeighted(Aggregator):
    """w := Σ w_k (w_o + û_k), w_k = n_k γ^{a_k} / Σ n_j γ^{a_j} (Eq. 13).

    Ages are the iterations that the schedule counts; under another schedule a_k is the staleness τ_k.
    """

    gamma: Gamma = 1.0

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """Toward the weighted mean of the models: nothing of the global model stays."""
        ages = updates[0].note.get("ages") or [u.task.staleness for u in updates]
        power = AgeWeight(self.gamma)
        weights = [u.task.samples * power(a) for u, a in zip(updates, ages, strict=True)]
        if not any(weights):  # too small for numbers: it is the differences of the ages that count
            weights = [u.task.samples * power(a - min(ages)) for u, a in zip(updates, ages, strict=True)]
        return toward_models(updates, [weight / sum(weights) for weight in weights], model)


@algorithm(
    paper="Hu et al., Scheduling and Aggregation Design for Asynchronous Federated Learning over "
    "Wireless Networks, 2023, Sections II to V",
    kind="semi-asynchronous",
)
def wireless(
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    scheduled: Scheduled = 8,
    period: Period = None,
    policy: Policy = DataImportance(),
    gamma: Gamma = 1.0,
    mu: ProximalWeight = 0.02,
    codec: Annotated[
        AnyCodec | None,
        Field(discriminator="kind", description="how updates are made to fit their bits; None means not"),
    ] = SparseQuantised(),
    slot: Slot = None,
    halving: Halving = None,
) -> Algorithm:
    """Every so often some of the clients that are ready send, within what the shared radio carries.

    θ(t+1) := Σ_{k∈Π} w_k (θ_k(t, 0) + û_k), w_k ∝ |S_k| γ^{a_k} (Eq. 13), goes to all that were ready. It
    needs a world with a channel. With the period T_max, γ = 1, μ = 0 and random scheduling it is synchronous
    FedAvg with R of N clients. The default γ = 1 weighs by data alone, as Equation 5; the paper gives no
    value for γ < 1.
    """
    local = programme(steps, epochs)
    return Algorithm(
        schedule=RadioIterations(local, scheduled, policy, period=period, slot=slot, halving=halving),
        aggregator=AgeWeighted(gamma),
        objective=Proximal(mu) if mu else Plain(),
        codec=codec,
    )
