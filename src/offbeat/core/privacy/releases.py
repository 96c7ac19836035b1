"""Releases: a sum of clipped, rounded updates, and its noise.

A release is one sum that is formed and used: one `Aggregate`. Where updates are masked, `AwaitedSums` has a
version wait until helpers have told its sum.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import inf
from operator import iadd
from typing import NamedTuple

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from offbeat.core.aggregator import Aggregator, SumOnly, Update, UpdateSum
from offbeat.core.client_cache import ClientCache
from offbeat.core.commands import Aggregate, Command
from offbeat.core.errors import AlgorithmError, RunError
from offbeat.core.events import ClientId, Event, Released, TaskId, Version
from offbeat.core.guard import UpdateGuard
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model, Tensors
from offbeat.core.privacy.accounting import (
    coefficients,
)
from offbeat.core.privacy.clipping import clipped
from offbeat.core.privacy.ledger import ReleasePlan
from offbeat.core.privacy.noise import banded_noise, discrete_gaussian
from offbeat.core.privacy.privacy_options import Noise
from offbeat.core.privacy.sums import Integers
from offbeat.core.release import Check, EachUpdate, MadeAtOnce, Release
from offbeat.core.schedule import Task
from offbeat.core.server import UNSEEN


@dataclass(frozen=True)
class ReleaseSeeds:
    """Where the randomness of releases comes from, 32 bytes each.

    Attributes:
        noise: Of a release. No two releases may have the same.
        rounding: Of an update in a release.
    """

    noise: Callable[[Aggregate], bytes]
    rounding: Callable[[Task, Aggregate], bytes]


class RoundedUpdate(NamedTuple):
    """A clipped and rounded update of a release: y in grid steps, with c̃, its integer weight."""

    task: Task
    weight: int
    values: Integers


SumUpdates = Callable[[Aggregate, Iterable[RoundedUpdate]], Integers]
"""Gives S = Σ c̃_i y_i of a release."""


def exact_sum(release: Aggregate, updates: Iterable[RoundedUpdate]) -> Integers:
    """S, in the clear."""
    del release
    return reduce(iadd, (update.weight * update.values for update in updates))


class SummedUpdates(MadeAtOnce):
    """Makes each step of one sum of clipped, rounded updates, with its noise.

    Args:
        plan: What is fixed for the run.
        seeds: Where the randomness comes from.
        sum_updates: How updates are summed.

    Attributes:
        plan: As given.
        memory: The last b − 1 noise vectors by their distance, float64: secret, and saved with the run.
        cache: Empty: there are no single updates to keep.
    """

    def __init__(self, plan: ReleasePlan, seeds: ReleaseSeeds, sum_updates: SumUpdates = exact_sum) -> None:
        self.plan, self._seeds, self._sum_updates = plan, seeds, sum_updates
        self.memory: Tensors = {}
        self.cache = ClientCache()
        # The version and the noise of the release at hand.
        self._drawn: tuple[Version, Integers] | None = None

    @property
    def fewest(self) -> int:
        """m, fewest updates of a release."""
        return self.plan.privacy.fewest

    def clip(self, task: TaskId, steps: int, result: LocalResult, aggregator: Aggregator) -> LocalResult:
        """An update clipped, unless its client masks it: then the client rounds it as it is."""
        privacy = self.plan.privacy
        assert privacy.clip is not None
        assert isinstance(aggregator, SumOnly)
        if privacy.secure is not None:
            return result
        factor = abs(aggregator.factor(Task(task, 0, 0, steps, 0.0)))
        largest = privacy.clip / factor if factor else inf
        return replace(result, delta=clipped(result.delta, self.plan.parameters, largest))

    def judge(
        self, check: Check, client: ClientId, task: TaskId, steps: int, result: LocalResult
    ) -> str | None:
        """No update is looked at by itself: whether one is refused would tell of its data."""

    def guard(self, guard: UpdateGuard | None) -> UpdateGuard | None:
        """The guard sees released values only."""

    def excuse(self, task: TaskId, error: Exception, run: object) -> None:
        """Raises `RunError`: sums with and without an update would be released with the same noise."""
        raise RunError(
            f"the stored update of task {task} is damaged ({error}), and with privacy no release is made "
            f"again without it: restore {run} from a copy, or begin a new run"
        )

    def step(
        self,
        updates: Sequence[Update],
        aggregator: Aggregator,
        model: Model,
        memory: Tensors,
        command: Aggregate,
    ) -> Tensor:
        """The aggregator's step from the released sum.

        Args:
            updates: The updates of the release, of those that are left of `command.tasks`.
            aggregator: The aggregator.
            model: The current global model.
            memory: The aggregator's state.
            command: The release, with `weights` and `scale` in its note.
        """
        assert isinstance(aggregator, SumOnly)
        by_task = dict(zip(command.tasks, command.note["weights"], strict=True))
        tasks = [u.task for u in updates]
        weights = [by_task[task.id] for task in tasks]
        factors = [aggregator.factor(task) for task in tasks]
        noise = self._noise(command)
        released = self._sum_updates(command, self._rounded(updates, weights, factors, command))
        if noise is not None:
            released = released + noise
        self._drawn = None
        grid, scale = self.plan.grid, command.note["scale"]
        total = torch.zeros_like(model.values)
        total[: grid.parameters] = torch.from_numpy(released * (scale * grid.step / grid.q))
        coefficients = [scale * weight / grid.q for weight in weights]
        summed = UpdateSum(total, coefficients, tasks, [u.base for u in updates], command.note)
        return aggregator.from_sum(summed, model, memory)

    def skip(self, command: Aggregate) -> None:
        """A release that is not formed takes its turn in the bands all the same: its clients are charged."""
        self._noise(command)
        self._drawn = None

    def noised(self, command: Aggregate, total: Integers) -> Integers:
        """S with the noise of its release, before its version is made."""
        noise = self._noise(command)
        return total if noise is None else total + noise

    def _rounded(
        self, updates: Sequence[Update], weights: Sequence[int], factors: Sequence[float], command: Aggregate
    ) -> Iterator[RoundedUpdate]:
        """The updates of a release as integers, one at a time."""
        grid = self.plan.grid
        for update, weight, factor in zip(updates, weights, factors, strict=True):
            delta, seed = update.delta[: grid.parameters].numpy(), self._seeds.rounding(update.task, command)
            yield RoundedUpdate(update.task, weight, grid.round(delta, seed, factor))

    def _noise(self, command: Aggregate) -> Integers | None:
        """e_r in grid steps, drawn once for each release; None without noise."""
        if self.plan.noise is None:
            return None
        if self._drawn is None or self._drawn[0] != command.version:
            self._drawn = command.version, self._draw(command, self.plan.noise)
        return self._drawn[1]

    def _draw(self, command: Aggregate, noise: Noise) -> Integers:
        plan = self.plan
        size, seed = plan.parameters, self._seeds.noise(command)
        if noise.bands == 1:
            return discrete_gaussian(plan.sigma, size, seed)
        past = [self.memory[str(k)].numpy() for k in range(1, len(self.memory) + 1)]
        e = banded_noise(plan.sigma, past, coefficients(noise.bands), size, seed)
        kept = [e, *past][: noise.bands - 1]
        self.memory = {str(k): torch.from_numpy(vector) for k, vector in enumerate(kept, 1)}
        return np.rint(e).astype(np.int64)


class AwaitedSums(SummedUpdates):
    """Sums of masked updates, which helpers tell: a version, and all commanded after it, waits for its sum.

    Args:
        plan: What is fixed for the run.
        seeds: Where the randomness comes from.

    Attributes:
        sums: S of releases, by version; each is used once.
        waiting: The commands that wait.
    """

    def __init__(self, plan: ReleasePlan, seeds: ReleaseSeeds) -> None:
        super().__init__(plan, seeds, lambda command, _: self.sums.pop(command.version))
        self.sums: dict[Version, Integers] = {}
        self.waiting: list[Command] = []

    def admit(self, event: Event) -> None:
        """Raises `AlgorithmError` for an event that a schedule sees while a release waits."""
        if self.waiting and type(event) not in UNSEEN:
            raise AlgorithmError(f"a release waits for its sum: {event} cannot be fed")

    def due(self, commands: list[Command]) -> list[Command]:
        """The commands before the next release, of those that have waited and then of the new ones."""
        left = [*self.waiting, *commands]
        first = next((n for n, command in enumerate(left) if type(command) is Aggregate), len(left))
        self.waiting = left[first:]
        return left[:first]

    def resume(self, event: Released) -> Aggregate:
        """The release that waits for this event; what has waited after it is due."""
        if not self.waiting:
            raise AlgorithmError(f"no release waits for its sum: {event} cannot be fed")
        command = self.waiting.pop(0)
        assert isinstance(command, Aggregate)
        return command


def release_of(plan: ReleasePlan | None, seeds: ReleaseSeeds) -> Release:
    """How a server makes its versions.

    Args:
        plan: What is fixed for the releases of the run. None means that each update is used by itself.
        seeds: Where their randomness comes from.
    """
    if plan is None:
        return EachUpdate(in_place=True)
    return SummedUpdates(plan, seeds) if plan.privacy.secure is None else AwaitedSums(plan, seeds)
