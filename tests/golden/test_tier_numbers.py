"""FedAT's weighted mean of tiers, worked out by hand (the arithmetic is in the comments)."""

import pytest
import torch

import offbeat as ob
from offbeat.algorithms.fedat import TierWeights
from offbeat.core.aggregator import Update
from offbeat.core.algorithm import Algorithm
from offbeat.core.events import Left
from offbeat.core.layout import Layout
from offbeat.core.model import Model
from offbeat.core.schedule import Task
from offbeat.local.objectives import Plain
from tests.golden.hand_driven import HandDriven
from tests.golden.near import near


def two_tiers() -> HandDriven:
    """Clients 0 and 1 answer within 2 s, client 2 after 3 s."""
    run = HandDriven(ob.fedat(1, ratio=2.0), [1, 3, 2], [0.0, 0.0])
    run.model(1, 0, 4.0, 0.0)  # opens tier 1 for response times from 1 s to 2 s
    assert run.model(1.5, 1, 0.0, 4.0) == []
    run.timer(2.0, "tier 1")
    return run


def test_two_tiers_over_five_aggregations():
    run = two_tiers()
    assert run.w == near(1.0, 3.0)  # 1/4·(4, 0) + 3/4·(0, 4); T_1 = 2
    run.model(3, 2, 8.0, 0.0)  # tier 2, which has nobody else: w_2 = (8, 0), T_2 = 2
    assert run.w == near(4.5, 1.5)  # 2/4·(1, 3) + 2/4·(8, 0)
    run.model(3.5, 0, 2.0, 2.0)
    run.model(4, 1, 6.0, 2.0)  # w_1 = 1/4·(2, 2) + 3/4·(6, 2) = (5, 2), T_1 = 3
    assert run.w == near(6.8, 0.8)  # T_2/T·w_1 + T_1/T·w_2 = 2/5·(5, 2) + 3/5·(8, 0)
    run.model(5, 0, 0.0, 0.0)
    run.model(5.5, 1, 4.0, 4.0)  # w_1 = (3, 3), T_1 = 4
    assert run.w == near(19 / 3, 1.0)  # 2/6·(3, 3) + 4/6·(8, 0)
    run.model(6, 2, 2.0, 6.0)  # w_2 = (2, 6), T_2 = 3
    assert run.w == near(17 / 7, 33 / 7)  # 3/7·(3, 3) + 4/7·(2, 6)
    assert run.tensors.memory["tier.1"].tolist() == near(3.0, 3.0)
    assert [int(run.tensors.memory[f"updates.{m}"]) for m in (1, 2)] == [4, 3]


def test_a_tier_whose_clients_are_gone_has_no_weight():
    run = two_tiers()
    run.model(3, 2, 8.0, 0.0)
    run.feed(3.1, Left(2))
    run.model(3.5, 0, 2.0, 2.0)
    run.model(4, 1, 6.0, 2.0)
    assert run.w == near(5.0, 2.0)  # w_1 alone


def test_three_tiers_by_their_order_not_their_number():
    model = Model(Layout.flat(1), torch.tensor([1.0]), torch.zeros(0, dtype=torch.int64))
    memory = {
        "tier.1": torch.tensor([10.0]), "updates.1": torch.tensor([2]),
        "tier.2": torch.tensor([20.0]), "updates.2": torch.tensor([1]),
        "tier.3": torch.tensor([99.0]), "updates.3": torch.tensor([4]),
    }  # fmt: skip
    note = {"tier": 3, "order": [3, 1, 2]}  # tier 3 is the fastest
    base = Model(model.layout, torch.tensor([0.0]), model.integers)
    updates = [
        Update(Task(0, 0, 0, 1, 0.0, samples=1), base, torch.tensor([24.0]), model.integers, note=note),
        Update(Task(1, 1, 0, 1, 0.0, samples=3), model, torch.tensor([39.0]), model.integers, note=note),
    ]
    step = TierWeights().step(updates, model, memory)
    # w_3 = 1/4·24 + 3/4·40 = 36; T = 5, 2, 1 from the fastest on: 1/8·36 + 2/8·10 + 5/8·20 = 19.5
    assert (model.values + step).tolist() == near(19.5)
    assert memory["tier.3"].tolist() == near(36.0)
    assert int(memory["updates.3"]) == 5


def test_tier_weights_need_a_schedule_with_tiers():
    with pytest.raises(ob.UsageError, match=r"TierWeights needs a schedule that aggregates by tiers"):
        Algorithm(ob.fedavg(1).schedule, TierWeights(), Plain())
