"""Algorithms: compositions of independent parts.

| part        | decides                                                                        |
|-------------|--------------------------------------------------------------------------------|
| schedule    | which client trains when, how long, and which arrivals are aggregated together |
| aggregator  | how these updates change the global model (with its staleness weight)          |
| server step | how that change is transformed before it is applied                            |
| objective   | which function a client minimises                                              |
| programme   | how long a client trains in one task (a field of the schedules that use it)    |

A schedule sees numbers only, never tensors; an aggregator sees tensors only, never time. So a journal can be
replayed without a model, and a model be trained ahead of the clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct
from torch import Tensor

from offbeat.core.aggregator import Aggregator
from offbeat.core.buffers import UNSENT, Buffers, wrap_buffers
from offbeat.core.codec import Codec
from offbeat.core.errors import UsageError
from offbeat.core.events import Version
from offbeat.core.features import DRIVERS, Feature
from offbeat.core.layout import Layout
from offbeat.core.model import Tensors
from offbeat.core.objective import Objective
from offbeat.core.schedule import NoteFallbacks, Schedule, Task, unwrap_schedule


class ServerStep(Protocol):
    """Transforms the aggregator's step before it is applied (momentum, FedOpt, clipping…)."""

    def transform(self, step: Tensor, memory: Tensors) -> Tensor:
        """Transform a step.

        Args:
            step: The step over the flat values, float32 [values]; may be changed.
            memory: This part's state in this run, empty at first, to be changed as an aggregator's.

        Returns:
            The step to apply; may be `step` itself.
        """


class StepContext(Struct, frozen=True):
    """What a server step may know of an aggregation beside its step: numbers only.

    They are known of masked updates too.

    Attributes:
        tasks: The tasks whose updates were used, with staleness, samples and share.
        version: Number of the version to be made.
        note: Note of the schedule.
    """

    tasks: Sequence[Task]
    version: Version
    note: Mapping[str, Any]

    @property
    def staleness(self) -> int:
        """The largest staleness of its updates, in versions."""
        return max(task.staleness for task in self.tasks)


@runtime_checkable
class AwareStep(ServerStep, Protocol):
    """A server step that follows what is known of the aggregation, such as the staleness of its updates."""

    def transform_aware(self, step: Tensor, memory: Tensors, about: StepContext) -> Tensor:
        """Transform a step, in place of `transform`.

        Args:
            step: As of `transform`.
            memory: As of `transform`.
            about: The aggregation that the step is of.

        Returns:
            The step, as of `transform`.
        """


@dataclass(frozen=True)
class Algorithm:
    """A complete algorithm, as every driver takes it.

    Attributes:
        schedule: Which client trains when, and which updates are aggregated together.
        aggregator: The step of the global model.
        objective: The local objective. Under the buffers "local" and "recompute" it is wrapped in
            `OwnBuffers`.
        server_steps: Transformations of the step, applied in order.
        buffers: Policy of the floating-point buffers, such as BatchNorm's running statistics. "follow" treats
            them like parameters; "mean" sets them to the unweighted mean over the aggregated clients (as
            FedCompass's authors do); integer buffers take the newest update's. "local" leaves each client its
            buffers of either kind (FedBN, as far as running statistics go), "recompute" uses no client's;
            then the model that is evaluated has estimated statistics. None becomes the policy that aggregator
            and server steps are made for.
        codec: Compression of the updates. None means no compression.
        name: Name, set by the registry.
        hyperparameters: Options by name, set by the registry.

    Raises:
        UsageError: A part requires a feature that no other part provides, or the buffers do not fit.
    """

    schedule: Schedule
    aggregator: Aggregator
    objective: Objective
    server_steps: tuple[ServerStep, ...] = ()
    buffers: Buffers = None  # type: ignore[assignment]
    codec: Codec | None = None
    name: str = "custom"
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that the parts fit, choose the policy of the buffers, and wrap objective and schedule."""
        if self.buffers is None:
            object.__setattr__(self, "buffers", usual_buffers(self.aggregator, self.server_steps))
        object.__setattr__(self, "objective", wrap_buffers(self.objective, self.buffers))
        object.__setattr__(self, "schedule", self._marked_schedule())
        parts = (self.schedule, self.aggregator, self.objective)
        provided = frozenset[Feature]().union(*(part.provides for part in parts))
        for part in parts:
            for feature in sorted(part.requires - provided - DRIVERS):
                title = part.title if part is self.aggregator else type(part).__name__
                raise UsageError(f"{title} needs {feature.description}")

    def _marked_schedule(self) -> Schedule:
        """The schedule, which marks fallbacks where there may be some."""
        schedule, least = unwrap_schedule(self.schedule), self.aggregator.least
        if least <= 1:
            return schedule
        largest = schedule.largest_aggregation
        if largest is not None and largest < least:
            found = "each by itself" if largest == 1 else f"at most {largest}"
            raise UsageError(
                f"{self.aggregator.title} needs {least} updates at a time, {self.name} aggregates {found}: "
                "let it aggregate more, or choose an aggregator that needs fewer, such as centered_clip"
            )
        return NoteFallbacks(schedule, least)

    @property
    def requires(self) -> frozenset[Feature]:
        """Features required of the driver."""
        parts = (self.schedule, self.aggregator, self.objective)
        return frozenset[Feature]().union(*(part.requires for part in parts)) & DRIVERS


def usual_buffers(aggregator: Aggregator, server_steps: Iterable[ServerStep]) -> Buffers:
    """The policy of the floating buffers that some parts are made for: "mean" where one of them needs it."""
    of_steps = (getattr(step, "buffers", "follow") for step in server_steps)
    return "mean" if "mean" in (aggregator.buffers, *of_steps) else aggregator.buffers


def check_layout(algorithm: Algorithm, layout: Layout) -> None:
    """Check that an aggregator that bounds a client's influence sees all that clients send.

    Raises:
        UsageError: The clients' floating buffers go past it.
    """
    robust = Feature.BOUNDED in algorithm.aggregator.provides
    if robust and layout.parameters < layout.values and algorithm.buffers not in UNSENT:
        raise UsageError(
            f"buffers = {algorithm.buffers!r} is not allowed with {algorithm.aggregator.title}, which bounds "
            "parameters only, and a model with floating buffers: choose local or recompute"
        )
