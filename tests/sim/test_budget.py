"""The privacy budget in random worlds: nobody spends more, nobody leaves early, the run ends as it says."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

import numpy as np
import pytest

import offbeat as ob
from offbeat.algorithms.privacy.private import complete_privacy, sum_only
from offbeat.core.privacy.accounting import largest_mu, overlaps, strict_largest_mu
from offbeat.core.privacy.privacy_options import Budget, Noise, Privacy, Secure
from offbeat.core.privacy.sums import largest_weight
from offbeat.testing.worlds import random_worlds
from offbeat.world.world import World
from tests.options import options_of
from tests.sampling import thorough

UNTIL = ob.Until(seconds=3000, tasks=1500)
F = [1.0, 0.5, 0.375, 0.3125]


@dataclass(frozen=True)
class Drawn:
    """A run of an algorithm that goes with sums, in a random world with random options of privacy."""

    name: str
    run: ob.Run
    clients: int
    privacy: Privacy
    largest: float  # μ_max

    @property
    def left(self) -> dict[int, float]:
        """The clients whose budget was spent, and when each left."""
        spent = "its privacy budget is spent"
        return {e["client"]: e["seq"] for e in self.run.entries("left") if e["reason"].startswith(spent)}

    def mu(self, client: int, before: float = np.inf) -> float:
        """What a client has spent, from the journal: ‖C_b α‖."""
        noise = self.privacy.noise
        assert noise is not None
        assert noise.multiplier is not None
        releases = [e for e in self.run.entries("aggregate") if e["seq"] < before]
        weights = [dict(zip(e["clients"], e["weights"], strict=True)).get(client, 0) for e in releases]
        alpha = np.array(weights) / largest_weight(self.privacy.bits) / noise.multiplier
        return float(np.linalg.norm(np.convolve(alpha, F[: noise.bands]))) if weights else 0.0

    def waiting(self, client: int, before: float) -> int:
        """Updates of a client that had arrived, and were neither released nor dropped."""
        tasks = {
            e["task"] for e in self.run.entries("arrived") if e["client"] == client and e["seq"] < before
        }
        gone = {e["task"] for e in self.run.entries("drop") if e["seq"] < before}
        for e in self.run.entries("aggregate"):
            gone |= set(e["tasks"]) if e["seq"] < before else set()
        return len(tasks - gone)


def make(name: str) -> ob.Algorithm:
    options = options_of(name)
    options.pop("against", None)
    return ob.ALGORITHMS[name](**options)


def privacy_of(rng: np.random.Generator) -> tuple[Privacy, float]:
    """Random options, with which a client can be in 1 to 12 releases of full weight, and μ_max."""
    epsilon, delta, bands = (
        float(rng.uniform(0.5, 12)),
        10 ** float(rng.uniform(-6, -2)),
        int(rng.choice(4) + 1),
    )
    strict = bool(rng.integers(2)) and bands == 1
    largest = (strict_largest_mu if strict else largest_mu)(epsilon, delta)
    multiplier = sqrt(float(rng.uniform(1, 12)) * overlaps(bands)[0]) / largest
    noise = Noise(
        multiplier=multiplier, bands=bands, budget=Budget(epsilon=epsilon, delta=delta),
        accounting="zcdp" if strict else "gdp",
    )  # fmt: skip
    secure = Secure() if rng.integers(2) else None
    least = 3 if secure is not None else int(rng.integers(1, 4))
    return Privacy(clip=1.0, least=least, noise=noise, secure=secure), largest


def simulated(name: str, world: World, seed: int) -> Drawn | None:
    """A run without training; None where it begins with too few clients."""
    given, largest = privacy_of(np.random.default_rng(seed))
    clients = world.population(None)
    privacy = complete_privacy(given, make(name), clients)
    learner = ob.NoTraining(clients, parameters=2, samples_per_client=8, batches=4)
    try:
        run = ob.simulate(make(name), world, learner, seed=seed, until=UNTIL, evaluate=None, privacy=privacy)
    except ob.UsageError as error:
        if "the run begins with" not in str(error):
            raise
        return None
    return Drawn(name, run, clients, privacy, largest)


def drawn_runs(first: int, count: int) -> Iterator[Drawn]:
    """Runs from number `first` on, with random speeds, networks, drop-outs, absences, z and budgets."""
    names = sum_only()
    for i in range(first, first + count):
        runs = (simulated(names[i % len(names)], w, i) for w in random_worlds(50, seed=i, clients=(4, 7)))
        found = next(run for run in runs if run is not None)
        yield found


@pytest.mark.parametrize("first", [0, *thorough(*range(10, 100, 10))])
def test_nobody_spends_more_than_the_budget_and_the_run_ends_when_too_few_have_any(first: int) -> None:
    """Recounted from the journal, with a dense C_b; 100 worlds in all."""
    ended = 0
    for own in drawn_runs(first, 10):
        told = f"{own.name}, {own.privacy}"
        releases, least = own.run.entries("aggregate"), own.privacy.fewest
        spent = [own.mu(client) for client in range(own.clients)]
        assert max(spent) <= own.largest * (1 + 1e-9), told
        assert not releases or releases[-1]["mu"] == pytest.approx(max(spent), abs=1e-5), told
        after = [
            e["client"] for e in own.run.entries("train") if e["seq"] > own.left.get(e["client"], np.inf)
        ]
        assert not after, told
        for client, seq in own.left.items():
            _check_that_no_more_was_left(own, client, seq)
        remaining = own.clients - len(own.left)
        if remaining < least:
            reason = f"the privacy budget is spent: {remaining} clients have any left, {least} are needed"
            assert own.run.stop_reason == reason, told
            ended += 1
        else:
            assert "privacy" not in own.run.stop_reason, told
    assert ended >= 4


def _check_that_no_more_was_left(own: Drawn, client: int, seq: float) -> None:
    """One more release of full weight, beside the updates that waited, would have been too much."""
    noise = own.privacy.noise
    assert noise is not None
    assert noise.multiplier is not None
    if noise.bands == 1:
        more = (own.waiting(client, seq) + 1) / noise.multiplier**2
        assert own.mu(client, seq) ** 2 + more > own.largest**2
