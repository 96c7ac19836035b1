"""Releases: a sum of clipped, rounded updates, its noise, and what each client has spent.

A release is one sum that is formed and used: one `Aggregate`. `ReleasePlan` has what is fixed for a run,
`PrivacyLedger` what follows from its journal alone, `SummedUpdates` what needs tensors. Where updates are
masked, `AwaitedSums` has a version wait until helpers have told its sum.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, reduce
from math import ceil, inf
from operator import iadd
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor

from offbeat.core.aggregator import Aggregator, SumOnly, Update, UpdateSum
from offbeat.core.commands import Aggregate, Command
from offbeat.core.errors import AlgorithmError, RunError
from offbeat.core.events import ClientId, Event, Released, TaskId, Version
from offbeat.core.guard import UpdateGuard
from offbeat.core.journal import Row
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model, Tensors
from offbeat.core.privacy.accounting import (
    SavedSpent,
    Spent,
    coefficients,
    epsilon_of,
    largest_deviation,
    largest_mu,
    multiplier_for,
    overlaps,
    strict_epsilon_of,
    strict_largest_mu,
)
from offbeat.core.privacy.noise import banded_noise, discrete_gaussian
from offbeat.core.privacy.privacy_options import Noise, Privacy
from offbeat.core.privacy.refusals import Refusal
from offbeat.core.privacy.sums import Integers, SumGrid, clipped, largest_weight
from offbeat.core.release import Check, EachUpdateInPlace, MadeAtOnce, Release
from offbeat.core.schedule import Task
from offbeat.core.server import UNSEEN

LEAST_SIGMA = 10_000
# Digits of the figures in a journal, which a replay on another machine gives again.
_DIGITS = 6


@dataclass(frozen=True)
class ReleasePlan:
    """What is fixed for a run: the options, the grid, the noise and the budget.

    Attributes:
        privacy: The options, complete.
        parameters: L, parameters of the model.
        clients: Number of clients.

    Raises:
        UsageError: The grid is too coarse, there is too little noise, or the budget allows no release.
    """

    privacy: Privacy
    parameters: int
    clients: int

    def __post_init__(self) -> None:
        """Refuse noise that is too little, and a budget that allows nothing."""
        noise = self.noise
        if noise is None:
            return
        if self.sigma < LEAST_SIGMA:
            raise Refusal.LITTLE_NOISE.error(sigma=self.sigma)
        if not Spent().allows(0, 1, self.full_alpha, self.overlaps, self.largest_mu):
            epsilon = noise.budget.epsilon
            raise Refusal.SMALL_BUDGET.error(epsilon=epsilon, multiplier=self.multiplier)

    @classmethod
    def read(cls, recorded: Mapping[str, Any]) -> Self:
        """The plan that a run has recorded."""
        return cls(Privacy(**recorded["options"]), recorded["parameters"], recorded["clients"])

    @property
    def recorded(self) -> dict[str, Any]:
        """The plan as a run's directory records it."""
        return {"options": asdict(self.privacy), "parameters": self.parameters, "clients": self.clients}

    @property
    def noise(self) -> Noise | None:
        """Options of the noise; None means none."""
        return self.privacy.noise

    @cached_property
    def grid(self) -> SumGrid:
        """The grid of the updates."""
        privacy = self.privacy
        assert privacy.clip is not None
        assert privacy.most is not None
        return SumGrid(privacy.most, privacy.bits, privacy.clip, self.parameters, privacy.secure is not None)

    @cached_property
    def largest_mu(self) -> float:
        """μ_max; infinite where what is spent is not limited."""
        return _largest_mu(self.noise)

    @cached_property
    def multiplier(self) -> float:
        """z, given or such that a client can be in the given number of releases."""
        return noise_multiplier(self.privacy)

    @cached_property
    def sigma(self) -> int:
        """σ, standard deviation of the noise in grid steps; 0 without noise."""
        return 0 if self.noise is None else ceil(self.multiplier * self.grid.q * self.grid.bound)

    @cached_property
    def deviation(self) -> float:
        """Standard deviation of the noise of a release, at most, in grid steps: with bands it is above σ."""
        return self.sigma * largest_deviation(self.noise.bands) if self.noise else 0.0

    @cached_property
    def overlaps(self) -> list[float]:
        """h_k of the bands."""
        return overlaps(self.noise.bands if self.noise else 1)

    def alpha(self, weight: int) -> float:
        """What a client of this integer weight has in a release, in units of the noise."""
        return weight * self.grid.bound / self.sigma

    @property
    def full_alpha(self) -> float:
        """The most that a client has in a release."""
        return self.alpha(largest_weight(self.privacy.bits))


