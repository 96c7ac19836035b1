"""The costs of a run at the levels on the way to a target."""

from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.core.metric_names import NamedMetric
from offbeat.verdicts.cost import Cost
from offbeat_papers.levels import LEVELS, Climb, Costs, fair_advantage, level_advantage, level_costs

ACCURACY, LOSS = NamedMetric("accuracy", True), NamedMetric("loss", False)


def evaluations(values: list[float], metric: str = "accuracy") -> list[dict[str, float]]:
    """Evaluations every ten seconds, each after one more version, two tasks and 30 bytes."""
    return [
        {"t": 10.0 * k, "version": k, "tasks": 2 * k, "bytes_up": 10 * k, "bytes_down": 20 * k, metric: value}
        for k, value in enumerate(values)
    ]


def seconds(costs: tuple[Costs | None, ...]) -> list[float | None]:
    """The seconds of costs, rounded."""
    return [None if each is None else round(each[0], 6) for each in costs]


def climb(*amounts: float | None, end: float) -> Climb:
    """The way of a run whose missed levels are None."""
    return Climb(tuple(Cost(end if a is None else a, a is not None) for a in amounts), end)


def test_a_level_is_interpolated_where_the_best_value_so_far_rises_above_it() -> None:
    # From 0.1 to 0.5 the levels are 0.30, 0.34, 0.38, 0.42, 0.46 and 0.50. The second evaluation is at 0.30.
    # After the fall to 0.2 the best value so far is 0.30 until 20 s, and 0.50 at 30 s: 0.34 is a fifth of it.
    found = level_costs(evaluations([0.1, 0.3, 0.2, 0.5]), ACCURACY, 0.5)
    assert seconds(found) == [10, 22, 24, 26, 28, 30]
    assert found[1] == pytest.approx((22.0, 2.2, 4.4, 66.0))


def test_levels_of_a_loss_go_down() -> None:
    up = level_costs(evaluations([-2.0, -1.5, -1.0]), ACCURACY, -1.0)
    down = level_costs(evaluations([2.0, 1.5, 1.0], "loss"), LOSS, 1.0)
    assert seconds(up) == seconds(down) == [10, 12, 14, 16, 18, 20]


def test_levels_above_the_best_value_are_missed() -> None:
    assert seconds(level_costs(evaluations([0.0, 0.65, 0.1]), ACCURACY, 1.0)) == [
        pytest.approx(50 / 6.5), pytest.approx(60 / 6.5), None, None, None, None,
    ]  # fmt: skip
    assert level_costs([], ACCURACY, 0.5) == (None,) * len(LEVELS)


def test_a_target_that_the_initial_model_has_costs_what_the_first_evaluation_came_after() -> None:
    assert seconds(level_costs(evaluations([0.6, 0.2, 0.9]), ACCURACY, 0.5)) == [0.0] * 6


@given(st.lists(st.integers(0, 100).map(lambda k: k / 100), min_size=1, max_size=12), st.integers(1, 100))
def test_levels_cost_more_the_higher_they_are_and_the_last_is_the_target(
    values: list[float], goal: int
) -> None:
    target = goal / 100
    costs = seconds(level_costs(evaluations(values), ACCURACY, target))
    reached = [cost for cost in costs if cost is not None]
    assert (costs[-1] is not None) == (max(values) >= target)
    if target > values[0]:
        assert reached == sorted(reached)
        assert costs == [*reached, *[None] * (len(LEVELS) - len(reached))]


def test_the_advantage_is_the_mean_of_the_logarithms_over_levels() -> None:
    # Twice as fast at the first, a level that the other misses by its end at 40, and one that both miss.
    better, other = climb(10, 20, None, end=40), climb(20, None, None, end=40)
    assert level_advantage(better, other) == pytest.approx((log(2) + log(2) + 0) / 3)
    assert level_advantage(other, better) == pytest.approx(-(log(2) + log(2) + 0) / 3)
    assert level_advantage(climb(None, end=5), climb(None, end=5)) is None


def test_a_longer_run_is_not_behind_for_its_length() -> None:
    # Each run reaches the level at 20 once, and would reach it at 60 once, but the short one ends at 30.
    early, late, short_late = climb(20, end=90), climb(60, end=90), climb(None, end=30)
    short_early = climb(20, end=30)
    with_all = level_advantage(short_early, late), level_advantage(short_late, early)
    assert with_all == (pytest.approx(log(3)), pytest.approx(-log(1.5)))
    within = fair_advantage(short_early, late), fair_advantage(short_late, early)
    assert within == (pytest.approx(log(1.5)), pytest.approx(-log(1.5)))
