"""What a server tells of the dates of its certificate, at the start and while it serves."""

import asyncio
import logging
from pathlib import Path

import pytest

from offbeat.net.auth import certificate_dates
from offbeat.net.auth.certificate_dates import watch_certificate
from tests.net.authority import Authority


class Days:
    """A clock on which nothing waits; the watch is over after some looks."""

    def __init__(self, looks: int) -> None:
        self.looks, self.seconds = looks, 0.0
        self.pauses: list[float] = []

    def now(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.looks -= 1
        self.pauses.append(seconds)
        self.seconds += seconds
        if not self.looks:
            raise asyncio.CancelledError


def watch(path: Path, clock: Days) -> None:
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(watch_certificate(path, clock))


@pytest.mark.parametrize(
    ("days", "level", "says"),
    [
        (-1, logging.ERROR, "has expired (it is valid from "),
        (3, logging.WARNING, "ends in 3.0 days (it is valid from "),
        (90, None, ""),
    ],
    ids=["expired", "near its end", "right"],
)
def test_a_problem_is_told_at_the_start_and_once_a_day(
    days: float, level: int | None, says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, _ = Authority(tmp_path, "ours").issue("server", days=days)
    watch(certificate, Days(looks=30))
    told = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert [number for number, _ in told] == ([] if level is None else [level] * 2)
    assert all(says in text and "have another signed" in text for _, text in told)


def test_the_next_look_is_when_the_certificate_expires(tmp_path: Path) -> None:
    """It is not an hour later."""
    certificate, _ = Authority(tmp_path, "ours").issue("server", days=10 / 86400)
    clock = Days(looks=1)
    watch(certificate, clock)
    assert clock.pauses[0] <= 11
    expired, clock = Authority(tmp_path, "theirs").issue("server", days=-1)[0], Days(looks=1)
    watch(expired, clock)
    assert clock.pauses == [certificate_dates.EVERY]


def test_a_file_that_is_being_replaced_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "server.pem"
    watch(path, Days(looks=2))
    path.write_text("-----BEGIN nothing")
    watch(path, Days(looks=2))
    assert not caplog.records
