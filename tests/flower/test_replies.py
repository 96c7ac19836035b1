"""Replies of a node: a run that it cannot take part in, whatever the reason, is left in one line."""

import pytest

pytest.importorskip("flwr")

import offbeat as ob
from offbeat.flower import replies
from offbeat.net.client.first_batch import TrialError
from offbeat.net.client.site import Site
from offbeat.net.messages import Leave, Registered
from tests.net.deviating_server import DATA, plan_of


def test_a_run_whose_trial_fails_is_left_without_the_errors_text() -> None:
    plan = plan_of(None, ob.fedprox(mu=0.1, steps=2))
    plan["algorithm"]["mu"] = 1e308
    left = replies.register(Registered(0, "heart", plan, 60.0), Site.of(DATA), tell_labels=False)
    assert left == Leave(TrialError.told)
