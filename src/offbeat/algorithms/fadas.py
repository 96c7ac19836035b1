"""FADAS: AMSGrad at the server of a buffer, with a rate that falls with the delay (Wang et al., ICML 2024).

With g the buffer's mean change, τ the largest staleness in it, t the number of the step, from 1, and
m = v = v̂ = 0 at first:

    m := β₁ m + (1 − β₁) g
    v := β₂ v + (1 − β₂) g²
    v̂ := max(v̂, v)
    w := w + η_τ (m / (1 − β₁ᵗ)) / (√(v̂ / (1 − β₂ᵗ)) + ε)
    η_τ = η where τ ≤ τ_c, else η / τ

The paper's text and its authors' code differ. The text has no bias correction, and min(η, 1 / τ) beyond τ_c;
its rates are so small that this minimum would act beyond τ = 1,000. The code's rules are those that were run,
and the defaults here.
"""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from offbeat.algorithms.aggregators import SumOfDeltas, from_memory
from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import (
    Concurrency,
    Count,
    Epochs,
    Memory,
    Positive,
    ServerRate,
    Steps,
    Whole,
)
from offbeat.algorithms.schedules import Buffered
from offbeat.core.algorithm import Algorithm, AwareStep, StepContext
from offbeat.core.buffers import Buffers
from offbeat.core.errors import UsageError
from offbeat.core.model import Tensors
from offbeat.core.programme import programme
from offbeat.core.validation import checked_dataclass
from offbeat.local.objectives import Plain
from offbeat.vectors.chunked import for_each_chunk

__all__ = ["AMSGrad", "DelayAdaptive", "fadas"]

Delay = Annotated[Whole, Field(ge=0)]
Rule = Annotated[
    Literal["divide", "minimum"], Field(description="beyond τ_c: divide the rate by τ, or min(η, 1 / τ)")
]


@checked_dataclass
class DelayAdaptive:
    """A server's rate by the largest staleness τ of an aggregation: η up to `threshold`, then less.

    Attributes:
        threshold: τ_c, the largest staleness with the whole rate, in versions.
        rule: Beyond it, "divide" is η / τ (the authors' code), "minimum" is min(η, 1 / τ) (their text).
    """

    threshold: Annotated[Delay, Field(description="largest staleness τ_c with the whole rate")] = 1
    rule: Rule = "divide"

    def rate(self, lr: float, staleness: int) -> float:
        """The rate of a step."""
        if staleness <= self.threshold:
            return lr
        return lr / staleness if self.rule == "divide" else min(lr, 1 / staleness)


@checked_dataclass
class AMSGrad(AwareStep):
    """m := β₁ m + (1 − β₁) g; v := β₂ v + (1 − β₂) g²; v̂ := max(v̂, v); w := w + η m / (√v̂ + ε).

    With `bias_correction` m and v̂ are divided by 1 − β₁ᵗ and 1 − β₂ᵗ before, where t counts the steps from 1,
    as in PyTorch. `delay` makes η follow the staleness; None keeps it.
    """

    lr: ServerRate
    beta1: Memory = 0.9
    beta2: Memory = 0.99
    epsilon: Positive = 1e-8
    bias_correction: bool = True
    delay: DelayAdaptive | None = None
    # No adaptive step may take a running variance below 0.
    buffers: ClassVar[Buffers] = "mean"

    def transform(self, step: Tensor, memory: Tensors) -> Tensor:
        """The step of an aggregation without stale updates."""
        return self._move(step, memory, self.lr)

    def transform_aware(self, step: Tensor, memory: Tensors, about: StepContext) -> Tensor:
        """The step, at the rate of the aggregation's staleness."""
        rate = self.lr if self.delay is None else self.delay.rate(self.lr, about.staleness)
        return self._move(step, memory, rate)

    def _move(self, step: Tensor, memory: Tensors, rate: float) -> Tensor:
        """w := w + rate · m / (√v̂ + ε), in one pass over memory."""
        m, v, largest = (from_memory(memory, name, step) for name in ("m", "v", "largest"))
        t = int(memory["steps"]) + 1 if "steps" in memory else 1
        memory["steps"] = torch.tensor(t)
        first, second = (1 - self.beta1**t, 1 - self.beta2**t) if self.bias_correction else (1.0, 1.0)

        def move(g: Tensor, m: Tensor, v: Tensor, largest: Tensor) -> None:
            m.mul_(self.beta1).add_(g, alpha=1 - self.beta1)
            v.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
            torch.maximum(largest, v, out=largest)
            torch.div(m, (largest / second).sqrt_().add_(self.epsilon), out=g).mul_(rate / first)

        for_each_chunk(move, step, m, v, largest)
        return step


@algorithm(
    paper="Wang et al., FADAS: Towards Federated Adaptive Asynchronous Optimization, ICML 2024",
    kind="semi-asynchronous",
)
def fadas(
    size: Annotated[Count, Field(description="buffer size M")] = 5,
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    concurrency: Concurrency = None,
    server_lr: ServerRate = 1e-3,
    beta1: Annotated[Memory, Field(description="memory β₁ of the first moment m")] = 0.9,
    beta2: Annotated[Memory, Field(description="memory β₂ of the second moment v")] = 0.99,
    epsilon: Annotated[Positive, Field(description="ε in the denominator")] = 1e-8,
    threshold: Annotated[
        Delay | None, Field(description="largest staleness τ_c with the whole rate; None means any")
    ] = 1,
    rule: Rule = "divide",
    bias_correction: Annotated[
        bool, Field(description="whether m and v̂ are corrected for their start")
    ] = True,
) -> Algorithm:
    """A buffer whose mean change goes through AMSGrad, at a rate that falls with the delay.

    g = (1/M) Σ Δ_i; m := β₁ m + (1 − β₁) g; v := β₂ v + (1 − β₂) g²; v̂ := max(v̂, v);
    w := w + η_τ m / (√v̂ + ε), with η_τ = η where the largest staleness τ in the buffer is at most τ_c, else
    η / τ. `server_lr` is η and `size` the paper's M; the defaults are those of the authors' code.
    """
    if threshold is None and rule != "divide":
        raise UsageError(
            f"fadas: rule = {rule!r} with threshold = None is not allowed: without a threshold the rate does "
            "not follow the delay; give threshold, or leave rule out"
        )
    delay = None if threshold is None else DelayAdaptive(threshold, rule)
    return Algorithm(
        schedule=Buffered(programme(steps, epochs), size, concurrency),
        aggregator=SumOfDeltas(weights="equal"),
        objective=Plain(),
        server_steps=(AMSGrad(server_lr, beta1, beta2, epsilon, bias_correction, delay),),
    )
