"""The limit of open files is raised, and divided so that the run's own files have some."""

import resource
from collections.abc import Iterator

import pytest

from offbeat.core.errors import UsageError
from offbeat.net import descriptors


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_becomes_the_hard_one(limits: tuple[int, int]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
    assert descriptors.limit() == 512
    descriptors.raise_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limits[1]


@pytest.mark.parametrize("limit", [320, 400, 1024, 4096, 65536])
def test_connections_leave_some_for_files(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "limit", lambda: limit)
    assert descriptors.for_sites() + descriptors.for_page() == limit - descriptors.RESERVED
    assert 8 <= descriptors.for_page() <= 128
    assert descriptors.for_sites() >= 56


def test_too_few_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "limit", lambda: 100)
    with pytest.raises(UsageError, match=r"open files = 100: a server needs at least 320; raise .*ulimit -n"):
        descriptors.raise_limit()
