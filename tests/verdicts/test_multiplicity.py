"""The level of several looks and of several claims."""

import pytest

from offbeat.verdicts.multiplicity import LEVEL, LOOKS, false_discovery, looks, next_look, spent


def test_the_level_of_all_looks_is_that_of_a_claim() -> None:
    assert sum(LOOKS.values()) == pytest.approx(LEVEL)
    for planned in range(1, 13):
        assert sum(looks(planned).values()) == pytest.approx(LEVEL)


def test_a_study_begins_with_the_seeds_that_it_plans() -> None:
    assert looks(3) == {3: 0.02, 5: 0.01, 8: 0.01, 10: 0.01}
    assert looks(1) == looks(3)
    assert looks(5) == {5: 0.03, 8: 0.01, 10: 0.01}
    assert looks(4) == {4: 0.02, 5: 0.01, 8: 0.01, 10: 0.01}
    assert looks(10) == {10: 0.05}
    assert looks(12) == {12: 0.05}
    assert [next_look(3, seeds) for seeds in (0, 3, 4, 5, 8, 10)] == [3, 5, 5, 8, 10, None]
    assert spent(0.02) == pytest.approx(2.5)


def test_benjamini_and_hochberg_s_own_example() -> None:
    # Benjamini and Hochberg 1995, section 3.2: fifteen p-values, at 5 % the first four are discoveries
    values = [
        0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719,
        0.6528, 0.7590, 1.0,
    ]  # fmt: skip
    adjusted = false_discovery(values)
    assert [p <= LEVEL for p in adjusted] == [True] * 4 + [False] * 11
    assert adjusted[3] == pytest.approx(0.0095 * 15 / 4)
    assert false_discovery(values[::-1]) == adjusted[::-1]
    assert false_discovery([0.04]) == [0.04]
    assert false_discovery([]) == []
