"""FedASMU: staleness-aware model updates, on the server and on the device (Liu et al., AAAI 2024;
Jia et al., Efficient Federated Learning with Timely Update Dissemination, 2025).

The server triggers devices periodically and mixes every update in as it comes, with a weight of its
client's own that follows the loss (Algorithm 1, Eq. 1-5). The device's side is in `fedasmu_merge`
(Eq. 9-11), the moment of its request in `fedasmu_request`.

Where the paper leaves something open or slips:

- the threshold of Algorithm 1, line 4, below which a trigger counts, has no value in the paper. τ_max = 99 of
  m = 100 devices is only reached where nearly all may train at once, so by default every trigger counts;
- versions count from 1 in √t, and staleness is s = t − o + 1, so an update of the current version has
  s = 1; one that is discarded does not advance t;
- Eq. 4-5 as printed are not the derivative of Eq. 2: the direction of the client's progress stands for
  its gradient (w_i − w_o for w_o − w_i), ∂α/∂σ has ln(σ) for ln(s) and lacks λ. The derivative is the
  default here, `gradient="as_printed"` takes theirs;
- η_i·L in Eq. 4 counts epochs; with local steps instead g is the mean gradient, whatever the batch size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass as plain
from math import inf, log, sqrt
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from offbeat.algorithms.fedasmu_merge import FreshMerge
from offbeat.algorithms.fedasmu_request import (
    FixedTiming,
    LearnedTiming,
    NoRequests,
    RequestFreshModel,
    Selector,
)
from offbeat.algorithms.registry import Epochs, Steps, algorithm
from offbeat.algorithms.schedules import train
from offbeat.core.algorithm import Aggregator, Algorithm, Schedule, Update, View
from offbeat.core.commands import Aggregate, Command, Drop, SetTimer
from offbeat.core.events import Arrived, Begin, Event, Joined, Timer
from offbeat.core.features import Feature
from offbeat.core.model import Model, Tensors
from offbeat.core.objective import Objective
from offbeat.core.programme import Programme
from offbeat.core.validation import STRICT
from offbeat.local.objectives import Plain
from offbeat.vectors.arithmetic import displacement, head, scaled

Count = Annotated[int, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# options that FedSSMU has too
Lam = Annotated[float, Field(ge=0, allow_inf_nan=False, description="where λ_i starts")]
Sigma = Annotated[float, Field(ge=0, allow_inf_nan=False, description="where σ_i starts")]
Iota = Annotated[float, Field(ge=0, allow_inf_nan=False, description="where ι_i starts")]
MuAlpha = Annotated[float, Field(gt=0, allow_inf_nan=False, description="μ_α of the server's weight")]
Shared = Annotated[bool, Field(description="one λ, σ, ι for all clients: saves memory")]
AskEvery = Annotated[
    int | None, Field(ge=1, description="local steps between possible requests; none: an epoch")
]
Gamma = Annotated[float, Field(ge=0, allow_inf_nan=False, description="where γ_i starts")]
Upsilon = Annotated[float, Field(ge=0, allow_inf_nan=False, description="where υ_i starts")]
MuBeta = Annotated[float, Field(gt=0, allow_inf_nan=False, description="μ_β of the device's weight")]
TIMER = "trigger"


@plain
class Triggering:
    """Is the next trigger set? It is not while nobody is there."""

    set: bool = False


@dataclass(frozen=True, config=STRICT)
class Periodic(Schedule):
    """Every `period` seconds `size` idle clients start, or all there are, if fewer than `threshold` train.

    So at most `threshold` − 1 + `size` train at the same time. A threshold of None means that every trigger
    counts. Each update is aggregated as it comes; one staler than `tau_max` (s = τ + 1) is dropped.
    """

    programme: Programme
    period: Positive
    size: Count
    threshold: Count | None = None
    tau_max: Count | None = None

    @property
    def concurrency(self) -> int | None:
        """Every client may train: the threshold bounds how many trained before a trigger, not after it."""
        return None

    def initial(self) -> Triggering:
        """No trigger yet."""
        return Triggering()

    def on(self, event: Event, state: Triggering, view: View) -> Iterator[Command]:
        """Algorithm 1, the server's two threads."""
        match event:
            case Arrived():
                s = view.task(event.task).staleness + 1
                if self.tau_max is not None and s > self.tau_max:
                    yield Drop(event.task, f"staleness {s} is above tau_max = {self.tau_max}")
                else:
                    yield Aggregate((event.task,))
            case Begin() | Timer():
                yield from self._trigger(state, view)
            case Joined() if not state.set:
                yield from self._trigger(state, view)
            case _:
                pass

    def _trigger(self, state: Triggering, view: View) -> Iterator[Command]:
        if self.threshold is None or view.running < self.threshold:  # line 4
            for client in view.sample_idle(self.size):
                yield train(client, self.programme, view)
        state.set = len(view.fleet) > 0
        if state.set:
            yield SetTimer(TIMER, view.now + self.period)


