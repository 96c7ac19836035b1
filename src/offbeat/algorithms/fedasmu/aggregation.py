"""FedASMU's aggregation: every update is mixed in with a weight that follows the loss (Eq. 1-5)."""

from collections.abc import Sequence
from dataclasses import dataclass as plain
from math import inf, log, sqrt
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from offbeat.algorithms.aggregators import from_memory
from offbeat.algorithms.option_types import Count, NonNegative, Positive
from offbeat.core.aggregator import Aggregator, Update
from offbeat.core.features import Feature
from offbeat.core.model import Model, Tensors
from offbeat.core.validation import checked_dataclass
from offbeat.vectors.arithmetic import displacement, head, scaled


@checked_dataclass
class Controls:
    """The numbers λ, σ, ι of a client's weight: where they start and how they are adapted (Eq. 2-5)."""

    lam: Annotated[NonNegative, Field(description="where λ_i starts")] = 1.0
    sigma: Annotated[NonNegative, Field(description="where σ_i starts")] = 0.5
    iota: Annotated[NonNegative, Field(description="where ι_i starts")] = 0.0
    mu: Annotated[Positive, Field(description="μ_α of the server's weight")] = 1.0
    lam_rate: Annotated[NonNegative, Field(description="learning rate η_λ")] = 1e-4
    sigma_rate: Annotated[NonNegative, Field(description="learning rate η_σ")] = 1e-4
    iota_rate: Annotated[NonNegative, Field(description="learning rate η_ι")] = 1e-4
    gradient: Annotated[
        Literal["derived", "as_printed", "derived_epochs", "as_printed_epochs"],
        Field(description="Eq. 4-5 as derived from Eq. 2, or as printed, with L in steps or in epochs"),
    ] = "derived"
    adaptive: Annotated[bool, Field(description="adapt λ, σ, ι; false is the ablation -DA")] = True
    shared: Annotated[bool, Field(description="one λ, σ, ι for all clients: saves memory")] = False
    count_from: Annotated[
        Literal["base", "fresh"], Field(description="staleness from the base or the model merged")
    ] = "base"

    @property
    def in_epochs(self) -> bool:
        """Whether L of Eq. 4 counts epochs, as in the paper."""
        return self.gradient.endswith("epochs")


ControlsOption = Annotated[Controls, Field(description="the numbers λ, σ, ι of the server's weight")]


@plain
class ClientControls:
    """λ_i, σ_i, ι_i of one client, and the ξ, s, t its last update was mixed with (s = 0: none was)."""

    lam: float
    sigma: float
    iota: float
    xi: float = 0.0
    s: float = 0.0
    t: float = 0.0

    def xi_at(self, s: int, t: int) -> float:
        """ξ = λ / (√t s^σ) + ι (Eq. 2), not below 0."""
        return max(0.0, self.lam / (sqrt(t) * power(s, self.sigma)) + self.iota)


def power(base: float, exponent: float) -> float:
    """base^exponent, which divides: an update gone astray may carry the controls away.

    It is infinite where Python would raise, and where it would be 0 it is small.
    """
    try:
        return max(float(base**exponent), 1e-200)
    except OverflowError:
        return inf


def slopes(c: ClientControls, mu: float, gradient: str) -> tuple[float, float, float]:
    """∂α/∂λ, ∂α/∂σ, ∂α/∂ι at the ξ, s, t of the last mixing, α = μ ξ / (1 + μ ξ)."""
    slope = mu / power(1 + mu * c.xi, 2)
    by_lam = slope / (sqrt(c.t) * power(c.s, c.sigma))
    if gradient.startswith("as_printed"):
        return by_lam, -by_lam * log(c.sigma) if c.sigma > 0 else 0.0, slope
    return by_lam, -by_lam * c.lam * log(c.s), slope


