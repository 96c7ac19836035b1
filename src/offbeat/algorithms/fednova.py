"""FedNova: normalised averaging of unequal local work (Wang et al., NeurIPS 2020, Section 5)."""

from typing import Annotated

from pydantic import Field

from offbeat.algorithms.aggregators import Normalization, SumOfDeltas
from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import Concurrency, Epochs, Positive, ProximalWeight, Steps
from offbeat.algorithms.schedules import Rounds
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import UsageError
from offbeat.core.programme import programme
from offbeat.core.types import NUMBER
from offbeat.local.objectives import Plain, Proximal

ClientRate = Annotated[
    Positive | None, Field(description="learning rate η of the clients' SGD, needed with μ")
]


@algorithm(
    paper="Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated "
    "Optimization, NeurIPS 2020, Section 5",
    kind="synchronous",
)
def fednova(
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    clients_per_round: Concurrency = None,
    momentum: Annotated[float, Field(ge=0, lt=1, description="momentum ρ of the clients' SGD"), NUMBER] = 0.0,
    mu: ProximalWeight = 0.0,
    lr: ClientRate = None,
) -> Algorithm:
    """FedAvg over updates per local step: a client with more steps has no more influence.

    w := w + ā Σ p_i Δ_i / a_i with ā = Σ p_i a_i, where p_i = n_i / Σ n_i over the round's clients and a_i
    is the sum of the weights of τ_i local steps:

    - plain SGD: a = τ;
    - SGD with momentum ρ: a = [τ − ρ(1 − ρ^τ)/(1 − ρ)]/(1 − ρ);
    - SGD on the loss + (μ/2)‖w − w_o‖² with rate η: a = [1 − (1 − ημ)^τ]/(ημ).

    The algorithm adds the proximal term itself. The clients' training has to be SGD with this `momentum`
    (0: none) and, with `mu`, this constant `lr`: the updates of another optimizer are not those sums.
    """
    if (lr is None) != (mu == 0):
        raise UsageError(
            f"fednova: lr = {lr} with mu = {mu} is not allowed: the clients' learning rate is needed with "
            "mu > 0, and only then"
        )
    return Algorithm(
        schedule=Rounds(programme(steps, epochs), clients_per_round),
        aggregator=SumOfDeltas(
            weights="samples", normalize=Normalization(momentum=momentum, proximal=(lr or 0.0) * mu)
        ),
        objective=Proximal(mu) if mu else Plain(),
    )
