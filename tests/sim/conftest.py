"""Fixtures of the simulator's tests."""

import pytest

import offbeat as ob
from tests.sim.sim_worlds import digits


@pytest.fixture(scope="module")
def learner() -> ob.TorchLearner:
    """Clients with unequal shares of a few digits; a module of tests has its own."""
    return digits()