@plain
class Controls:
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
    """base^exponent, infinite where Python would raise: an update gone astray may carry the controls away."""
    try:
        return float(base**exponent)
    except OverflowError:
        return inf


def slopes(c: Controls, mu: float, gradient: str) -> tuple[float, float, float]:
    """∂α/∂λ, ∂α/∂σ, ∂α/∂ι at the ξ, s, t of the last mixing, α = μ ξ / (1 + μ ξ)."""
    slope = mu / power(1 + mu * c.xi, 2)
    by_lam = slope / (sqrt(c.t) * power(c.s, c.sigma))
    if gradient == "as_printed":
        return by_lam, -by_lam * log(c.sigma) if c.sigma > 0 else 0.0, slope
    return by_lam, -by_lam * c.lam * log(c.s), slope


@dataclass(frozen=True, config=STRICT)
class AdaptiveMixing(Aggregator):
    """w := (1 − α) w + α w_i, α = μ_α ξ / (1 + μ_α ξ), ξ = λ_i / (√t s^σ_i) + ι_i (Eq. 1-3).

    With `adaptive`, a client's λ, σ, ι take a step down the loss at its every update but the first:
    ∂F/∂α ≈ g · D_i, where D_i = w_i − w is where its last update moved the model and
    g = (w_o − w_i) / (η_i L) the mean gradient of this one. That keeps one model for each client that has
    ever uploaded; `share_controls` has all clients use the same λ, σ, ι and D instead.
    `count_from` says what staleness counts from: the version trained from or the one merged in mid-task.
    """

    lam: NonNegative = 1.0
    sigma: NonNegative = 0.5
    iota: NonNegative = 0.0
    mu: Positive = 1.0
    lam_rate: NonNegative = 1e-4
    sigma_rate: NonNegative = 1e-4
    iota_rate: NonNegative = 1e-4
    gradient: Literal["derived", "as_printed"] = "derived"
    adaptive: bool = True
    share_controls: bool = False
    count_from: Literal["base", "fresh"] = "base"
    requires = frozenset({Feature.SINGLE_UPDATES})

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """Mix the updates in one after the other."""
        d = model.layout.parameters
        step = self._mixed(updates[0], model.values, d, memory)
        for update in updates[1:]:
            step.add_(self._mixed(update, model.values + step, d, memory))
        return step

    def _mixed(self, update: Update, w: Tensor, d: int, memory: Tensors) -> Tensor:
        """α (w_i − w), after the control step of its client."""
        key = "all" if self.share_controls else str(update.task.client)
        controls = self._controls(key, memory)
        if self.adaptive and controls.s > 0:
            self._descend(controls, _mean_gradient_along(memory[f"direction {key}"], update, d))
        task = update.task
        start = task.base if self.count_from == "base" or task.fresh is None else task.fresh
        t = task.base + task.staleness + 1
        controls.s, controls.t = t - start, update.note.get("round", t)
        controls.xi = controls.xi_at(int(controls.s), int(controls.t))
        alpha = self.mu * controls.xi / (1 + self.mu * controls.xi)
        direction = displacement(update.base.values, update.delta, w)  # D_i = w_i − w
        if self.adaptive:
            self._remember(key, controls, head(direction, d), memory)
        return scaled(direction, alpha, direction)

    def _controls(self, key: str, memory: Tensors) -> Controls:
        saved = memory.get(f"controls {key}")
        return Controls(self.lam, self.sigma, self.iota) if saved is None else Controls(*saved.tolist())

    def _descend(self, c: Controls, slope: float) -> None:
        """λ := λ − η_λ ∂F/∂α ∂α/∂λ, and so on (Eq. 3)."""
        slope = -slope if self.gradient == "as_printed" else slope
        by_lam, by_sigma, by_iota = slopes(c, self.mu, self.gradient)
        c.lam -= self.lam_rate * slope * by_lam
        c.sigma = max(0.0, c.sigma - self.sigma_rate * slope * by_sigma)
        c.iota -= self.iota_rate * slope * by_iota

    def _remember(self, key: str, c: Controls, direction: Tensor, memory: Tensors) -> None:
        values = np.array((c.lam, c.sigma, c.iota, c.xi, c.s, c.t))
        memory[f"controls {key}"] = torch.from_numpy(values)
        before = memory.get(f"direction {key}")
        if before is None:
            memory[f"direction {key}"] = direction.clone()
        else:
            before.copy_(direction)


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
    weight = update.lr * steps  # of what a client says: above 0, if it is true
    return along / weight if weight > 0 else 0.0


