"""Garbage of earlier runs is collected before a run sets it aside."""

import weakref
from collections.abc import Callable

import pytest

import offbeat as ob
from offbeat.sim.executors import leftovers, start
from offbeat.sim.executors.leftovers import Leftovers
from tests.sim.sim_worlds import CALM, digits


class Circle(ob.TorchLearner):
    """A learner that refers to itself."""

    def __init__(self) -> None:
        given = digits()
        super().__init__(given.module, given.data, given.training)
        self.circle = self


def two_runs() -> bool:
    """Whether the learner of the first run is gone after the second."""
    learner: Circle | None = Circle()
    there = weakref.ref(learner)
    ob.simulate(ob.fedasync(steps=1), CALM, learner, until=ob.Until(tasks=2))
    learner = None
    ob.simulate(ob.fedasync(steps=1), CALM, digits(), until=ob.Until(tasks=2))
    return there() is None


def test_a_learner_in_a_circle_is_collected_once_the_process_has_grown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(start, "collect_leftovers", lambda: None)
    assert not two_runs()
    monkeypatch.setattr(start, "collect_leftovers", Leftovers(growth=-1).collect)
    assert two_runs()


def collections(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The runs before which there is a collection, for the sizes that the process has then."""
    found: list[int] = []
    before: Callable[[], int] = iter(sizes).__next__
    size = [sizes[0]]
    monkeypatch.setattr(leftovers, "resident", lambda: size[0])
    own = Leftovers(growth=10)
    for run in range(len(sizes)):
        size[0] = before()
        monkeypatch.setattr(leftovers.gc, "collect", lambda run=run: found.append(run))
        own.collect()
    return found


def test_it_looks_at_the_size_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert collections([100, 105, 110, 111, 120, 122, 90, 101], monkeypatch) == [3, 5, 7]


def test_without_a_size_some_runs_have_a_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    assert collections([0] * 120, monkeypatch) == [49, 99]
