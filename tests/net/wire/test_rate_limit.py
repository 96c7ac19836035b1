"""Rates and memory that links share."""

import asyncio

import pytest

from offbeat.core.errors import UsageError
from offbeat.net.wire.limits import Limits
from offbeat.net.wire.rate_limit import MemoryBudget, TokenBucket


def test_a_bucket_lets_a_burst_through_and_then_its_rate():
    now = [0.0]
    bucket = TokenBucket(2.0, lambda: now[0])
    assert [bucket.take(1) for _ in range(20)] == [0.0] * 20
    assert bucket.take(1) == 0.5
    now[0] = 0.5
    assert bucket.take(1) == 0.5
    now[0] = 1000.0
    assert bucket.take(20) == 0.0
    assert bucket.take(1) == 0.5


def test_the_pool_makes_who_asks_too_much_wait():
    async def story() -> list[str]:
        pool, said = MemoryBudget(10), []

        async def large() -> None:
            await pool.take(8)
            said.append("large")

        await pool.take(6)
        waiting = asyncio.create_task(large())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        said.append("waits")
        pool.give(6)
        await waiting
        assert pool.free == 2
        return said

    assert asyncio.run(story()) == ["waits", "large"]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"body": 0}, "body = 0"),
        ({"stall": 0.0}, "stall = 0.0"),
        ({"handshake": float("inf")}, "handshake = inf"),
        ({"messages_per_second": float("nan")}, "messages_per_second = nan"),
        ({"bytes_per_second": -1.0}, "bytes_per_second = -1.0"),
        ({"body": 100 << 30}, "memory = "),
        ({"envelope": 5 << 20}, "envelope = "),
    ],
)
def test_limits_that_make_no_sense(wrong: dict[str, float], why: str):
    with pytest.raises(UsageError, match=why):
        Limits(**wrong)
