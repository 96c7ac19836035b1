"""What all tests share."""

import signal

import pytest
import torch


def pytest_configure() -> None:
    """Ctrl-C is tested, also where the tests run in the background of a shell, whose processes ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked `cuda` runs where there is a GPU."""
    if item.get_closest_marker("cuda") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
