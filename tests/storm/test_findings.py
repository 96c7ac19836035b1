"""What is found wrong of the noise and the budget of a killed federation: each kind of wrong is told."""

import pytest

import offbeat as ob
from offbeat.core.commands import Aggregate
from offbeat.core.journal import Row
from offbeat.core.privacy.ledger import PrivacyLedger, ReleasePlan
from offbeat.net.secure.release_seeds import ReleaseSeed
from tests.storm.findings import spent, wrong_seeds

RELEASES = {1: (0, 1), 2: (2, 3)}


def used(*seeds: tuple[int, tuple[int, ...], str]) -> list[ReleaseSeed]:
    return [ReleaseSeed(version, tasks, seed.encode()) for version, tasks, seed in seeds]


def test_noise_that_is_made_again_is_right() -> None:
    """Also of a seed that nobody heard of, as its process died before it was durable."""
    seeds = used((1, (0, 1), "a"), (2, (2, 4), "b"), (1, (0, 1), "a"), (2, (2, 3), "c"), (2, (2, 3), "c"))
    assert wrong_seeds(seeds, RELEASES) == []


@pytest.mark.parametrize(
    ("seeds", "told"),
    [
        ([(1, (0, 1), "a"), (2, (2, 3), "a")], "releases with another's noise: [1, 2]"),
        ([(1, (0, 1), "b"), (1, (0, 5), "b"), (1, (0, 1), "a"), (2, (2, 3), "c")], "another's noise: [1]"),
        ([(1, (0, 1), "a")], "releases without noise: [2]"),
        ([(1, (0, 1), "a"), (2, (2, 3), "b"), (2, (2, 5), "c")], "noise is of other updates: [2]"),
        (
            [(1, (0, 1), "a"), (1, (0, 1), "b"), (1, (0, 1), "a"), (2, (2, 3), "c")],
            "releases that had their noise, and then other noise: [1]",
        ),
    ],
)
def test_wrong_noise_is_told(
    seeds: list[tuple[int, tuple[int, ...], str]],
    told: str,
) -> None:
    (wrong,) = wrong_seeds(used(*seeds), RELEASES)
    assert told in wrong


@pytest.mark.parametrize("bands", [1, 3])
def test_what_is_spent_is_that_of_the_ledger(bands: int) -> None:
    noise = ob.Noise(multiplier=2, bands=bands)
    plan = ReleasePlan(ob.Privacy(clip=1.0, weight_bits=2, most=2, noise=noise), 10, 3)
    arrived = [Row(n, 0.0, "event", "arrived", client=n % 3, task=n) for n in range(6)]
    rows, ledger = [], PrivacyLedger(plan)
    for version, tasks in enumerate(((0, 1), (2, 3), (4, 5)), 1):
        release = Aggregate(tasks, {"weights": (3, 2)}, version=version, clients=tuple(t % 3 for t in tasks))
        ledger.charge(release)
        rows.append(Row(9 + version, 0.0, "command", "aggregate", version=version,
                        data={"tasks": list(tasks), "weights": [3, 2]}))  # fmt: skip
    found = spent([*arrived, *rows], plan)
    assert found == pytest.approx({client: ledger.mu(client) for client in range(3)}, rel=1e-12)
    assert found != pytest.approx(spent([*arrived, *rows[:2]], plan), rel=1e-3)
