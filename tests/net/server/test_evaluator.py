"""The evaluator measures one version at a time, of those that wait the newest, and ends when it is told."""

import asyncio
import gc

from offbeat.core.learner import NoTraining
from offbeat.core.model import Model
from offbeat.net.server.effects import Evaluation
from offbeat.net.server.evaluator import Evaluator

MODEL = NoTraining(1, 2).initial(0)


def due(version: int) -> Evaluation:
    return Evaluation(0.0, version, 0, 0, 0, MODEL)


def test_of_those_that_wait_the_newest_is_measured() -> None:
    async def measured() -> list[int]:
        evaluator = Evaluator(lambda _: {"loss": 1.0}, lambda: None)
        for version in range(4):
            evaluator.due(due(version))
        found = await evaluator.last(due(5))
        await evaluator.close()
        return [evaluation.version for evaluation, _ in found]

    assert asyncio.run(measured()) == [0, 5]


def test_what_is_due_when_it_is_closed_is_left_alone() -> None:
    """Closed in the very moment between the end of one and the start of the next."""
    times = 0
    wrong: list[object] = []

    def evaluate(_: Model) -> dict[str, float]:
        nonlocal times
        times += 1
        return {}

    async def close_in_between() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, about: wrong.append(about))
        done = asyncio.Event()
        evaluator = Evaluator(evaluate, done.set)
        evaluator.due(due(1))
        evaluator.due(due(2))
        await done.wait()
        await evaluator.close()
        for _ in range(5):
            await asyncio.sleep(0)
        del evaluator
        gc.collect()  # which is when a task says that nobody has asked how it ended

    asyncio.run(close_in_between())
    assert times == 1
    assert not wrong
