"""FedAvg: synchronous federated averaging (McMahan et al., AISTATS 2017, Algorithm 1)."""

from offbeat.algorithms.aggregators import MeanOfModels
from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import Concurrency, Epochs, Steps
from offbeat.algorithms.schedules import Rounds
from offbeat.core.algorithm import Algorithm
from offbeat.core.programme import programme
from offbeat.local.objectives import Plain


@algorithm(
    paper="McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017, Algorithm 1",
    kind="synchronous",
)
def fedavg(steps: Steps = None, epochs: Epochs = None, *, clients_per_round: Concurrency = None) -> Algorithm:
    """Rounds: every sampled client trains from the same model; the server waits for all and averages.

    w := Σ n_i w_i / Σ n_i. `clients_per_round` is the paper's m; None means all clients. A task has one
    local epoch if neither `steps` nor `epochs` is given.
    """
    return Algorithm(
        schedule=Rounds(programme(steps, epochs), clients_per_round),
        aggregator=MeanOfModels(),
        objective=Plain(),
    )
