"""Fixtures of the server's tests."""

import pytest

import offbeat as ob
from tests.sim.three_classes import three_classes_each


@pytest.fixture(scope="module")
def learner() -> ob.TorchLearner:
    """Clients with three neighbouring classes each; a module of tests may have its own."""
    return three_classes_each()
