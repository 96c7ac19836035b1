"""FedBuff: buffered asynchronous aggregation (Nguyen et al., AISTATS 2022, Algorithm 1)."""

from typing import Annotated

from pydantic import Field

from offbeat.algorithms.aggregators import SumOfDeltas
from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import Concurrency, Count, Epochs, ServerRate, Steps
from offbeat.algorithms.schedules import Buffered
from offbeat.core.algorithm import Algorithm
from offbeat.core.programme import programme
from offbeat.core.staleness import INVERSE_SQRT, StalenessWeight
from offbeat.local.objectives import Plain


@algorithm(
    paper="Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022, Alg. 1",
    kind="semi-asynchronous",
)
def fedbuff(
    size: Annotated[Count, Field(description="buffer size K")] = 10,
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    concurrency: Concurrency = None,
    server_lr: ServerRate = 1.0,
    staleness: StalenessWeight = INVERSE_SQRT,
) -> Algorithm:
    """Updates are collected in a buffer; every K of them make one step of the global model.

    w := w + (η_g / K) Σ s(τ_i) Δ_i with s(τ) = (1 + τ)^−½. `size` is the paper's K, `concurrency` its
    M_c, `server_lr` its η_g. After each arrival one idle client, drawn at random, starts training.
    """
    return Algorithm(
        schedule=Buffered(programme(steps, epochs), size, concurrency),
        aggregator=SumOfDeltas(staleness, weights="equal", scale=server_lr),
        objective=Plain(),
    )
