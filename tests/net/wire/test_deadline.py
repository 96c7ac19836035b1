"""A deadline on one timer: missed once, never early, and silent once it has ended."""

import asyncio
from random import Random

import pytest

from offbeat.net.wire.deadline import Deadline
from tests.system.loop import virtual_time


def missed_at(*steps: tuple[float, str, float]) -> list[float]:
    """When a deadline was missed, of which `begin` or `end` was called at these times."""
    found: list[float] = []

    async def follow() -> None:
        loop = asyncio.get_running_loop()
        deadline = Deadline(lambda: found.append(loop.time()))
        for at, call, seconds in steps:
            await asyncio.sleep(at - loop.time())
            deadline.begin(seconds) if call == "begin" else getattr(deadline, call)()
        await asyncio.sleep(1000)
        deadline.close()

    with virtual_time(Random(0)) as loop:
        loop.run_until_complete(follow())
    return found


def test_it_is_missed_once_and_at_its_time() -> None:
    assert missed_at((0, "begin", 10)) == pytest.approx([10])


def test_the_last_begin_counts() -> None:
    assert missed_at((0, "begin", 10), (6, "begin", 10)) == pytest.approx([16])
    assert missed_at((0, "begin", 300), (5, "begin", 10)) == pytest.approx([15])  # earlier than the timer was
    assert missed_at((0, "begin", 10), (4, "end", 0), (8, "begin", 300)) == pytest.approx([308])


def test_what_is_done_is_not_missed() -> None:
    assert missed_at((0, "begin", 10), (9, "end", 0)) == []
    assert missed_at((0, "begin", 10), (9, "close", 0)) == []


def test_seconds_that_are_over_are_missed_at_once() -> None:
    assert missed_at((0, "begin", 10), (5, "begin", -1)) == pytest.approx([5])
