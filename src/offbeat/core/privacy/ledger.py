"""What is fixed for a run with privacy, and what its clients have spent: both follow without any tensor.

`ReleasePlan` has the options, the grid and the noise; `PrivacyLedger` follows from the journal alone.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from math import ceil, inf
from typing import Any, Self

from msgspec import Struct

from offbeat.core.commands import Aggregate
from offbeat.core.events import ClientId
from offbeat.core.journal import Row
from offbeat.core.privacy.accounting import (
    SavedSpent,
    Spent,
    epsilon_of,
    largest_deviation,
    largest_mu,
    multiplier_for,
    overlaps,
    strict_epsilon_of,
    strict_largest_mu,
)
from offbeat.core.privacy.privacy_options import Noise, Privacy
from offbeat.core.privacy.refusals import Refusal
from offbeat.core.privacy.sums import SumGrid, largest_weight

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
