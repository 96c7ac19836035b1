"""Seeds of releases: one for a release, for its updates alone."""

import pytest

from offbeat.core.commands import Aggregate
from offbeat.core.errors import RunError
from offbeat.net.secure.release_seeds import FreshSeeds, ReleaseSeed

RECORDED = ReleaseSeed(5, (1, 2), b"r" * 32)


def seeds(*, repeating: bool = False) -> FreshSeeds:
    made = FreshSeeds(lambda size: b"f" * size)
    made.recorded[RECORDED.version] = RECORDED
    made.repeating = repeating
    return made


def release(*tasks: int, version: int = 5) -> Aggregate:
    return Aggregate(tasks, version=version)


@pytest.mark.parametrize("repeating", [True, False])
def test_a_release_that_is_made_again_has_the_seed_that_it_had(repeating: bool) -> None:
    made = seeds(repeating=repeating)
    assert made.noise(release(1, 2)) == RECORDED.seed
    assert made.take() == []


@pytest.mark.parametrize("tasks", [(1, 3), (2, 1), (1,), (1, 2, 3)])
def test_other_updates_never_have_the_seed_of_a_recorded_release(tasks: tuple[int, ...]) -> None:
    """The difference of two sums with the same noise has none."""
    made = seeds()
    assert made.noise(release(*tasks)) == b"f" * 32
    assert made.take() == [ReleaseSeed(5, tasks, b"f" * 32)]
    with pytest.raises(RunError, match=r"its seed in secrets\.db is of other updates"):
        seeds(repeating=True).noise(release(*tasks))


def test_a_release_is_not_repeated_with_a_fresh_seed() -> None:
    with pytest.raises(RunError, match=r"its seed in secrets\.db is not there"):
        seeds(repeating=True).noise(release(1, 2, version=6))


def test_a_release_asks_for_its_seed_more_than_once() -> None:
    made = seeds()
    assert made.noise(release(4, version=6)) == made.noise(release(4, version=6))
    assert len(made.take()) == 1
