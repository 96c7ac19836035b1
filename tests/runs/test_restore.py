"""A run goes on under the rule of the guard that it was begun under."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import offbeat as ob
from offbeat.core.global_model import GlobalModel
from offbeat.core.guard import GUARD_RULE, Guard
from offbeat.core.guard_rule_1 import UpdateGuardRule1
from offbeat.core.learner import LocalResult
from offbeat.runs.restore import follow_recorded_rules

CLIENTS, NOTHING = 3, torch.zeros(0, dtype=torch.int64)


def guarded(rule: int | None) -> Any:
    """The guard of a run whose record has this rule."""
    tensors = GlobalModel(ob.fedbuff(2, steps=2), ob.Model.empty(ob.Layout.flat(2)))
    tensors.set_guard(Guard(), CLIENTS)
    record: Any = SimpleNamespace(meta={} if rule is None else {"guard_rule": rule})
    follow_recorded_rules(tensors, record, Guard(), CLIENTS)
    return tensors.guard


@pytest.mark.parametrize("rule", [None, 1])
def test_the_first_rule_has_its_own_guard(rule: int | None) -> None:
    assert isinstance(guarded(rule), UpdateGuardRule1)


@pytest.mark.parametrize(("rule", "twice"), [(2, False), (3, False), (GUARD_RULE, True)])
def test_the_warm_up_is_judged_a_second_time_since_the_fourth_rule(rule: int, twice: bool) -> None:
    """Client 0 poisons the model. The first updates of the others are large too, their later ones are not."""
    guard, model = guarded(rule), ob.Model.empty(ob.Layout.flat(2))
    sizes = [(0, 90.0), (1, 20.0), (2, 20.0), *((client, 0.5) for _ in range(9) for client in (1, 2))]
    for task, (client, size) in enumerate(sizes):
        update = LocalResult(torch.tensor([size, 0.0]), NOTHING)
        assert guard.check(client, 1, update, model, 1, task) is None
    assert (guard.poisoned is not None) == twice
    assert guard.settled
