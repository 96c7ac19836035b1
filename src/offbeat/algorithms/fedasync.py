"""FedAsync: every update is mixed in as it comes (Xie, Koyejo, Gupta, 2019, Algorithm 1)."""

from offbeat.algorithms.aggregators import Mixing, MixingWeight
from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import Concurrency, Epochs, ProximalWeight, Steps
from offbeat.algorithms.schedules import Buffered
from offbeat.core.algorithm import Algorithm
from offbeat.core.programme import programme
from offbeat.core.staleness import PolynomialWeight, StalenessWeight
from offbeat.local.objectives import Plain, Proximal


@algorithm(paper="Xie et al., Asynchronous Federated Optimization, 2019, Algorithm 1", kind="asynchronous")
def fedasync(
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    concurrency: Concurrency = None,
    alpha: MixingWeight = 0.9,
    staleness: StalenessWeight = PolynomialWeight(1.0, 0.5),
    rho: ProximalWeight = 0.0,
) -> Algorithm:
    """Every update is mixed into the global model on its arrival; stale updates get smaller weights.

    w := (1 − α_τ) w + α_τ w_i with α_τ = α s(τ). The defaults give the weight 0.9 (τ + 1)^−½ of
    FedCompass's tables. The client may minimise its loss + (ρ/2)‖w − w_o‖².
    """
    return Algorithm(
        schedule=Buffered(programme(steps, epochs), size=1, concurrency=concurrency),
        aggregator=Mixing(alpha, staleness),
        objective=Proximal(rho) if rho else Plain(),
    )
