"""What becomes of buffers such as BatchNorm's running statistics: the policies of `Algorithm.buffers`.

|             | a task starts from             | the server                                          |
|-------------|--------------------------------|-----------------------------------------------------|
| "follow"    | the global model's             | treats them like parameters                         |
| "mean"      | the global model's             | takes the unweighted mean of the aggregated clients |
| "local"     | those its client ended with    | gets none, and leaves them as they were made        |
| "recompute" | the global model's             | gets none, and leaves them as they were made        |

Under the last two a global model has parameters that were learned beside buffers that were not. Whoever
measures it, or writes it down at the end, first has its statistics estimated from samples of their own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

from offbeat.core.errors import UsageError
from offbeat.core.events import Metrics
from offbeat.core.features import NONE, Feature
from offbeat.core.model import Model
from offbeat.core.objective import FreshModel, LocalRun, Objective, ObjectiveWrapper, flat

Buffers = Literal["follow", "mean", "local", "recompute"]

POLICIES: Mapping[str, str] = {
    "follow": "Floating buffers go the way of the parameters.",
    "mean": "Floating buffers are set to the unweighted mean over the aggregated clients.",
    "local": "Clients keep their buffers; those of a model that is evaluated are estimated.",
    "recompute": "No client's buffers are used; those of a model that is evaluated are estimated.",
}
"""What each policy does, in a sentence."""

UNSENT = ("local", "recompute")
"""The policies under which a client's update says nothing of its buffers."""

_FLOATING, _INTEGER = "buffers.floating", "buffers.integer"  # in a client's state


@dataclass(frozen=True)
class OwnBuffers(ObjectiveWrapper):
    """A task's buffers are its own affair, round any other objective: its update says nothing of them.

    With `kept` a task starts from the buffers that its client's last one ended with; its first, and without
    `kept` each, from those that came with the model.
    """

    inner: Objective
    kept: bool

    @property
    def requires(self) -> frozenset[Feature]:
        """A client that keeps its buffers keeps state."""
        return self.inner.requires | (frozenset({Feature.CLIENT_STATE}) if self.kept else NONE)

    def begin(self, run: LocalRun) -> None:
        """Take up the client's own buffers, so that the objective inside knows of no others."""
        run.scratch["buffers.came"] = [buffer.clone() for buffer in (*run.buffers, *run.integers)]
        for name, buffers in ((_FLOATING, run.buffers), (_INTEGER, run.integers)):
            if name in run.state:
                at = 0
                for buffer in buffers:
                    buffer.copy_(run.state[name][at : at + buffer.numel()].view(buffer.shape))
                    at += buffer.numel()
        self.inner.begin(run)

    def merge(self, run: LocalRun, fresh: FreshModel, loss: Callable[[], Tensor]) -> None:
        """A model that comes in mid-task is seen with the client's buffers, which are no mixture then."""
        parameters = fresh.values[: len(run.parameters)]
        self.inner.merge(run, replace(fresh, values=[*parameters, *run.buffers]), loss)

    def end(self, run: LocalRun) -> Metrics:
        """Keep the buffers; put those back that came with the model, so that the update has no change."""
        metrics = self.inner.end(run)
        if self.kept:
            own = {_FLOATING: run.buffers, _INTEGER: run.integers}
            run.state = {**run.state, **{name: flat(buffers) for name, buffers in own.items() if buffers}}
        for buffer, came in zip((*run.buffers, *run.integers), run.scratch["buffers.came"], strict=True):
            buffer.copy_(came)
        return metrics


def unwrap_buffers(objective: Objective) -> Objective:
    """An objective without what a policy has put round it."""
    return objective.inner if isinstance(objective, OwnBuffers) else objective


def wrap_buffers(objective: Objective, policy: str) -> Objective:
    """An objective as clients train it under a policy.

    Raises `UsageError` for a policy that there is not, and for an objective that cannot be trained under it.
    """
    objective = unwrap_buffers(objective)
    if policy not in POLICIES:
        raise UsageError(f"buffers = {policy!r} is not allowed: choose {', '.join(POLICIES)}")
    if policy == "recompute" and Feature.REPRESENTATIONS in objective.requires:
        raise UsageError(
            f"buffers = 'recompute' is not allowed with {type(objective).__name__}, which compares with "
            "the model received, evaluated as it came, that is without running statistics: choose follow, "
            "mean or local"
        )
    return OwnBuffers(objective, kept=policy == "local") if policy in UNSENT else objective


# ---- the model that is judged ----

Finalizer = Callable[[Model], Model]
"""Makes of a global model the one that is measured, and written at the end."""


@runtime_checkable
class Estimator(Protocol):
    """A learner that can estimate running statistics."""

    def estimated(self, model: Model, seed: int) -> Model:
        """`model` with running statistics of its own, from samples that follow from the seed alone."""


def unchanged(model: Model) -> Model:
    """The global model itself."""
    return model


def finalizer(policy: str, learner: object, initial: Model, seed: int) -> Finalizer:
    """How a run's global models are completed under a policy; `learner` None: by somebody without samples.

    Raises `UsageError` where they are to be and cannot.
    """
    layout = initial.layout
    if policy not in UNSENT or layout.parameters == layout.values:
        return unchanged
    if learner is None and policy == "local":  # the clients have statistics
        return unchanged
    if learner is None:
        raise UsageError(
            "buffers = 'recompute' needs samples to estimate the model's running statistics from, and this "
            "server has none: give it test data, or choose follow, mean or local"
        )
    if not isinstance(learner, Estimator):
        raise UsageError(
            f"buffers = {policy!r} needs a learner that estimates running statistics: give "
            f"{type(learner).__name__} a method estimated(model, seed), or choose follow or mean"
        )
    learner.estimated(initial, seed)  # what cannot be done is refused now, not after hours
    return lambda model: learner.estimated(model, seed)
