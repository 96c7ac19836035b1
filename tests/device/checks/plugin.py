"""The pretended device of each check: a plugin, as a conftest.py would be loaded with all tests.

PyTorch knows its backend before anything is differentiated.
"""

from collections.abc import Iterator

import pytest
import torch

from tests.device.pretended import PretendedDevice, register

register()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedDevice]:
    """The device, whose name learners take."""
    monkeypatch.setattr("offbeat.local.torch_learner.check_device", lambda name: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with PretendedDevice() as made:
        yield made
    torch.set_num_threads(threads)
