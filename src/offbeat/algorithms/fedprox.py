"""FedProx: FedAvg whose clients are held near the global model (Li et al., MLSys 2020, Algorithm 2)."""

from offbeat.algorithms.aggregators import MeanOfModels
from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import Concurrency, Epochs, ProximalWeight, Steps
from offbeat.algorithms.schedules import Rounds
from offbeat.core.algorithm import Algorithm
from offbeat.core.programme import programme
from offbeat.local.objectives import Plain, Proximal


@algorithm(
    paper="Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, Algorithm 2",
    kind="synchronous",
)
def fedprox(
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    clients_per_round: Concurrency = None,
    mu: ProximalWeight = 0.01,
) -> Algorithm:
    """FedAvg whose clients minimise their loss + (μ/2)‖w − w_o‖², w_o the model they started from.

    w := Σ n_i w_i / Σ n_i, as in FedAvg: clients are drawn uniformly and weighed by their samples, where
    the paper draws them by p_i and takes the plain mean. μ = 0 is FedAvg; the paper tries 0.001 to 1.
    """
    return Algorithm(
        schedule=Rounds(programme(steps, epochs), clients_per_round),
        aggregator=MeanOfModels(),
        objective=Proximal(mu) if mu else Plain(),
    )
