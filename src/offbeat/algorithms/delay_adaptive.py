"""Delay-adaptive asynchronous SGD (Mishchenko et al., NeurIPS 2022): an update's rate falls with its delay.

    w := w + γ min(1, n / τ_i) Δ_i          on each arrival, n: the clients that train at once

The weight is FedAsync's hinge with b = n and a = 1 / n: 1 / ((τ − n) / n + 1) = n / τ.
"""

from typing import Annotated

from pydantic import Field

from offbeat.algorithms.aggregators import SumOfDeltas
from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import Concurrency, Count, Epochs, ServerRate, Steps
from offbeat.algorithms.schedules import Buffered
from offbeat.core.algorithm import Algorithm
from offbeat.core.programme import programme
from offbeat.core.staleness import HingeWeight
from offbeat.local.objectives import Plain


@algorithm(
    paper="Mishchenko et al., Asynchronous SGD Beats Minibatch SGD Under Arbitrary Delays, NeurIPS 2022",
    kind="asynchronous",
)
def delay_adaptive(
    threshold: Annotated[Count, Field(description="largest delay n with the whole rate")] = 10,
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    concurrency: Concurrency = None,
    server_lr: ServerRate = 1.0,
) -> Algorithm:
    """Every update makes a version, at a rate that falls with its delay beyond the number of clients.

    w := w + γ min(1, n / τ_i) Δ_i, where τ_i is the update's staleness. `server_lr` is γ. `threshold` is n,
    which should be the number of clients that train at once.
    """
    return Algorithm(
        schedule=Buffered(programme(steps, epochs), 1, concurrency),
        aggregator=SumOfDeltas(HingeWeight(1 / threshold, threshold), weights="equal", scale=server_lr),
        objective=Plain(),
    )
