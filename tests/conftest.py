"""What all tests share."""

import pytest
import torch


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked `cuda` runs where there is a GPU."""
    if item.get_closest_marker("cuda") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
