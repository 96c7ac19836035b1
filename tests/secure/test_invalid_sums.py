"""The search for the site that spoils sums."""

from collections.abc import Callable

import numpy as np
import pytest

from offbeat.secure.invalid_sums import SpoiledSums

Spoils = Callable[[set[int]], bool]


def releases(sums: SpoiledSums, sites: int, size: int, spoils: Spoils, count: int, seed: int = 0) -> int:
    """Releases of random sites that are there; returns how many were invalid."""
    rng, invalid = np.random.default_rng(seed), 0
    for _ in range(count):
        present = sorted(set(range(sites)) - set(sums.aside) - sums.sent_away)
        chosen = set(rng.choice(present, min(size, len(present)), replace=False).tolist())
        spoiled = spoils(chosen)
        invalid += spoiled
        sums.note(chosen, not spoiled, present)
    return invalid


@pytest.mark.parametrize("size", [3, 4, 5])
def test_one_site_that_spoils_all_its_sums_is_sent_away(size: int) -> None:
    """The larger the releases are, the more of them fail: of sites that are in all nothing is told."""
    for seed in range(20):
        sums, bad = SpoiledSums(3), seed % 5
        invalid = releases(sums, 5, size, lambda chosen, bad=bad: bad in chosen, 60, seed)  # type: ignore[misc]
        assert sums.sent_away == {bad}
        assert sums.aside == []
        assert invalid <= (7 if size == 5 else 5)


def test_one_that_spoils_now_and_then_is_sent_away_and_nobody_else() -> None:
    wrong = found = 0
    for seed in range(40):
        rng, sums = np.random.default_rng(seed), SpoiledSums(3)
        releases(sums, 8, 4, lambda chosen, rng=rng: 3 in chosen and rng.random() < 0.3, 300, seed)  # type: ignore[misc]
        found += 3 in sums.sent_away
        wrong += len(sums.sent_away - {3})
    assert found >= 36
    assert wrong <= 4


def test_two_sites_that_spoil_sums_are_sent_away() -> None:
    """An accident convicts another one too where it looks as if releases without it were right."""
    wrong = 0
    for seed in range(40):
        sums = SpoiledSums(3)
        releases(sums, 8, 4, lambda chosen: bool(chosen & {1, 6}), 400, seed)
        assert sums.sent_away >= {1, 6}
        wrong += len(sums.sent_away - {1, 6})
    assert wrong <= 3


def test_two_sites_that_are_in_every_sum_are_found() -> None:
    """No site by itself makes a difference: suspects stay aside together."""
    sums = SpoiledSums(3)
    releases(sums, 6, 6, lambda chosen: bool(chosen & {1, 4}), 100)
    assert sums.sent_away == {1, 4}


def test_a_sum_that_is_invalid_once_costs_nobody_anything() -> None:
    sums = SpoiledSums(3)
    sums.note({0, 1, 2}, False, range(5))
    assert sums.aside == []
    releases(sums, 5, 3, lambda chosen: False, 50)
    assert sums.sent_away == set()


def test_nobody_is_put_aside_without_whom_nothing_is_released() -> None:
    sums = SpoiledSums(3)
    assert releases(sums, 3, 3, lambda chosen: True, 10) == 10
    assert sums.aside == []
    assert sums.sent_away == set()


def test_sums_that_all_fail_convict_nobody() -> None:
    """As where a helper spoils them: somebody is aside at any time, and is back before long."""
    sums = SpoiledSums(3)
    releases(sums, 6, 3, lambda chosen: True, 200)
    assert sums.sent_away == set()
