"""A server whose run has ended stays until those that scrape it know; it waits for nobody else."""

import asyncio
from collections.abc import Callable

import pytest

from offbeat.net.monitor.scrapes import MOST_SECONDS, Scrapes


class Now:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def scrape(now: Now) -> tuple[Scrapes, Callable[..., None]]:
    """The scrapes, and what adds one at a second."""
    scrapes = Scrapes(now)

    def add(at: float, host: str = "10.0.0.1", *, ended: bool = False) -> None:
        now.seconds = 1000.0 + at
        scrapes.add(host, ended=ended)

    return scrapes, add


def test_nobody_is_waited_for_who_has_not_scraped_again_and_again(now: Now, scrape: tuple) -> None:
    scrapes, add = scrape
    assert scrapes.awaited == 0
    add(0.0)
    assert scrapes.awaited == 0, "one look is no scraper"
    asyncio.run(scrapes.told())


def test_a_scraper_is_waited_for_until_it_has_missed_one_scrape(now: Now, scrape: tuple) -> None:
    scrapes, add = scrape
    for at in (0.0, 15.0):
        add(at)
    assert scrapes.awaited == 30
    now.seconds += 12
    assert scrapes.awaited == 18
    now.seconds += 18
    assert scrapes.awaited == 0


def test_who_scrapes_seldom_is_not_waited_for_without_end(scrape: tuple) -> None:
    scrapes, add = scrape
    add(0.0)
    add(3600.0)
    assert scrapes.awaited == MOST_SECONDS


def test_each_of_two_scrapers_must_know(scrape: tuple) -> None:
    scrapes, add = scrape
    for at in (0.0, 15.0):
        add(at)
        add(at + 1.0, "10.0.0.2")
    add(30.0, ended=True)
    assert scrapes.awaited == pytest.approx(16)
    add(31.0, "10.0.0.2", ended=True)
    assert scrapes.awaited == 0


def test_the_wait_ends_with_the_scrape_that_says_so(scrape: tuple) -> None:
    scrapes, add = scrape
    for at in (0.0, 15.0):
        add(at)

    async def story() -> None:
        told = asyncio.create_task(scrapes.told())
        await asyncio.sleep(0)
        add(30.0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not told.done(), "the answer was from before the end"
        add(45.0, ended=True)
        await told

    asyncio.run(story())