def noise_multiplier(privacy: Privacy) -> float:
    """z of the noise, given or such that a client can be in the given number of releases; 0 without noise."""
    noise = privacy.noise
    if noise is None:
        return 0.0
    if noise.multiplier is not None:
        return noise.multiplier
    assert noise.releases is not None
    return multiplier_for(noise.releases, _largest_mu(noise), noise.bands)


def _largest_mu(noise: Noise | None) -> float:
    if noise is None or noise.budget.epsilon is None:
        return inf
    formula = strict_largest_mu if noise.accounting == "zcdp" else largest_mu
    return formula(noise.budget.epsilon, noise.budget.delta)


class SavedLedger(Struct, frozen=True):
    """The state of a ledger; `busiest` is the client that has spent the most."""

    releases: int
    clients: int
    exhausted: list[ClientId]
    spent: dict[ClientId, SavedSpent]
    busiest: ClientId | None


class PrivacyLedger:
    """What each client has spent in a run with noise; it follows from the journal.

    Attributes:
        plan: What is fixed for the run.
        releases: Number of releases so far.
        clients: Number of clients so far, at least those that the run begins with.
        exhausted: Clients whose budget is spent.
        helped: Whether helpers tell the sums: a release is charged once it has ended, if its sum was formed.
    """

    def __init__(self, plan: ReleasePlan) -> None:
        self.plan, self.releases, self.clients = plan, 0, plan.clients
        self.exhausted: set[ClientId] = set()
        self.helped = False
        # The releases that wait for their sums, the first one first.
        self._waiting: list[Aggregate] = []
        # Number of releases that were charged.
        self._charged = 0
        self._spent: dict[ClientId, Spent] = {}
        self._busiest = Spent()

    def save(self) -> SavedLedger:
        """The state."""
        busiest = next((client for client, own in self._spent.items() if own is self._busiest), None)
        spent = {client: own.save() for client, own in self._spent.items()}
        return SavedLedger(self.releases, self.clients, sorted(self.exhausted), spent, busiest)

    def restore(self, saved: SavedLedger) -> None:
        """Go on from a state. Raises `KeyError` for one whose busiest client has spent nothing."""
        self.releases, self.clients, self.exhausted = saved.releases, saved.clients, set(saved.exhausted)
        self._spent = {client: Spent.load(own) for client, own in saved.spent.items()}
        self._busiest = Spent() if saved.busiest is None else self._spent[saved.busiest]

    def joined(self, client: ClientId) -> None:
        """Note that a client is there, which may not have been at the beginning."""
        self.clients = max(self.clients, client + 1)

    def refusal(self, clients: int) -> str | None:
        """Why a run may not have so many clients as it would have with one that joins; None if it may.

        Those who have left count too: what was published tells of them.
        """
        assert self.plan.noise is not None
        clients, delta = max(clients, self.clients), self.plan.noise.budget.delta
        return Refusal.DELTA.format(delta=delta, clients=clients) if delta * clients >= 1 else None

    def begin(self, release: Aggregate) -> dict[str, float]:
        """Charge a release, unless helpers tell its sum; what the row of its aggregation says of privacy."""
        if self.helped:
            self._waiting.append(release)
            return {}
        return self.charge(release)

    def end(self, *, formed: bool) -> dict[str, float]:
        """Charge the release that waits, if its sum was formed; what the row of its end says of privacy.

        One that is not charged takes its turn in the bands all the same: its noise was drawn.
        """
        release = self._waiting.pop(0)
        if formed:
            return self.charge(release)
        self.releases += 1
        return {}

    def read(self, row: Row) -> bool:
        """Count what a row of a journal says; returns whether a release is charged by it."""
        data, before = row.data or {}, self._charged
        if row.name == "committee":
            self.helped = True
        elif row.name == "aggregate":
            self.begin(Aggregate(tuple(data["tasks"]), data, clients=tuple(data["clients"])))
        elif row.name == "released":
            self.end(formed=not data["reason"] or data.get("formed", False))
        return self._charged > before

    def charge(self, release: Aggregate) -> dict[str, float]:
        """Charge the clients of a release; what its journal row says of privacy."""
        self._charged += 1
        for client, weight in zip(release.clients, release.note["weights"], strict=True):
            own = self._spent.setdefault(client, Spent())
            own.charge(self.releases, self.plan.alpha(weight), self.plan.overlaps)
            if own.squared >= self._busiest.squared:
                self._busiest = own
        self.releases += 1
        found = self.summary()
        named = {name: found[name] for name in ("mu", "epsilon", "epsilon_strict", "spent")}
        assert self.plan.privacy.clip is not None
        return {**named, "sigma": self.plan.sigma, "clip": self.plan.privacy.clip}

    def exhausts(self, client: ClientId, waiting: int) -> bool:
        """Whether one more release, beside its updates that wait, is too much for a client from here on."""
        if client in self.exhausted:
            return False
        plan, own = self.plan, self._spent.get(client, Spent())
        if own.allows(self.releases, waiting + 1, plan.full_alpha, plan.overlaps, plan.largest_mu):
            return False
        self.exhausted.add(client)
        return True

    def mu(self, client: ClientId) -> float:
        """μ of a client."""
        return self._spent[client].mu if client in self._spent else 0.0

    def summary(self) -> dict[str, float]:
        """What the busiest client has spent: mu, epsilon, epsilon_strict, in so many releases; the number of
        clients whose budget is spent, the budget if there is one, and delta."""
        assert self.plan.noise is not None
        mu, delta = self._busiest.mu, self.plan.noise.budget.delta
        figures = {"mu": mu, "epsilon": epsilon_of(mu, delta), "epsilon_strict": strict_epsilon_of(mu, delta)}
        budget = self.plan.noise.budget
        limit = {} if budget.epsilon is None else {"budget": budget.epsilon}
        rounded = {name: round(value, _DIGITS) for name, value in figures.items()}
        counts = {"releases": self._busiest.releases, "spent": len(self.exhausted)}
        return {**rounded, **counts, **limit, "delta": budget.delta}

    @property
    def left_reason(self) -> str:
        """Why a client leaves whose budget is spent."""
        assert self.plan.noise is not None
        budget = self.plan.noise.budget
        return f"its privacy budget is spent (ε = {budget.epsilon:g} at δ = {budget.delta:g})"

    @property
    def stop_reason(self) -> str | None:
        """Why the run ends; None means that enough clients have any budget left."""
        left, needed = self.clients - len(self.exhausted), self.plan.privacy.fewest
        if not self.exhausted or left >= needed:
            return None
        return f"the privacy budget is spent: {left} clients have any left, {needed} are needed"


def ledger_of(plan: ReleasePlan | None) -> PrivacyLedger | None:
    """The ledger of a run; None where no noise is added, and nothing is spent."""
    return None if plan is None or plan.noise is None else PrivacyLedger(plan)


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
    """

    def __init__(self, plan: ReleasePlan, seeds: ReleaseSeeds, sum_updates: SumUpdates = exact_sum) -> None:
        self.plan, self._seeds, self._sum_updates = plan, seeds, sum_updates
        self.memory: Tensors = {}
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
        return EachUpdateInPlace()
    return SummedUpdates(plan, seeds) if plan.privacy.secure is None else AwaitedSums(plan, seeds)
