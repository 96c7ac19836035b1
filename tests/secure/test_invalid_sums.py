"""The search for the site that spoils sums."""

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest

from offbeat.secure.invalid_sums import SpoiledSums, smallest_explanations

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
        assert invalid <= 9


def test_of_many_sites_that_are_in_every_sum_half_are_put_aside() -> None:
    for bad in (0, 7, 29):
        sums = SpoiledSums(3)
        invalid = releases(sums, 30, 30, lambda chosen, bad=bad: bad in chosen, 200)  # type: ignore[misc]
        assert sums.sent_away == {bad}
        assert invalid <= 9


def test_one_that_spoils_now_and_then_is_sent_away_and_nobody_else() -> None:
    found = 0
    for seed in range(40):
        rng, sums = np.random.default_rng(seed), SpoiledSums(3)
        releases(sums, 8, 4, lambda chosen, rng=rng: 3 in chosen and rng.random() < 0.3, 400, seed)  # type: ignore[misc]
        found += 3 in sums.sent_away
        assert sums.sent_away <= {3}
    assert found >= 36


@pytest.mark.parametrize("size", [4, 6])
def test_a_site_that_times_its_garbage_has_nobody_else_sent_away(size: int) -> None:
    """It spoils sums until somebody is put aside, is honest as long as that takes, and begins again."""
    for seed in range(20):
        sums, spoiled = SpoiledSums(3), 0
        for trial in range(40):
            spoiled += releases(sums, 6, size, lambda chosen: 5 in chosen, 2, 100 * seed + trial)
            releases(sums, 6, size, lambda chosen: False, seed % 10, 100 * seed + trial)
        assert sums.sent_away <= {5}
        assert spoiled <= 40 or sums.sent_away == {5}


def test_two_sites_that_spoil_sums_are_sent_away() -> None:
    """By accident another one too, where releases without it are valid as often as if it were the reason."""
    wrong = 0
    for seed in range(40):
        sums = SpoiledSums(3)
        releases(sums, 8, 4, lambda chosen: bool(chosen & {1, 6}), 400, seed)
        assert sums.sent_away >= {1, 6}
        wrong += len(sums.sent_away - {1, 6})
    assert wrong == 0


def test_two_sites_that_are_in_every_sum_are_found() -> None:
    """No site by itself makes a difference: pairs are put aside."""
    sums = SpoiledSums(3)
    assert releases(sums, 6, 6, lambda chosen: bool(chosen & {1, 4}), 100) <= 20
    assert sums.sent_away == {1, 4}


def test_explanations_are_the_smallest_sets_with_a_member_in_each_release() -> None:
    """Against all subsets, for random releases."""
    rng = np.random.default_rng(3)
    for _ in range(100):
        clients = range(7)
        invalid = [
            frozenset(rng.choice(7, int(rng.integers(1, 5)), replace=False).tolist())
            for _ in range(int(rng.integers(1, 7)))
        ]
        hitting = [
            frozenset(own)
            for size in range(1, 4)
            for own in combinations(clients, size)
            if all(own_set & set(own) for own_set in invalid)
        ]
        smallest = min(map(len, hitting), default=0)
        assert smallest_explanations(invalid) == sorted(
            (own for own in hitting if len(own) == smallest), key=sorted
        )


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


def test_where_it_is_not_sure_nobody_is_sent_away_and_those_aside_come_back() -> None:
    """A client is aside for twice as long each time, so few sums are invalid."""
    for bad in range(5):
        sums, invalid, there = SpoiledSums(3), 0, 0
        rng = np.random.default_rng(bad)
        for _ in range(400):
            present = sorted(set(range(5)) - set(sums.aside))
            chosen = set(rng.choice(present, 3, replace=False).tolist())
            invalid, there = invalid + (bad in chosen), there + (bad in present)
            sums.note(chosen, bad not in chosen, present, sure=False)
        assert sums.sent_away == set()
        assert invalid <= 25
        assert there > invalid / 2
        for _ in range(2000):  # it has stopped
            present = sorted(set(range(5)) - set(sums.aside))
            sums.note(present[:3], True, present, sure=False)
        assert sums.aside == []


def test_sums_that_all_fail_convict_nobody() -> None:
    """As where a helper spoils them: somebody is aside at any time, and is back before long."""
    sums = SpoiledSums(3)
    releases(sums, 6, 3, lambda chosen: True, 200)
    assert sums.sent_away == set()
