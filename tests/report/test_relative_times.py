"""How long one label takes to a target, relative to another one."""

from math import sqrt

import pytest

from offbeat.report.relative_times import TimeRatio, mostly_reached, time_ratio
from offbeat.verdicts.cost import Cost


def costs(*amounts: float, failed: tuple[int, ...] = ()) -> dict[int, Cost]:
    return {seed: Cost(amount, seed not in failed) for seed, amount in enumerate(amounts)}


def test_it_is_the_geometric_mean_over_the_common_seeds() -> None:
    found = time_ratio(costs(10.0, 40.0, 7.0), costs(20.0, 20.0))
    assert found is not None
    assert found.mean == pytest.approx(1.0)
    assert found.std == pytest.approx(sqrt(2) * 0.693147, rel=1e-5)
    assert found.bound == ""
    assert time_ratio(costs(10.0), costs(20.0)) == TimeRatio(pytest.approx(0.5), None)


def test_the_other_way_round_it_is_the_inverse() -> None:
    ours, theirs = costs(10.0, 40.0, 70.0), costs(20.0, 90.0, 60.0)
    there, back = time_ratio(ours, theirs), time_ratio(theirs, ours)
    assert there is not None
    assert back is not None
    assert there.mean * back.mean == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("ours", "theirs", "bound"),
    [
        (costs(50.0, 300.0, failed=(1,)), costs(50.0, 100.0), ">"),
        (costs(50.0, 100.0), costs(50.0, 300.0, failed=(1,)), "<"),
        (costs(50.0, 300.0, failed=(1,)), costs(300.0, 100.0, failed=(0,)), "≈"),
        (costs(50.0, 300.0, failed=(1,)), costs(50.0, 300.0, failed=(1,)), "≈"),
        # Ours got there after they had ended.
        (costs(50.0, 300.0), costs(50.0, 100.0, failed=(1,)), "≈"),
    ],
)
def test_a_seed_that_did_not_get_there_leaves_a_bound(
    ours: dict[int, Cost], theirs: dict[int, Cost], bound: str
) -> None:
    found = time_ratio(ours, theirs)
    assert found is not None
    assert found.bound == bound


def test_a_seed_that_did_not_get_there_counts_with_its_last_evaluation() -> None:
    found = time_ratio(costs(50.0, 400.0, failed=(1,)), costs(50.0, 100.0))
    assert found is not None
    assert found.mean == pytest.approx(2.0)


def test_there_is_none_without_a_common_seed_or_where_one_was_there_from_the_start() -> None:
    assert time_ratio(costs(10.0), {1: Cost(10.0, reached=True)}) is None
    assert time_ratio(costs(10.0, 10.0), costs(0.0, 10.0)) is None


def test_more_than_half_of_the_seeds_must_get_there() -> None:
    assert mostly_reached({0: 1.0, 1: 1.0, 2: None})
    assert not mostly_reached({0: 1.0, 1: None})
    assert not mostly_reached({})
