"""The evaluator evaluates one version at a time, of those that wait the newest, and ends when it is told."""

from threading import Event

import pytest

from offbeat.core.learner import NoTraining
from offbeat.core.model import Model
from offbeat.net.server.effects import Evaluation
from offbeat.net.server.evaluation_thread import EvaluationThread, Measurements

MODEL = NoTraining(1, 2).initial(0)


def due(version: int) -> Evaluation:
    return Evaluation(0.0, version, 0, 0, 0, MODEL)


def versions(found: Measurements) -> list[int]:
    return [evaluation.version for evaluation, _ in found]


def test_of_those_that_wait_the_newest_is_evaluated() -> None:
    started, go_on, done = Event(), Event(), Event()

    def evaluate(_: Model) -> dict[str, float]:
        started.set()
        assert go_on.wait(30)
        return {"loss": 1.0}

    evaluator = EvaluationThread(evaluate, done.set)
    evaluator.request(due(0))
    assert started.wait(30)
    for version in (1, 2, 3):
        evaluator.request(due(version))
    assert evaluator.collect() == []
    go_on.set()
    assert done.wait(30)
    done.clear()
    assert versions(evaluator.collect()) == [0]
    assert done.wait(30)
    assert versions(evaluator.collect()) == [3]
    assert evaluator.finish(due(3)) == []  # it was the last
    assert versions(evaluator.finish(due(5))) == [5]
    assert evaluator.finish(None) == []
    evaluator.close()


def test_the_last_version_takes_the_place_of_what_waits() -> None:
    evaluator = EvaluationThread(lambda _: {"loss": 1.0})
    for version in range(4):
        evaluator.request(due(version))
    assert versions(evaluator.finish(due(5))) == [0, 5]
    evaluator.close()


def test_what_an_evaluation_raises_is_raised_when_it_is_collected() -> None:
    def evaluate(_: Model) -> dict[str, float]:
        raise ArithmeticError("the data are gone")

    evaluator = EvaluationThread(evaluate)
    evaluator.request(due(1))
    with pytest.raises(ArithmeticError, match="the data are gone"):
        evaluator.finish(None)
    evaluator.close()


def test_what_waits_when_it_is_closed_is_left_alone() -> None:
    seen = list[int]()
    started, go_on = Event(), Event()

    def evaluate(_: Model) -> dict[str, float]:
        seen.append(1)
        started.set()
        assert go_on.wait(30)
        return {}

    evaluator = EvaluationThread(evaluate, go_on.set)
    evaluator.request(due(1))
    evaluator.request(due(2))
    assert started.wait(30)
    go_on.set()
    evaluator.close()
    assert seen == [1]


def test_without_a_function_nothing_is_evaluated() -> None:
    evaluator = EvaluationThread(None)
    evaluator.request(due(1))
    assert evaluator.finish(due(2)) == []
    evaluator.close()
