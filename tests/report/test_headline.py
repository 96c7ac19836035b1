"""The sentence above a comparison: who is first, by how much, and whether that is beyond the noise."""

from dataclasses import replace
from typing import Any

import pytest

from offbeat.report import make_table, to_text
from tests.report.report_fakes import FakeRun, evaluation


def runs(label: str, times: list[float], *, reached: bool = True, **options: Any) -> list[FakeRun]:
    """A run for each time to 60 %; or one that was last evaluated then, and had not got there."""
    return [
        FakeRun(
            label, seed, evaluations=[evaluation(0.0, 0.1), evaluation(time, 0.7 if reached else 0.2)],
            duration=time, recipe={"seeds": len(times)}, **options,
        )
        for seed, time in enumerate(times)
    ]  # fmt: skip


def headline(*groups: list[FakeRun], target: float | None = 0.6) -> str:
    found = make_table([run for group in groups for run in group], target=target).headline
    return found or "none"


def test_a_clear_difference_is_beyond_the_noise() -> None:
    fast, slow = runs("fast", [50.0, 51.0, 52.0]), runs("slow", [101.0, 99.0, 105.0])
    assert headline(slow, fast) == (
        "fast was first to 60 % accuracy, after 51 s: 2 times as fast as slow, beyond the noise of 3 seeds."
    )


def test_times_that_vary_more_than_they_differ_are_within_the_noise() -> None:
    one, other = runs("one", [20.0, 200.0, 60.0]), runs("other", [90.0, 30.0, 250.0])
    assert headline(one, other).endswith("within the noise of 3 seeds.")


def test_the_next_and_the_last_are_named_each_with_its_noise() -> None:
    first = runs("a", [50.0, 55.0, 45.0])
    near, far = runs("b", [48.0, 60.0, 52.0]), runs("c", [500.0, 510.0, 490.0])
    found = headline(far, near, first)
    assert found.startswith(
        "a was first to 60 % accuracy, after 50 s: 1.1 times as fast as b (within the noise"
    )
    assert found.endswith("10 times as fast as c (beyond the noise of 3 seeds).")


@pytest.mark.parametrize(("seeds", "words"), [(1, "1 seed"), (2, "2 seeds")])
def test_too_few_seeds_are_not_judged(seeds: int, words: str) -> None:
    found = headline(runs("a", [50.0] * seeds), runs("b", [100.0] * seeds))
    assert found.endswith(f"not judged by {words}: the noise is judged from 3 seeds on.")


def test_more_planned_seeds_are_waited_for() -> None:
    groups = [runs("a", [5.0] * 3), runs("b", [9.0] * 3)]
    found = headline(*([replace(run, recipe={"seeds": 5}) for run in group] for group in groups))
    assert found.endswith("the noise is judged from 5 seeds on.")


def test_seeds_that_did_not_get_there_count_as_what_they_took() -> None:
    late = runs("b", [100.0, 101.0, 99.0], reached=False)
    assert headline(runs("a", [25.0, 26.0, 24.0]), late) == (
        "a was first to 60 % accuracy, after 25 s: 4 times as fast as b, beyond the noise of 3 seeds."
    )


@pytest.mark.parametrize("target", [None, 0.99])
def test_without_times_the_values_at_the_end_are_compared(target: float | None) -> None:
    def ending(label: str, values: list[float]) -> list[FakeRun]:
        return [
            FakeRun(label, seed, evaluations=[evaluation(1.0, value)], recipe={"seeds": len(values)})
            for seed, value in enumerate(values)
        ]

    found = headline(ending("a", [0.8, 0.81, 0.79]), ending("b", [0.9, 0.92, 0.91]), target=target)
    assert found == "b has the best accuracy at the end: 11 points above a, beyond the noise of 3 seeds."


def test_runs_that_cannot_be_paired_have_no_headline() -> None:
    one, other = runs("a", [50.0] * 3), runs("b", [90.0] * 3)
    assert headline(one) == "none"
    assert headline(one, [replace(run, status="running") for run in other]) == "none"
    apart = [replace(run, processors=(name,)) for run in one for name in "x"]
    assert headline(apart, [replace(run, processors=("y",)) for run in other]) == "none"


def test_the_terminal_shows_it_first() -> None:
    table = make_table([*runs("a", [50.0] * 3), *runs("b", [90.0] * 3)], target=0.6)
    assert table.headline is not None
    assert to_text(table).startswith(table.headline)
