"""FedDyn: dynamic regularisation (Acar et al., ICLR 2021, Algorithm 1).

A client's loss has a linear and a quadratic term, f(w) − ⟨g_i, w⟩ + (α/2)‖w − w_o‖², where g_i is f's own
gradient at the end of the last task, if that ended in an optimum. The server keeps h, the mean of the g_i
over all m clients, and goes −h/α beyond the mean of the models.

The paper's server feeds h with w_i − w. Here h is fed with Δ_i = w_i − w_o, which is what the client's g_i is
fed with. In rounds the two are the same.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from offbeat.algorithms.aggregators import from_memory, toward_bases, toward_models
from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import Concurrency, Epochs, Positive, Steps
from offbeat.algorithms.schedules import Rounds
from offbeat.core.aggregator import FullWeight, SumOnly, Update, UpdateSum
from offbeat.core.algorithm import Algorithm
from offbeat.core.events import Metrics
from offbeat.core.features import Feature
from offbeat.core.model import Model, Tensors
from offbeat.core.objective import LocalRun, Objective, flat
from offbeat.core.programme import programme
from offbeat.core.schedule import Task
from offbeat.core.validation import checked_dataclass

__all__ = ["Dynamic", "DynamicMean", "feddyn"]

Alpha = Annotated[Positive, Field(description="weight α of the regularisation")]


@checked_dataclass
class Dynamic(Objective):
    """loss − ⟨g_i, w⟩ + (α/2)‖w − w_o‖², and g_i := g_i − α(w_i − w_o) at the end; the state is g_i."""

    alpha: Alpha
    requires = frozenset({Feature.CLIENT_STATE})
    provides = frozenset({Feature.CORRECTION})

    def begin(self, run: LocalRun) -> None:
        """g_i, which is 0 before the first task."""
        run.scratch["g"] = run.shaped(run.state.setdefault("g", torch.zeros_like(flat(run.anchor))))

    def adjust(self, run: LocalRun) -> None:
        """Add −g_i + α(w − w_o) to each gradient."""
        torch._foreach_sub_(run.gradients, list(run.scratch["g"]))
        torch._foreach_add_(run.gradients, self._drift(run))

    def end(self, run: LocalRun) -> Metrics:
        """g_i := g_i − α(w_i − w_o)."""
        run.state["g"] = run.state["g"] - flat(self._drift(run))
        return {}

    def _drift(self, run: LocalRun) -> list[Tensor]:
        """α(w − w_o)."""
        return [self.alpha * (w - w_o) for w, w_o in zip(run.values, run.anchor, strict=True)]


@checked_dataclass
class DynamicMean(SumOnly):
    """h := h − (α/m) Σ Δ_i; w := mean of the w_i − h/α, over m clients in all; buffers: the mean alone.

    m is the population at the newest arrival, for all of an aggregation.
    """

    alpha: Alpha
    requires = frozenset({Feature.CORRECTION})
    equal_weights = True

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """Toward the unweighted mean of the clients' models, less the drift h/α."""
        return self._step(updates, model, memory)

    def step_in_place(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """The step, in place of the first Δ."""
        return self._step(updates, model, memory, updates[0].delta)

    def _step(
        self, updates: Sequence[Update], model: Model, memory: Tensors, out: Tensor | None = None
    ) -> Tensor:
        d = model.layout.parameters
        h = from_memory(memory, "h", model.values[:d])
        alpha = self.alpha / _population([u.task for u in updates])
        for update in updates:
            h.sub_(update.delta[:d], alpha=alpha)
        step = toward_models(updates, [1 / len(updates)] * len(updates), model, out)
        step[:d].sub_(h, alpha=1 / self.alpha)
        return step

    def importances(self, tasks: Sequence[Task], full: FullWeight, note: Mapping[str, Any]) -> list[float]:
        """1 for each."""
        return [1.0] * len(tasks)

    def sum_scale(self, tasks: Sequence[Task], importances: Sequence[float], full: FullWeight) -> float:
        """1 / k."""
        return 1 / len(tasks)

    def from_sum(self, summed: UpdateSum, model: Model, memory: Tensors) -> Tensor:
        """Both sums of the updates are multiples of this one."""
        d, k = model.layout.parameters, len(summed.tasks)
        h = from_memory(memory, "h", model.values[:d])
        h.sub_(summed.total[:d], alpha=self.alpha * k / _population(summed.tasks))
        step = toward_bases(summed, model)
        step[:d].sub_(h, alpha=1 / self.alpha)
        return step


def _population(tasks: Sequence[Task]) -> int:
    """The population m at the newest arrival of these."""
    return max(tasks, key=lambda task: task.arrival).population


@algorithm(
    paper="Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, Algorithm 1, Eq. 1",
    kind="synchronous",
)
def feddyn(
    steps: Steps = None, epochs: Epochs = None, *, clients_per_round: Concurrency = None, alpha: Alpha = 0.01
) -> Algorithm:
    """FedAvg with modified losses at the clients, so that their optima agree with the global one.

    The client minimises loss − ⟨g_i, w⟩ + (α/2)‖w − w_o‖², then g_i := g_i − α(w_i − w_o). The server:
    h := h − (α/m) Σ (w_i − w), w := the unweighted mean of the w_i − h/α. The paper tunes α; the default
    is our choice. A client keeps one vector of the parameters' size.
    """
    return Algorithm(
        schedule=Rounds(programme(steps, epochs), clients_per_round),
        aggregator=DynamicMean(alpha),
        objective=Dynamic(alpha),
    )