def device(
    ask: FixedTiming | LearnedTiming | NoRequests, every: int | None, schedule: Schedule, merge: FreshMerge
) -> tuple[Schedule, Objective]:
    """Schedule and objective with requests for fresh models; as they are, if there are to be none (-FA)."""
    if isinstance(ask, NoRequests):
        return schedule, merge.inner
    return RequestFreshModel(schedule, ask, every), merge


@algorithm(
    paper="Liu et al., FedASMU: Efficient Asynchronous Federated Learning with Dynamic Staleness-aware Model "
    "Update, AAAI 2024; Jia et al., 2025, Algorithms 1-2, Eq. 1-11",
    removed={"limit": "give `threshold`: a trigger counts while fewer train, and starts all m' (`size`)"},
)
def fedasmu(
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    size: Annotated[int, Field(ge=1, description="clients triggered at a time m'")] = 10,
    period: Annotated[
        float, Field(gt=0, allow_inf_nan=False, description="seconds 𝒯 between triggers")
    ] = 10.0,
    threshold: Annotated[
        int | None, Field(ge=1, description="a trigger counts while fewer train; none: always")
    ] = None,
    tau_max: Annotated[int, Field(ge=1, description="most staleness s = t − o + 1 of an update used")] = 99,
    lam: Lam = 1.0,
    sigma: Sigma = 0.5,
    iota: Iota = 0.0,
    mu: MuAlpha = 1.0,
    lam_rate: Annotated[float, Field(ge=0, allow_inf_nan=False, description="learning rate η_λ")] = 1e-4,
    sigma_rate: Annotated[float, Field(ge=0, allow_inf_nan=False, description="learning rate η_σ")] = 1e-4,
    iota_rate: Annotated[float, Field(ge=0, allow_inf_nan=False, description="learning rate η_ι")] = 1e-4,
    gradient: Annotated[
        Literal["derived", "as_printed"], Field(description="Eq. 4-5 as derived from Eq. 2, or as printed")
    ] = "derived",
    adaptive: Annotated[bool, Field(description="adapt λ, σ, ι; false is the ablation -DA")] = True,
    share_controls: Shared = False,
    count_from: Annotated[
        Literal["base", "fresh"], Field(description="staleness from the base or the model merged")
    ] = "base",
    ask: Selector = LearnedTiming(),
    ask_every: AskEvery = None,
    gamma: Gamma = 1.0,
    upsilon: Upsilon = 0.5,
    mu_beta: MuBeta = 1.0,
    gamma_rate: Annotated[float, Field(ge=0, allow_inf_nan=False, description="learning rate η_γ")] = 1e-4,
    upsilon_rate: Annotated[float, Field(ge=0, allow_inf_nan=False, description="learning rate η_υ")] = 1e-4,
) -> Algorithm:
    """Updates are mixed in with weights that follow the loss; devices merge a fresh model in mid-training.

    w := (1 − α) w + α w_i, α = μ_α ξ / (1 + μ_α ξ), ξ = λ_i / (√t s^σ_i) + ι_i. After l* epochs a device
    merges the current model: w := (1 − β) w + β w_g. Five local epochs when neither `steps` nor `epochs`
    is given: a task needs two to ask. The paper gives m' = 10, 𝒯 = 10, τ_max = 99 and the rates;
    the threshold, where λ, σ, ι, γ, υ start, μ_α and μ_β are ours.
    """
    programme = Programme(steps, epochs) if steps or epochs else Programme(epochs=5)
    schedule, objective = device(
        ask, ask_every,
        Periodic(programme, period, size, threshold, tau_max),
        FreshMerge(Plain(), gamma, upsilon, mu_beta, gamma_rate, upsilon_rate),
    )  # fmt: skip
    return Algorithm(
        schedule=schedule,
        aggregator=AdaptiveMixing(
            lam,
            sigma,
            iota,
            mu,
            lam_rate,
            sigma_rate,
            iota_rate,
            gradient,
            adaptive,
            share_controls,
            count_from,
        ),
        objective=objective,
    )
