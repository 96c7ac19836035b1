"""What the tests of the network share: fast retries, and PyTorch left as it was found."""

from collections.abc import Iterator

import pytest

from tests.net.support import hurry, torch_left_alone


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sites pause shortly between two attempts; PyTorch has its threads again at the end."""
    hurry(monkeypatch)
    with torch_left_alone():
        yield
