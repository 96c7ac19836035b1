"""Tests of a group run in one worker, so that what they share is made once."""

import pytest


@pytest.mark.xdist_group("groups")
def test_a_worker_knows_the_group_of_a_test(request: pytest.FixtureRequest) -> None:
    """pytest 9.2 and pytest-xdist 3.8 forget all groups without a word."""
    if not request.config.getoption("loadgroup", None):
        pytest.skip("not with --dist loadgroup")
    assert request.node.nodeid.endswith("@groups")
