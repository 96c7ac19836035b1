"""The sentence above a comparison: who is first, by how much, and whether that is beyond the noise."""

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from offbeat.report import make_table, to_text
from offbeat.report.render import to_cells
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
        "fast was first to 60 % accuracy, after 51.0 s: 2 times as fast as slow, beyond the noise of 3 seeds."
    )


def test_times_that_vary_more_than_they_differ_are_not_decided() -> None:
    one, other = runs("one", [20.0, 200.0, 60.0]), runs("other", [90.0, 30.0, 250.0])
    assert headline(one, other).endswith("not decided by 3 seeds.")


def test_the_next_and_the_last_are_named_each_with_its_noise() -> None:
    first = runs("a", [50.0, 55.0, 45.0])
    near, far = runs("b", [48.0, 60.0, 52.0]), runs("c", [500.0, 510.0, 490.0])
    found = headline(far, near, first)
    assert found.startswith(
        "a was first to 60 % accuracy, after 0.83 min: 1.1 times as fast as b (not decided by 3 seeds)"
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


@pytest.mark.parametrize("seeds", [0, -1, 10**30, "many", None])
def test_numbers_of_seeds_that_are_none_plan_nothing(seeds: object) -> None:
    groups = [runs("a", [50.0, 51.0, 52.0]), runs("b", [101.0, 99.0, 105.0])]
    found = headline(*([replace(run, recipe={"seeds": seeds}) for run in group] for group in groups))
    assert found.endswith("beyond the noise of 3 seeds.")


def test_a_label_that_did_not_get_there_has_no_factor() -> None:
    fast, slow = runs("a", [25.0, 26.0, 24.0]), runs("c", [50.0, 52.0, 48.0])
    late = [runs(label, [100.0, 101.0, 99.0], reached=False) for label in ("b", "d")]
    once = [*runs("e", [100.0, 100.0], reached=False), replace(runs("e", [10.0] * 3)[2])]
    assert headline(*late, fast) == "a was first to 60 % accuracy, after 25.0 s. b and d did not reach it."
    assert headline(*late, once, fast, slow) == (
        "a was first to 60 % accuracy, after 25.0 s: 2 times as fast as c, not decided by 3 seeds. "
        "b and d did not reach it; e reached it in 1 of 3 seeds only."
    )


def test_a_seed_that_did_not_get_there_makes_the_factor_a_bound() -> None:
    fast = runs("a", [25.0, 25.0, 25.0])
    slow = [*runs("b", [50.0, 50.0]), replace(runs("b", [50.0] * 3, reached=False)[2])]
    assert "25 s: more than 2 times as fast as b" in headline(slow, fast)
    most = [*runs("a", [25.0, 25.0]), replace(runs("a", [400.0] * 3, reached=False)[2])]
    found = headline(most, runs("b", [200.0, 200.0, 300.0]))
    assert "a was first to 60 % accuracy, after 0.4167 min in 2 of 3 seeds: at most 3.6 times" in found


def test_the_order_of_the_runs_does_not_matter() -> None:
    late = [runs(label, [60.0, 60.0, 60.0], reached=False) for label in ("c", "d")]
    groups = [runs("b", [20.0, 20.0, 20.0]), runs("a", [20.0, 20.0, 20.0]), *late]
    found = {headline(*order) for order in permutations(groups)}
    assert len(found) == 1
    tie = "were first to 60 % accuracy, after 20 s (a tie). c and d did not reach it."
    assert found.pop() == f"a and b {tie}"
    better = [replace(run, evaluations=[*run.evaluations, evaluation(21.0, 0.9)]) for run in groups[0]]
    assert headline(*groups[1:], better) == f"b and a {tie}", "the value at the end orders them"


def test_labels_at_the_target_from_the_start_have_no_factor() -> None:
    found = headline(runs("a", [0.0, 0.0, 0.0]), runs("b", [5.0, 6.0, 4.0]))
    assert found.startswith("a was first to 60 % accuracy, after 0 s: ahead of b, ")


def test_exact_ties_have_no_winner() -> None:
    a, b, c = (runs(label, [time] * 3) for label, time in (("a", 20.0), ("b", 20.0), ("c", 40.0)))
    assert headline(a, b) == "a and b were first to 60 % accuracy, after 20 s (a tie)."
    assert headline(c, b, a).startswith(
        "a and b were first to 60 % accuracy, after 20 s (a tie): 2 times as fast as c, "
    )
    swapped = [runs("a", [20.0, 40.0, 30.0]), runs("b", [40.0, 20.0, 30.0])]
    assert headline(*swapped) == "a and b were first to 60 % accuracy, after 30 s (a tie)."
    assert make_table([*a, *b, *c], target=0.6).first == ("a", "b")
    assert headline(c, b, a, target=None) == "a, b and c have the best accuracy at the end (a tie)."


def test_times_that_are_nearly_equal_are_as_fast_as_each_other() -> None:
    assert "after 20 s: as fast as b, " in headline(runs("a", [20.0] * 3), runs("b", [20.01] * 3))


def test_a_label_that_diverged_is_marked_and_has_no_place() -> None:
    a, b, c = runs("a", [20.0] * 3), runs("b", [40.0] * 3), runs("c", [10.0] * 3)
    guard = "the last 10 updates were refused for their size: the training has diverged"
    lost = [replace(c[0], status="diverged"), c[1], replace(c[2], stop_reason=guard)]
    table = make_table([*a, *b, *lost], target=0.6)
    assert table.headline is not None
    assert table.headline.startswith("a was first to 60 % accuracy, after 20 s: 2 times as fast as b")
    assert [row.diverged for row in table.rows] == [0, 0, 2]
    assert [row[0] for row in to_cells(table).rows] == ["a", "b", "c (2 of 3 diverged)"]
    assert "c, seed 2, has diverged: its numbers are of the part that ran." in table.notes
    whole = make_table([*a, *(replace(run, status="diverged") for run in c)], target=0.6)
    assert to_cells(whole).rows[1][0] == "c (diverged)"


def test_headline_table_and_legend_have_one_factor() -> None:
    records = [*runs("a", [10.0, 40.0, 90.0]), *runs("b", [40.0, 80.0, 90.0])]
    table = make_table(records, target=0.6, baseline="b")
    assert table.headline is not None
    assert "after 50 s: 2 times as fast as b" in table.headline
    assert table.rows[0].relative == pytest.approx(0.5)
    assert to_cells(table).rows[0][4] == "50 ± 40"


@pytest.mark.parametrize(("target", "before"), [(None, ""), (0.99, "No label reached 99 % accuracy. ")])
def test_without_times_the_values_at_the_end_are_compared(target: float | None, before: str) -> None:
    def ending(label: str, values: list[float]) -> list[FakeRun]:
        return [
            FakeRun(label, seed, evaluations=[evaluation(1.0, value)], recipe={"seeds": len(values)})
            for seed, value in enumerate(values)
        ]

    found = headline(ending("a", [0.8, 0.81, 0.79]), ending("b", [0.9, 0.92, 0.91]), target=target)
    assert found == (
        f"{before}b has the best accuracy at the end: 11 points above a, beyond the noise of 3 seeds."
    )


def test_a_target_that_few_seeds_reached_is_not_dropped_silently() -> None:
    once = [*runs("a", [50.0, 50.0], reached=False), replace(runs("a", [50.0] * 3)[2])]
    never = runs("b", [50.0] * 3, reached=False)
    never = [replace(run, evaluations=[evaluation(50.0, 0.2 + 1e-9 * run.seed)]) for run in never]
    assert headline(never, once).startswith(
        "No label reached 60 % accuracy in more than half of its seeds. "
        "a has the best accuracy at the end: 16.7 points above b"
    )
    pair = [
        FakeRun(label, 0, evaluations=[evaluation(1.0, value)]) for label, value in (("a", 0.5), ("b", 0.51))
    ]
    assert "at the end: 1 point above a, not judged" in headline(pair, target=None)


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
