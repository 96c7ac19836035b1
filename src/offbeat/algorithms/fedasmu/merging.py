"""FedASMU on the device: a fresh global model is merged in mid-training (Jia et al., 2025, Eq. 9-11).

After l* epochs the device holds w_i, trained from version o, and is sent w_g. Its weight
β = μ_β φ / (1 + μ_β φ), φ = γ_i/√g · (1 − υ_i/√(g − o + 1)), has two numbers of the device's own, moved
down the gradient of its loss on the batch at hand. The loss's gradient belongs to the merged model, where
the training goes on anyway, so it costs nothing. (The paper's Eq. 9 and 11 exchange what is before and
after the merge; this is the order in which the derivative is right.)
"""

from collections.abc import Callable, Mapping
from math import sqrt
from typing import Annotated

import torch
from pydantic import Field, InstanceOf
from torch import Tensor

from offbeat.algorithms.option_types import NonNegative, Positive
from offbeat.core.events import Metrics
from offbeat.core.features import Feature
from offbeat.core.objective import FreshModel, LocalRun, Objective, ObjectiveWrapper
from offbeat.core.validation import checked_dataclass
from offbeat.local.objectives import Plain


@checked_dataclass
class Merge:
    """The numbers γ, υ of a device's weight for a fresh model: where they start and how they are adapted."""

    gamma: Annotated[NonNegative, Field(description="where γ_i starts")] = 1.0
    upsilon: Annotated[NonNegative, Field(description="where υ_i starts")] = 0.5
    mu: Annotated[Positive, Field(description="μ_β of the device's weight")] = 1.0
    gamma_rate: Annotated[NonNegative, Field(description="learning rate η_γ")] = 1e-4
    upsilon_rate: Annotated[NonNegative, Field(description="learning rate η_υ")] = 1e-4


MergeOption = Annotated[Merge, Field(description="the numbers γ, υ of the device's weight")]


@checked_dataclass
class FreshMerge(ObjectiveWrapper):
    """w := (1 − β) w + β w_g, once in a task, round any other objective.

    Reports `beta`, and as `reward` how much the loss of the batch at hand fell: R = loss before − loss after.
    """

    inner: InstanceOf[Objective] = Plain()
    options: Merge = Merge()
    own_requires = frozenset({Feature.CLIENT_STATE, Feature.ASKING})
    own_provides = frozenset({Feature.MERGE})

    def weight(self, gamma: float, upsilon: float, clock: int, staleness: int) -> tuple[float, float, float]:
        """β, ∂β/∂γ and ∂β/∂υ at g = `clock` and g − o = `staleness` (Eq. 10).

        Where φ would be negative β is 0, and the derivatives are those at φ = 0.
        """
        root, age, mu = sqrt(clock), sqrt(staleness + 1), self.options.mu
        phi = max(0.0, gamma / root * (1 - upsilon / age))
        slope = mu / (1 + mu * phi) ** 2
        beta = mu * phi / (1 + mu * phi)
        return beta, slope / root * (1 - upsilon / age), -slope * gamma / (root * age)

    @property
    def metric_ranges(self) -> Mapping[str, tuple[float, float]]:
        """β is in [0, 1]; a reward beyond ±10⁶ would spoil the selector of all clients."""
        return {**self.inner.metric_ranges, "beta": (0.0, 1.0), "reward": (-1e6, 1e6)}

    def begin(self, run: LocalRun) -> None:
        """A client's first task starts from the given γ and υ."""
        own = self.options
        run.state.setdefault("merge", torch.tensor([own.gamma, own.upsilon], dtype=torch.float64))
        self.inner.begin(run)

    def merge(self, run: LocalRun, fresh: FreshModel, loss: Callable[[], Tensor] | None) -> None:
        """Mix the model in, buffers too, and remember the direction it moved the parameters.

        Without `loss` γ and υ stay as they are, and there is no reward.
        """
        gamma, upsilon = run.state["merge"].cpu().tolist()
        beta, by_gamma, by_upsilon = self.weight(gamma, upsilon, fresh.clock, fresh.staleness)
        with torch.no_grad():
            before = loss() if loss is not None else None
            own = [*run.values, *run.buffers]
            direction = torch._foreach_sub(list(fresh.values[: len(run.parameters)]), run.values)
            received = [value.to(w.dtype) for value, w in zip(fresh.values, own, strict=True)]
            torch._foreach_lerp_(own, received, beta)
        if before is not None:
            run.scratch["merge"] = before, direction, by_gamma, by_upsilon
        run.scratch["merged"] = {"beta": beta}

    def loss(self, run: LocalRun, loss: Tensor) -> Tensor:
        """The first loss after the merge gives the reward."""
        if "merge" in run.scratch:
            run.scratch["merged"]["reward"] = float(run.scratch["merge"][0] - loss.detach())
        return self.inner.loss(run, loss)

    def adjust(self, run: LocalRun) -> None:
        """The first gradient after the merge moves γ and υ (Eq. 11): ∂F/∂β = ∇F · (w_g − w)."""
        if "merge" in run.scratch:
            _, direction, by_gamma, by_upsilon = run.scratch.pop("merge")
            slope = float(sum(torch.sum(g * d) for g, d in zip(run.gradients, direction, strict=True)))
            own = self.options
            moves = [own.gamma_rate * slope * by_gamma, own.upsilon_rate * slope * by_upsilon]
            run.state["merge"] = run.state["merge"] - run.state["merge"].new_tensor(moves)
        self.inner.adjust(run)

    def end(self, run: LocalRun) -> Metrics:
        """Metrics of the merge, if there was one, and of the objective inside."""
        return {**run.scratch.get("merged", {}), **self.inner.end(run)}
