"""SCAFFOLD: stochastic controlled averaging (Karimireddy et al., ICML 2020, Algorithm 1, Option II).

The server's control variate c is the mean over all N clients of their own c_i: the direction in which the
federation goes. It travels with the model, and the change of c_i comes back with the update.

Option II reads the mean gradient off the distance covered, (w_o − w_i)/(K η). That is for plain SGD: with
momentum, weight decay or Adam it is no mean of gradients any more.
"""

import torch

from offbeat.algorithms.aggregators import SumOfDeltas
from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import Concurrency, Epochs, ServerRate, Steps
from offbeat.algorithms.schedules import Rounds
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import UsageError
from offbeat.core.events import Metrics
from offbeat.core.features import Feature
from offbeat.core.objective import LocalRun, Objective, flat
from offbeat.core.programme import programme
from offbeat.core.validation import checked_dataclass

__all__ = ["ControlVariates", "scaffold"]


@checked_dataclass
class ControlVariates(Objective):
    """Each gradient + c − c_i; at the end c_i := c_i − c + (w_o − w_i)/(K η). The state is c_i."""

    requires = frozenset({Feature.CLIENT_STATE, Feature.SHARED_VECTOR})
    shared_vectors = 1

    def begin(self, run: LocalRun) -> None:
        """c − c_i; c_i is 0 before the first task."""
        c_i = run.state.setdefault("c_i", torch.zeros_like(flat(run.anchor)))
        run.scratch["c - c_i"] = torch._foreach_sub(list(run.shared), run.shaped(c_i))

    def adjust(self, run: LocalRun) -> None:
        """Add c − c_i to each gradient."""
        torch._foreach_add_(run.gradients, list(run.scratch["c - c_i"]))

    def end(self, run: LocalRun) -> Metrics:
        """The new c_i, and its change."""
        if not run.lr:
            raise UsageError("SCAFFOLD divides by the learning rate, which is 0: give its decay a floor")
        w_i, w_o, c_i = flat(run.parameters), flat(run.anchor), run.state["c_i"]
        new = c_i - flat(run.shared) + (w_o - w_i) / (run.steps * run.lr)
        run.state["c_i"], run.shared_delta = new, new - c_i
        return {}


@algorithm(
    paper="Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging, ICML 2020, Algorithm 1, Option II",
    kind="synchronous",
)
def scaffold(
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    clients_per_round: Concurrency = None,
    server_lr: ServerRate = 1.0,
) -> Algorithm:
    """Rounds whose clients correct each step by the difference between their and all clients' gradients.

    w := w − η(∇f + c − c_i), then c_i := c_i − c + (w_o − w_i)/(K η). The server:
    w := w + (η_g/|S|) Σ Δ_i and c := c + Σ Δc_i / N. It requires plain SGD at the clients. c doubles the
    traffic; a client keeps c_i.
    """
    return Algorithm(
        schedule=Rounds(programme(steps, epochs), clients_per_round),
        aggregator=SumOfDeltas(weights="equal", scale=server_lr),
        objective=ControlVariates(),
    )
