"""How long a site tries to reach a server that is not there, and what it says meanwhile."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from offbeat.core.errors import RunError
from offbeat.net.backoff import GIVE_UP_AFTER, LONGEST_DELAY, Backoff
from offbeat.net.client.site_client import SiteClient
from offbeat.net.client.transfers import Attempts
from offbeat.net.messages import Rejected
from offbeat.net.transport import ChannelClosedError, ChannelRefusedError
from offbeat.testing import FakeClock

PAGE = (Path(__file__).parents[2] / "docs" / "operate.md").read_text("utf-8")
NIGHT, WEEKEND = 14 * 3600.0, 64 * 3600.0


def tries(backoff: Backoff, start: float, end: float) -> float:
    """Attempts that all fail, from one time to another; when the last was made."""
    now = start
    while now < end:
        now += backoff.next_delay(now, "nobody listens")
    return now


def test_pauses_grow_up_to_a_limit() -> None:
    backoff = Backoff(None, Random(0), 0.0)
    pauses = [backoff.next_delay(0.0, "") for _ in range(2000)]
    assert all(0.25 * 2**k <= pause <= 0.5 * 2**k for k, pause in enumerate(pauses[:6]))
    assert all(LONGEST_DELAY / 2 <= pause <= LONGEST_DELAY for pause in pauses[6:])


def test_a_night_and_a_weekend_are_no_reason_to_give_up_but_three_days_are() -> None:
    backoff = Backoff(GIVE_UP_AFTER, Random(0), 0.0)
    back = 0.0
    for away in (NIGHT, WEEKEND):
        back = tries(backoff, back, back + away)
        backoff.succeeded(back)
    with pytest.raises(RunError, match=r"no server for 3 days \(nobody listens\): the run may have finished"):
        tries(backoff, back, back + GIVE_UP_AFTER + LONGEST_DELAY)
    assert "It gives up after three days without one" in PAGE


def test_what_counts_is_the_time_since_the_server_was_heard() -> None:
    backoff = Backoff(100.0, Random(0), 0.0)
    now = tries(backoff, 0.0, 90.0)
    backoff.succeeded(50.0)
    tries(backoff, now, 149.0)
    with pytest.raises(RunError, match="no server for 100 s"):
        backoff.next_delay(151.0, "nobody listens")


def test_it_says_that_it_waits_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    backoff = Backoff(7 * 86400.0, Random(0), 0.0)
    tries(backoff, 0.0, 86400.0)
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith("not connected for 0 s (nobody listens): attempt 1, the next in 0.")
    assert said[0].endswith("; gives up in 7 days")
    assert 24 <= len(said) <= 48
    assert "not connected for 23 h 14 min (nobody listens): attempt 3712" in said[-1]


def test_without_a_limit_it_never_gives_up() -> None:
    tries(Backoff(None, Random(0), 0.0), 0.0, 1e6)


def test_a_site_gives_up_by_itself() -> None:
    clock, attempts = FakeClock(), 0

    async def nobody() -> Any:
        nonlocal attempts
        attempts += 1
        raise ChannelClosedError("nobody listens")

    def never(*_: Any) -> Any:
        raise AssertionError

    async def story() -> None:
        site = asyncio.create_task(SiteClient(nobody, never, 10, clock=clock).run())
        for tried in range(10):
            while attempts == tried:
                await asyncio.sleep(0)
            await clock.advance(GIVE_UP_AFTER / 10)
        assert not site.done()
        await clock.advance(LONGEST_DELAY)
        with pytest.raises(RunError, match="no server for 3 days"):
            await asyncio.wait_for(site, 300)

    asyncio.run(story())


class _Unwelcoming:
    """A link whose server is there, but does not let the site in yet."""

    def send(self, message: Any) -> None:
        """Whatever it is."""

    async def receive(self) -> Any:
        """Not yet."""
        return Rejected("come back later", final=False)

    async def close(self, reason: str = "") -> None:
        """Nothing to close."""


def test_a_server_that_does_not_let_a_site_in_is_asked_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []

    class Noted(Backoff):
        def next_delay(self, now: float, reason: str, failed: Sequence[Attempts] = ()) -> float:
            assert reason == "come back later"
            waits.append(super().next_delay(now, reason))
            return 0.0

    async def connect() -> Any:
        if len(waits) == 8:
            raise ChannelRefusedError("enough")
        return _Unwelcoming()

    def never(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr("offbeat.net.client.site_client.Backoff", Noted)
    with pytest.raises(RunError, match="enough"):
        asyncio.run(SiteClient(connect, never, 10).run())
    assert all(0.25 * 2**k <= wait <= 0.5 * 2**k for k, wait in enumerate(waits[:6]))