@checked_dataclass
class AdaptiveMixing(Aggregator):
    """w := (1 − α) w + α w_i, α = μ_α ξ / (1 + μ_α ξ), ξ = λ_i / (√t s^σ_i) + ι_i (Eq. 1-3).

    With `controls.adaptive`, a client's λ, σ, ι take a step down the loss at its every update but the first:
    ∂F/∂α ≈ g · D_i, where D_i = w_i − w is where its last update moved the model and
    g = (w_o − w_i) / (η_i L) the mean gradient of this one. That keeps one model for each client that has
    ever uploaded; `controls.shared` has all clients use the same λ, σ, ι and D instead.

    L counts local steps. Where `controls.gradient` ends in "epochs" it is `epochs`, those of a task, so that
    g is the sum of the gradients of a mean epoch.
    """

    controls: Controls = Controls()
    epochs: Count | None = None
    requires = frozenset({Feature.SINGLE_UPDATES})

    def __post_init__(self) -> None:
        """Refuse to count epochs where tasks have none."""
        if self.controls.in_epochs and self.epochs is None:
            raise ValueError(
                f"controls.gradient = {self.controls.gradient} is not allowed with steps: give epochs"
            )

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """Mix the updates in one after the other."""
        d = model.layout.parameters
        step = self._mixed(updates[0], model.values, d, memory)
        for update in updates[1:]:
            step.add_(self._mixed(update, model.values + step, d, memory))
        return step

    def _mixed(self, update: Update, w: Tensor, d: int, memory: Tensors) -> Tensor:
        """α (w_i − w), after the control step of its client."""
        controls, task = self.controls, update.task
        key = "all" if controls.shared else str(task.client)
        c = self._load(key, memory)
        if controls.adaptive and c.s > 0:
            slope = _mean_gradient_along(memory[f"direction {key}"], update, d)
            if controls.in_epochs and self.epochs is not None:
                slope *= update.task.steps / self.epochs
            self._descend(c, slope)
        start = task.base if controls.count_from == "base" or task.fresh is None else task.fresh
        t = task.base + task.staleness + 1
        c.s, c.t = t - start, update.note.get("round", t)
        c.xi = c.xi_at(int(c.s), int(c.t))
        alpha = controls.mu * c.xi / (1 + controls.mu * c.xi)
        direction = displacement(update.base.values, update.delta, w)  # D_i = w_i − w
        if controls.adaptive:
            _save(key, c, head(direction, d), memory)
        return scaled(direction, alpha, direction)

    def _load(self, key: str, memory: Tensors) -> ClientControls:
        if (saved := memory.get(f"controls {key}")) is not None:
            return ClientControls(*saved.tolist())
        return ClientControls(self.controls.lam, self.controls.sigma, self.controls.iota)

    def _descend(self, c: ClientControls, slope: float) -> None:
        """λ := λ − η_λ ∂F/∂α ∂α/∂λ, and so on (Eq. 3)."""
        own = self.controls
        slope = -slope if own.gradient.startswith("as_printed") else slope
        by_lam, by_sigma, by_iota = slopes(c, own.mu, own.gradient)
        c.lam -= own.lam_rate * slope * by_lam
        c.sigma = max(0.0, c.sigma - own.sigma_rate * slope * by_sigma)
        c.iota -= own.iota_rate * slope * by_iota


def _save(key: str, c: ClientControls, direction: Tensor, memory: Tensors) -> None:
    values = np.array((c.lam, c.sigma, c.iota, c.xi, c.s, c.t))
    memory[f"controls {key}"] = torch.from_numpy(values)
    from_memory(memory, f"direction {key}", direction).copy_(direction)


def _mean_gradient_along(direction: Tensor, update: Update, d: int) -> float:
    """g · D, with g = (w_o − w_i + β (w_g − w_o)) / (η_i ((1 − β) L' + L − L')).

    A fresh model merged after L' of L steps has left β (w_g − w_before) in w_i, and only 1 − β of the
    gradients before it: what is left of the difference is a weighted sum of gradients.
    """
    steps, beta = float(update.task.steps), update.metrics.get("beta", 0.0)
    along = -float(torch.dot(head(update.delta, d), direction))
    if beta and update.fresh is not None:
        along += beta * float(torch.dot(head(update.fresh.values, d), direction))
        along -= beta * float(torch.dot(head(update.base.values, d), direction))
        steps -= beta * update.task.ask_after
    # A client reports both numbers; from a true report the weight is above 0.
    weight = update.lr * steps
    return along / weight if weight > 0 else 0.0
