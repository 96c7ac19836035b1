"""Policies of buffers such as BatchNorm's running statistics: the values of `Algorithm.buffers`.

|             | a task starts from             | the server                                          |
|-------------|--------------------------------|-----------------------------------------------------|
| "follow"    | the global model's             | treats them like parameters                         |
| "mean"      | the global model's             | takes the unweighted mean of the aggregated clients |
| "local"     | those its client ended with    | gets none, and leaves them at their initial values  |
| "recompute" | the global model's             | gets none, and leaves them at their initial values  |

Under the last two a global model has learned parameters beside initial buffers. Before it is evaluated, or
written at the end of a run, its statistics are estimated from samples of the driver's own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from offbeat.core.errors import UsageError
from offbeat.core.events import Metrics
from offbeat.core.features import NONE, Feature
from offbeat.core.layout import Layout
from offbeat.core.model import Model, Tensors
from offbeat.core.objective import FreshModel, LocalRun, Objective, ObjectiveWrapper, cut, flat

Buffers = Literal["follow", "mean", "local", "recompute"]

POLICIES: Mapping[str, str] = {
    "follow": "Floating buffers are treated like the parameters.",
    "mean": "Floating buffers are set to the unweighted mean over the aggregated clients.",
    "local": "Clients keep their buffers; those of a model that is evaluated are estimated.",
    "recompute": "No client's buffers are used; those of a model that is evaluated are estimated.",
}
"""Description of each policy, in a sentence."""

UNSENT = ("local", "recompute")
"""Policies under which a client's update has no change of its buffers."""

_FLOATING, _INTEGER = "buffers.floating", "buffers.integer"  # names in a client's state


@dataclass(frozen=True)
class OwnBuffers(ObjectiveWrapper):
    """An objective whose update has no change of the buffers, around any other objective.

    With `stateful` a task starts from the buffers with which its client's last task ended; a client's first
    task, and without `stateful` each, from those of the model.
    """

    inner: Objective
    stateful: bool

    @property
    def requires(self) -> frozenset[Feature]:
        """A client that keeps its buffers keeps state."""
        return self.inner.requires | (frozenset({Feature.CLIENT_STATE}) if self.stateful else NONE)

    def begin(self, run: LocalRun) -> None:
        """Restore the client's own buffers, before the objective inside begins."""
        run.scratch["buffers.came"] = [buffer.clone() for buffer in (*run.buffers, *run.integers)]
        restore_buffers(run.state, run.buffers, run.integers)
        self.inner.begin(run)

    def merge(self, run: LocalRun, fresh: FreshModel, loss: Callable[[], Tensor] | None) -> None:
        """Merge a fresh model with the client's buffers in place of its own, so that they are not mixed."""
        parameters = fresh.values[: len(run.parameters)]
        self.inner.merge(run, replace(fresh, values=[*parameters, *run.buffers]), loss)

    def end(self, run: LocalRun) -> Metrics:
        """Store the buffers in the client's state, and restore the model's: the update has no change."""
        metrics = self.inner.end(run)
        if self.stateful:
            own = {_FLOATING: run.buffers, _INTEGER: run.integers}
            run.state = {**run.state, **{name: flat(buffers) for name, buffers in own.items() if buffers}}
        for buffer, came in zip((*run.buffers, *run.integers), run.scratch["buffers.came"], strict=True):
            buffer.copy_(came)
        return metrics


def restore_buffers(state: Tensors, floating: Sequence[Tensor], integers: Sequence[Tensor]) -> None:
    """Write a client's own buffers, if its state has any, to those of a module."""
    for name, buffers in ((_FLOATING, floating), (_INTEGER, integers)):
        if name in state:
            for buffer, own in zip(buffers, cut(state[name], buffers), strict=False):
                buffer.copy_(own)


def own_buffers(state: Tensors, layout: Layout) -> Tensors:
    """A client's own buffers by name, if its state has any."""
    buffers_by_name: Tensors = {}
    for name, section in ((_FLOATING, "buffer"), (_INTEGER, "integer")):
        if name in state:
            entries = layout.section(section)
            buffers = [torch.empty(entry.shape, dtype=getattr(torch, entry.dtype)) for entry in entries]
            restore_buffers({name: state[name]}, buffers, buffers)
            buffers_by_name |= {entry.name: buffer for entry, buffer in zip(entries, buffers, strict=True)}
    return buffers_by_name


def unwrap_buffers(objective: Objective) -> Objective:
    """Remove the wrapper of a policy from an objective."""
    return objective.inner if isinstance(objective, OwnBuffers) else objective


def wrap_buffers(objective: Objective, policy: str) -> Objective:
    """Wrap an objective as clients train it under a policy.

    Raises `UsageError` for an unknown policy, and for an objective that cannot be trained under it.
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
    return OwnBuffers(objective, stateful=policy == "local") if policy in UNSENT else objective


# ---- the model that is evaluated ----

Finalizer = Callable[[Model], Model]
"""Turns a global model into the one that is evaluated, and written at the end."""


@runtime_checkable
class Estimator(Protocol):
    """A learner that can estimate running statistics."""

    def estimated(self, model: Model, seed: int) -> Model:
        """Return `model` with estimated running statistics; the seed alone determines the samples."""


def unchanged(model: Model) -> Model:
    """The global model itself."""
    return model


def finalizer(policy: str, learner: object, initial: Model, seed: int) -> Finalizer:
    """Make the finalizer of a run's global models.

    Args:
        policy: The policy of the buffers.
        learner: The driver's learner. None means that the driver has no samples.
        initial: The initial global model.
        seed: The run's seed.

    Raises:
        UsageError: The policy needs estimated statistics, and the learner cannot estimate them.
    """
    layout = initial.layout
    if policy not in UNSENT or layout.parameters == layout.values:
        return unchanged
    if learner is None and policy == "local":
        # The clients have the statistics.
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
    # A learner that cannot estimate fails here, not after hours.
    learner.estimated(initial, seed)
    return lambda model: learner.estimated(model, seed)
