"""FedOpt: the server takes the clients' mean change for a gradient (Reddi et al., ICLR 2021, Algorithm 2).

With g the aggregator's step (FedAvg's: the clients' weighted mean change) every server step here is

    m := β₁ m + (1 − β₁) g
    v := what the method makes of v and g²
    w := w + η m / (√v + τ)

from m = 0 and v = τ². There is no bias correction. The paper tunes η and τ for each task; the factories'
defaults of η are ours.

A step works on the whole flat vector, floating buffers included. Their `buffers` is "mean": so
BatchNorm's statistics are the clients' mean, and no adaptive step takes a variance below 0.
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from offbeat.algorithms.aggregators import MeanOfModels, from_memory
from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import Concurrency, Epochs, Memory, Positive, ServerRate, Steps
from offbeat.algorithms.schedules import Rounds
from offbeat.core.algorithm import Algorithm, ServerStep
from offbeat.core.buffers import Buffers
from offbeat.core.model import Tensors
from offbeat.core.programme import Programme, programme
from offbeat.core.validation import checked_dataclass
from offbeat.local.objectives import Plain
from offbeat.vectors.chunked import for_each_chunk

__all__ = ["Adagrad", "Adam", "Yogi", "fedadagrad", "fedadam", "fedyogi"]

Beta1 = Annotated[Memory, Field(description="memory β₁ of the first moment m")]
Beta2 = Annotated[Memory, Field(description="memory β₂ of the second moment v")]
Tau = Annotated[Positive, Field(description="adaptivity τ: the smaller, the more adaptive")]


@checked_dataclass
class Adagrad(ServerStep):
    """v := v + g²; the other steps here differ from it in this line."""

    lr: ServerRate
    beta1: Beta1 = 0.0
    tau: Tau = 1e-3
    buffers: ClassVar[Buffers] = "mean"

    def transform(self, step: Tensor, memory: Tensors) -> Tensor:
        """w := w + η m / (√v + τ), in one pass over memory."""
        first, second = from_memory(memory, "m", step), from_memory(memory, "v", step, self.tau**2)

        def move(g: Tensor, m: Tensor, v: Tensor) -> None:
            m.mul_(self.beta1).add_(g, alpha=1 - self.beta1)
            self.accumulate(v, g)
            torch.div(m, v.sqrt().add_(self.tau), out=g).mul_(self.lr)

        for_each_chunk(move, step, first, second)
        return step

    def accumulate(self, v: Tensor, g: Tensor) -> None:
        """Change v in place."""
        v.addcmul_(g, g)


@checked_dataclass
class Adam(Adagrad):
    """v := β₂ v + (1 − β₂) g²."""

    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.99

    def accumulate(self, v: Tensor, g: Tensor) -> None:
        """Change v in place."""
        v.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)


@checked_dataclass
class Yogi(Adam):
    """v := v − (1 − β₂) g² sign(v − g²)."""

    def accumulate(self, v: Tensor, g: Tensor) -> None:
        """Change v in place."""
        g2 = g.square()
        v.addcmul_(g2, torch.sub(v, g2).sign_(), value=self.beta2 - 1)


def _rounds(programme: Programme, clients_per_round: int | None, step: ServerStep) -> Algorithm:
    """FedAvg, whose change of the model goes through the server step."""
    return Algorithm(
        schedule=Rounds(programme, clients_per_round),
        aggregator=MeanOfModels(),
        objective=Plain(),
        server_steps=(step,),
    )


_PAPER = "Reddi et al., Adaptive Federated Optimization, ICLR 2021, Algorithm 2"


@algorithm(paper=_PAPER, kind="synchronous")
def fedadagrad(
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    clients_per_round: Concurrency = None,
    server_lr: ServerRate = 0.1,
    beta1: Beta1 = 0.0,
    tau: Tau = 1e-3,
) -> Algorithm:
    """FedAvg whose step is divided by the root of the sum of its squares so far, for each parameter.

    g = Σ n_i w_i / Σ n_i − w; m := β₁ m + (1 − β₁) g; v := v + g²; w := w + η m / (√v + τ), from m = 0,
    v = τ². `server_lr` is η, which the paper tunes, as it does τ; β₁ = 0 as in its experiments.
    """
    return _rounds(programme(steps, epochs), clients_per_round, Adagrad(server_lr, beta1, tau))


@algorithm(paper=_PAPER, kind="synchronous")
def fedadam(
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    clients_per_round: Concurrency = None,
    server_lr: ServerRate = 0.03,
    beta1: Beta1 = 0.9,
    beta2: Beta2 = 0.99,
    tau: Tau = 1e-3,
) -> Algorithm:
    """FedAvg whose step goes through Adam, without bias correction.

    g = Σ n_i w_i / Σ n_i − w; m := β₁ m + (1 − β₁) g; v := β₂ v + (1 − β₂) g²; w := w + η m / (√v + τ),
    from m = 0, v = τ². `server_lr` is η, which the paper tunes, as it does τ; β₁ and β₂ are the paper's.
    """
    return _rounds(programme(steps, epochs), clients_per_round, Adam(server_lr, beta1, tau, beta2))


@algorithm(paper=_PAPER, kind="synchronous")
def fedyogi(
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    clients_per_round: Concurrency = None,
    server_lr: ServerRate = 0.03,
    beta1: Beta1 = 0.9,
    beta2: Beta2 = 0.99,
    tau: Tau = 1e-3,
) -> Algorithm:
    """FedAvg whose step goes through Yogi: Adam whose second moment moves by at most (1 − β₂) g².

    g = Σ n_i w_i / Σ n_i − w; m := β₁ m + (1 − β₁) g; v := v − (1 − β₂) g² sign(v − g²);
    w := w + η m / (√v + τ), from m = 0, v = τ². `server_lr` is η, which the paper tunes, as it does τ; β₁
    and β₂ are the paper's.
    """
    return _rounds(programme(steps, epochs), clients_per_round, Yogi(server_lr, beta1, tau, beta2))
