"""FedASMU: staleness-aware model updates, on the server and on the device (Liu et al., AAAI 2024;
Jia et al., Efficient Federated Learning with Timely Update Dissemination, 2025).

The server triggers devices periodically and mixes every update in as it comes, with a weight of its
client's own that follows the loss (Algorithm 1, Eq. 1-5). The equations of the
server are in `aggregation`, the device's in `merging` (Eq. 9-11), the moment of its request in `requests`.
`fedssmu` has the same equations in synchronous rounds.

Where the paper leaves something open or slips:

- the threshold of Algorithm 1, line 4, below which a trigger counts, has no value in the paper. τ_max = 99 of
  m = 100 devices is only reached where nearly all may train at once, so by default every trigger counts;
- versions count from 1 in √t, and staleness is s = t − o + 1, so an update of the current version has
  s = 1; one that is discarded does not advance t;
- Eq. 4-5 as printed are not the derivative of Eq. 2: the direction of the client's progress stands for
  its gradient (w_i − w_o for w_o − w_i), ∂α/∂σ has ln(σ) for ln(s) and lacks λ. The derivative is the
  default here, `Controls(gradient="as_printed")` takes theirs;
- η_i·L in Eq. 4 counts epochs; with local steps instead g is the mean gradient, whatever the batch size.
  `Controls(gradient="derived_epochs")` and `"as_printed_epochs"` count epochs.
"""

from collections.abc import Iterator
from dataclasses import dataclass as plain
from typing import Annotated

from pydantic import Field

from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.fedasmu.aggregation import AdaptiveMixing, Controls, ControlsOption
from offbeat.algorithms.fedasmu.merging import FreshMerge, Merge, MergeOption
from offbeat.algorithms.fedasmu.requests import (
    AskEvery,
    FixedTiming,
    LearnedTiming,
    NoRequests,
    RequestFreshModel,
    Selector,
    with_requests,
)
from offbeat.algorithms.option_types import Count, Epochs, Positive, Steps
from offbeat.algorithms.schedules import train
from offbeat.core.algorithm import Algorithm
from offbeat.core.commands import Aggregate, Command, Drop, SetTimer
from offbeat.core.events import Arrived, Begin, Event, Joined, Timer
from offbeat.core.programme import Programme, programme
from offbeat.core.schedule import Schedule, View
from offbeat.core.validation import checked_dataclass
from offbeat.local.objectives import Plain

__all__ = [
    "AdaptiveMixing",
    "Controls",
    "FixedTiming",
    "FreshMerge",
    "LearnedTiming",
    "Merge",
    "NoRequests",
    "Periodic",
    "RequestFreshModel",
    "fedasmu",
]
_CONTROLS = ("lam", "sigma", "iota", "mu", "lam_rate", "sigma_rate", "iota_rate", "gradient", "adaptive",
             "count_from")  # fmt: skip
_MERGE = ("gamma", "upsilon", "gamma_rate", "upsilon_rate")
MOVED = {
    **{name: f"give controls.{name}" for name in _CONTROLS},
    **{name: f"give merge.{name}" for name in _MERGE},
    "share_controls": "give controls.shared",
    "mu_beta": "give merge.mu",
}
"""Options that have moved into option objects, for runs and recipes from before."""
Size = Annotated[Count, Field(description="clients triggered at a time m'")]
Period = Annotated[Positive, Field(description="seconds 𝒯 between triggers, for tasks about as long")]
Threshold = Annotated[
    Count | None, Field(description="a trigger counts while fewer train; None means always")
]
TIMER = "trigger"


@plain
class Triggering:
    """Whether the next trigger is set. It is not while no client is present."""

    set: bool = False


@checked_dataclass
class Periodic(Schedule):
    """Every `period` seconds `size` idle clients start, or all there are, if fewer than `threshold` train.

    So at most `threshold` − 1 + `size` train at the same time: any client may, as the threshold bounds how
    many trained before a trigger, not after it. A threshold of None means that every trigger counts. Each
    update is aggregated as it comes; one staler than `tau_max` (s = τ + 1) is dropped.
    """

    programme: Programme
    period: Period
    size: Size
    threshold: Threshold = None
    tau_max: Count | None = None
    snapshots = True

    @property
    def largest_aggregation(self) -> int | None:
        """Each update is aggregated as it comes."""
        return 1

    def initial(self) -> Triggering:
        """No trigger is set yet."""
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

    def _trigger(self, state: Triggering, view: View) -> Iterator[Command]:
        if self.threshold is None or view.running < self.threshold:  # line 4
            for client in view.sample_idle(self.size):
                yield train(client, self.programme, view)
        state.set = len(view.fleet) > 0
        if state.set:
            yield SetTimer(TIMER, view.now + self.period)


@algorithm(
    paper="Liu et al., FedASMU: Efficient Asynchronous Federated Learning with Dynamic Staleness-aware Model "
    "Update, AAAI 2024; Jia et al., 2025, Algorithms 1-2, Eq. 1-11",
    kind="asynchronous",
    removed={
        "limit": "give `threshold`: a trigger counts while fewer train, and starts all m' (`size`)",
        **MOVED,
    },
)
def fedasmu(
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    size: Size = 10,
    period: Period = 10.0,
    threshold: Threshold = None,
    tau_max: Annotated[Count, Field(description="most staleness s = t − o + 1 of an update used")] = 99,
    controls: ControlsOption = Controls(),
    ask: Selector = LearnedTiming(),
    ask_every: AskEvery = None,
    merge: MergeOption = Merge(),
) -> Algorithm:
    """Updates are mixed in with weights that follow the loss; clients merge a fresh model during a task.

    w := (1 − α) w + α w_i, α = μ_α ξ / (1 + μ_α ξ), ξ = λ_i / (√t s^σ_i) + ι_i. After l* epochs a client
    merges the current model: w := (1 − β) w + β w_g. A task has five local epochs if neither `steps` nor
    `epochs` is given, because a request needs two: a task of one epoch never asks. The paper gives m' = 10,
    𝒯 = 10, τ_max = 99 and the rates. The threshold, the start of λ, σ, ι, γ, υ, and μ_α and μ_β are our
    choice.
    """
    local = programme(steps, epochs, otherwise=5)
    server = Periodic(local, period=period, size=size, threshold=threshold, tau_max=tau_max)
    schedule, objective = with_requests(server, FreshMerge(Plain(), merge), ask, ask_every)
    return Algorithm(schedule, AdaptiveMixing(controls, local.epochs), objective)
