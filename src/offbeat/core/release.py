"""How a version follows from its updates: each of them by itself, or their sum alone.

Engine and global model know the contract `Release` only. Without privacy it is `EachUpdate`, which adds
nothing to what the algorithm says. With privacy a version is made of one sum of its updates
(`core.privacy.releases`). Where the server learns that sum from helpers, a version and all that is commanded
after it wait for them.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from offbeat.core.aggregator import Aggregator, Update
from offbeat.core.client_cache import ClientCache
from offbeat.core.commands import Aggregate, Command
from offbeat.core.errors import AlgorithmError
from offbeat.core.events import ClientId, Event, Released, TaskId
from offbeat.core.guard import UpdateGuard
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model, Tensors

Check = Callable[[ClientId, TaskId, int, LocalResult], str | None]
"""Returns why an update is refused, given client, task, number of local steps, and the update."""


class Release(Protocol):
    """Makes the steps to the versions of a run.

    Attributes:
        fewest: Fewest updates of which a version is made.
        memory: What it keeps from one version to the next, by name; saved with the run.
        cache: Last update of each client, of an aggregator that keeps them; saved with the run.
    """

    memory: Tensors
    cache: ClientCache

    @property
    def fewest(self) -> int:
        """Fewest updates of which a version is made."""

    @property
    def waiting(self) -> Sequence[Command]:
        """The commands whose effect on the tensors waits for a sum: an `Aggregate`, and those after it."""

    def admit(self, event: Event) -> None:
        """Raises `AlgorithmError` for an event that must not come before the sum that is waited for."""

    def due(self, commands: list[Command]) -> list[Command]:
        """The commands to carry out now: those that have waited long enough, and new ones.

        Args:
            commands: The new ones, in order.
        """

    def resume(self, event: Released) -> Aggregate:
        """The aggregation that waits for this event. The commands after it are due next."""

    def clip(self, task: TaskId, steps: int, result: LocalResult, aggregator: Aggregator) -> LocalResult:
        """An update as its client sends it, in a simulation.

        Args:
            task: The task.
            steps: Local steps that were done.
            result: The update.
            aggregator: The aggregator.
        """

    def judge(
        self, check: Check, client: ClientId, task: TaskId, steps: int, result: LocalResult
    ) -> str | None:
        """Why a check of single updates refuses one; None means that it does not, or that none is checked."""

    def guard(self, guard: UpdateGuard | None) -> UpdateGuard | None:
        """The guard as it checks single updates; None means that they are not looked at."""

    def excuse(self, task: TaskId, error: Exception, run: object) -> None:
        """Have a task aggregated without its update, which is damaged.

        Args:
            task: The task.
            error: What is wrong with the stored update.
            run: Where the run is stored.

        Raises:
            RunError: Nothing can be aggregated without it.
        """

    def step(
        self,
        updates: Sequence[Update],
        aggregator: Aggregator,
        model: Model,
        memory: Tensors,
        command: Aggregate,
    ) -> Tensor:
        """The aggregator's step.

        Args:
            updates: The updates of the version, of those that are left of `command.tasks`.
            aggregator: The aggregator.
            model: The current global model.
            memory: The aggregator's state.
            command: The aggregation.
        """

    def skip(self, command: Aggregate) -> None:
        """Note that a version is not made of its updates."""


class MadeAtOnce:
    """A version is made when it is commanded: no command waits, and any event may come."""

    waiting: Sequence[Command] = ()

    def admit(self, event: Event) -> None:
        """Any event may come at any time."""

    def due(self, commands: list[Command]) -> list[Command]:
        """All commands are due."""
        return commands

    def resume(self, event: Released) -> Aggregate:
        """Raises `AlgorithmError`: no aggregation waits."""
        raise AlgorithmError(f"no release waits for its sum: {event} cannot be fed")


class EachUpdate(MadeAtOnce):
    """Each update by itself: the aggregator gets the updates as they arrived.

    Args:
        in_place: Whether a driver needs no update after its version, so that the step may take its memory.
            The guard needs the norms of the updates then, which such a driver gives with them.
    """

    fewest = 1

    def __init__(self, *, in_place: bool = False) -> None:
        self.in_place = in_place
        self.memory: Tensors = {}
        self.cache = ClientCache()

    def clip(self, task: TaskId, steps: int, result: LocalResult, aggregator: Aggregator) -> LocalResult:
        """The update as it is."""
        return result

    def judge(
        self, check: Check, client: ClientId, task: TaskId, steps: int, result: LocalResult
    ) -> str | None:
        """Why the check refuses an update; None means that it does not."""
        return check(client, task, steps, result)

    def guard(self, guard: UpdateGuard | None) -> UpdateGuard | None:
        """The guard, which checks each update."""
        return guard

    def excuse(self, task: TaskId, error: Exception, run: object) -> None:
        """A task without its update is one update less."""

    def step(
        self,
        updates: Sequence[Update],
        aggregator: Aggregator,
        model: Model,
        memory: Tensors,
        command: Aggregate,
    ) -> Tensor:
        """The aggregator's step from the updates."""
        if aggregator.caches:
            return aggregator.cached_step(updates, model, memory, self.cache)
        step = aggregator.step_in_place if self.in_place else aggregator.step
        return step(updates, model, memory)

    def skip(self, command: Aggregate) -> None:
        """Nothing is kept of versions that are not made."""
