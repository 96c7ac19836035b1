"""White-box audit of releases: an adversary who knows all but whether one client is in them.

Its updates are all of one direction and of the largest norm; the adversary adds up what the releases have in
that direction. Over many runs with and without the client this is a Gaussian test between two means
that are μ standard deviations apart, so their distance estimates the μ that a ledger claims.
"""

from collections.abc import Callable
from itertools import count
from math import sqrt

import numpy as np
import pytest
import torch

import offbeat as ob
from offbeat.core.aggregator import SumOnly, Update
from offbeat.core.commands import Aggregate
from offbeat.core.layout import Layout
from offbeat.core.model import Model
from offbeat.core.privacy import sums
from offbeat.core.privacy.ledger import PrivacyLedger, ReleasePlan
from offbeat.core.privacy.releases import ReleaseSeeds, SummedUpdates
from offbeat.core.schedule import Task

SIZE, CLIENTS, RELEASES, CLIP = 50, 2, 4, 0.5
LAYOUT = Layout.flat(SIZE)
MODEL = Model.empty(LAYOUT)
CANARY = torch.zeros(SIZE)
CANARY[17] = 1.0
NOTE = {"weights": [1] * CLIENTS, "scale": 1.0}
Published = Callable[[SummedUpdates, list[Update], int], list[torch.Tensor]]


def plan(multiplier: float = 2.0) -> ReleasePlan:
    noise = ob.Noise(multiplier=multiplier)
    privacy = ob.Privacy(clip=CLIP, weight_bits=0, least=CLIENTS, most=CLIENTS, noise=noise)
    return ReleasePlan(privacy, SIZE, 1000)


def release_of(version: int) -> Aggregate:
    return Aggregate(tuple(range(CLIENTS)), version=version, note=NOTE, clients=tuple(range(CLIENTS)))


def update(client: int, delta: torch.Tensor) -> Update:
    task = Task(client, client, 0, 1, 0.0, staleness=0, samples=1, share=1 / CLIENTS, population=CLIENTS)
    return Update(task, MODEL, delta, torch.zeros(0, dtype=torch.int64), {}, 0.1, None, None)


def once(releases: SummedUpdates, updates: list[Update], version: int) -> list[torch.Tensor]:
    aggregator = ob.fedbuff(CLIENTS, steps=1).aggregator
    assert isinstance(aggregator, SumOnly)
    return [releases.step(updates, aggregator, MODEL, {}, release_of(version))]


def estimated(plan: ReleasePlan, runs: int, norm: float = CLIP, publish: Published = once) -> float:
    """μ by the distance of the two means of the statistic."""
    fresh = count()
    seeds = ReleaseSeeds(
        noise=lambda release: next(fresh).to_bytes(32, "big"),
        rounding=lambda task, release: next(fresh).to_bytes(32, "big"),
    )
    releases, zeros = SummedUpdates(plan, seeds), torch.zeros(SIZE)
    found = np.empty((2, runs))
    for there in (0, 1):
        updates = [update(client, zeros) for client in range(CLIENTS)]
        updates[1] = update(1, there * norm * CANARY)
        for run in range(runs):
            seen = [publish(releases, updates, version) for version in range(RELEASES)]
            found[there, run] = sum(float(torch.stack(models).mean(0) @ CANARY) for models in seen)
    return float((found[1].mean() - found[0].mean()) / np.sqrt(found.var(axis=1, ddof=1).mean()))


def claimed(plan: ReleasePlan) -> float:
    ledger = PrivacyLedger(plan)
    for version in range(RELEASES):
        ledger.charge(release_of(version))
    return ledger.mu(1)


@pytest.mark.parametrize("runs", [200, pytest.param(10_000, marks=pytest.mark.thorough)])
def test_an_adversary_learns_what_the_ledger_says_and_no_more(runs: int) -> None:
    assert claimed(plan()) == pytest.approx(1.0, abs=1e-6)
    assert estimated(plan(), runs) == pytest.approx(1.0, abs=3.5 * sqrt(2 / runs))


def test_half_the_noise_is_found() -> None:
    assert estimated(plan(multiplier=1.0), 100) > 1.5


def test_an_update_that_is_not_clipped_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert estimated(plan(), 100, norm=3 * CLIP) < 1.5  # while it is
    monkeypatch.setattr(sums, "_norm", lambda delta: 1e-9)
    assert estimated(plan(), 100, norm=3 * CLIP) > 2.0


def test_noise_that_is_drawn_again_is_found() -> None:
    """As after a restart that forgot the seed of a sum that was published."""

    def twice(releases: SummedUpdates, updates: list[Update], version: int) -> list[torch.Tensor]:
        return [*once(releases, updates, version), *once(releases, updates, version)]

    assert estimated(plan(), 200, publish=twice) > 1.2
