"""MOON: model-contrastive federated learning (Li, He, Song, CVPR 2021).

FedAvg with one more term in the client's loss, Equation 2: the representation z of a sample should be
like that of the model the client received, and unlike that of the client's own model at the end of its
last task. The printed formula is softplus of the difference of the two similarities:

    −log( e^{a} / (e^{a} + e^{b}) ) = log(1 + e^{b − a}),   a = sim(z, z_glob)/T,   b = sim(z, z_prev)/T

A client without an earlier model has no such term. With z_prev = z_glob, as in the paper's first round,
its gradient would be zero.

z is the input of the module's last linear layer. The paper's networks have a projection head before that
layer; one that is wanted is part of the module. The two earlier models are frozen and in evaluation mode.
"""

from typing import Annotated

from pydantic import Field
from torch import Tensor
from torch.nn import functional

from offbeat.algorithms.aggregators import MeanOfModels
from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import Concurrency, Epochs, NonNegative, Positive, Steps
from offbeat.algorithms.schedules import Rounds
from offbeat.core.algorithm import Algorithm
from offbeat.core.events import Metrics
from offbeat.core.features import Feature
from offbeat.core.objective import LocalRun, Objective, flat
from offbeat.core.programme import programme
from offbeat.core.validation import checked_dataclass
from offbeat.local.objectives import Plain

__all__ = ["Contrastive", "moon"]

Mu = Annotated[NonNegative, Field(description="weight μ of the contrastive term")]
Temperature = Annotated[Positive, Field(description="temperature T of the similarities")]


@checked_dataclass
class Contrastive(Objective):
    """loss + μ · −log( e^{sim(z, z_glob)/T} / (e^{sim(z, z_glob)/T} + e^{sim(z, z_prev)/T}) ).

    sim is the cosine; the mean over the batch is taken. A client's state is its model at the end of its
    last task, with its floating buffers.
    """

    mu: Mu
    temperature: Temperature = 0.5
    requires = frozenset({Feature.REPRESENTATIONS, Feature.CLIENT_STATE})

    def begin(self, run: LocalRun) -> None:
        """Keep the model received: its parameters are the anchor, its buffers will change."""
        run.scratch["received"] = [*run.anchor, *(b.clone() for b in run.buffers)]
        if "model" in run.state:
            run.scratch["previous"] = run.shaped(run.state["model"])

    def loss(self, run: LocalRun, loss: Tensor) -> Tensor:
        """Add the contrastive term, where there is an earlier model."""
        if "previous" not in run.scratch:
            return loss
        z = run.represent(None)
        z_glob, z_prev = (run.represent(run.scratch[name]) for name in ("received", "previous"))
        a, b = (functional.cosine_similarity(z, other) / self.temperature for other in (z_glob, z_prev))
        return loss + self.mu * functional.softplus(b - a).mean()

    def end(self, run: LocalRun) -> Metrics:
        """The client keeps its model."""
        run.state["model"] = flat([*run.parameters, *run.buffers])
        return {}


@algorithm(
    paper="Li et al., Model-Contrastive Federated Learning, CVPR 2021, Equations 1-3, Algorithm 1",
    kind="synchronous",
)
def moon(
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    clients_per_round: Concurrency = None,
    mu: Mu = 1.0,
    temperature: Temperature = 0.5,
) -> Algorithm:
    """FedAvg whose clients keep representations near the global model's and far from their last model's.

    loss + μ · −log( e^{sim(z, z_glob)/T} / (e^{sim(z, z_glob)/T} + e^{sim(z, z_prev)/T}) ). T = 0.5 is the
    paper's. It tunes μ over 0.1, 1, 5 and 10 (5 was best on CIFAR-10, 1 on its other two); the default 1 is
    our choice among them. The model must end in a linear layer. A client keeps one model.
    """
    return Algorithm(
        schedule=Rounds(programme(steps, epochs), clients_per_round),
        aggregator=MeanOfModels(),
        objective=Contrastive(mu, temperature) if mu else Plain(),
    )
