"""Fixtures of the network's tests: fast retries, PyTorch left as it was, equal parts of the digits."""

from collections.abc import Iterator

import pytest

from tests.net.support import Shares, hurry, shares_of_digits, torch_left_alone


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sites pause shortly between two attempts; PyTorch has its threads again at the end."""
    hurry(monkeypatch)
    with torch_left_alone():
        yield


@pytest.fixture(scope="module")
def digits(request: pytest.FixtureRequest) -> Shares:
    """Equal parts of the digits for the `SITES` sites of a module of tests, and those for tests."""
    return shares_of_digits(request.module.SITES, samples=400, test_samples=200)
