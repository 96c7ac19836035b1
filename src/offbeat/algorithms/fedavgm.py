"""FedAvgM: FedAvg with server momentum (Hsu, Qi, Brown, 2019, Section 4.4)."""

from typing import Annotated

from pydantic import Field

from offbeat.algorithms.aggregators import MeanOfModels, Momentum
from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import Concurrency, Epochs, Steps
from offbeat.algorithms.schedules import Rounds
from offbeat.core.algorithm import Algorithm
from offbeat.core.programme import programme
from offbeat.core.types import NUMBER
from offbeat.local.objectives import Plain


@algorithm(
    paper="Hsu et al., Measuring the Effects of Non-Identical Data Distribution, 2019, Section 4.4",
    kind="synchronous",
)
def fedavgm(
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    clients_per_round: Concurrency = None,
    momentum: Annotated[float, Field(ge=0, lt=1, description="server momentum β"), NUMBER] = 0.9,
) -> Algorithm:
    """FedAvg whose step feeds a momentum: m := β m + step; w := w + m.

    β = 0 is FedAvg. FedCompass's tables use β = 0.9.
    """
    return Algorithm(
        schedule=Rounds(programme(steps, epochs), clients_per_round),
        aggregator=MeanOfModels(),
        objective=Plain(),
        server_steps=(Momentum(momentum),),
    )
