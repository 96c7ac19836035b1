"""Each algorithm's equation, worked out by hand on two parameters (the arithmetic is in the comments)."""

from dataclasses import replace
from math import sqrt

import pytest
import torch

import offbeat as ob
from offbeat.core.aggregator import Update
from offbeat.core.commands import Aggregate, Train
from offbeat.core.events import Left
from offbeat.core.global_model import GlobalModel
from offbeat.core.layout import Entry, Layout
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model
from offbeat.core.schedule import Task
from tests.golden.hand_driven import HandDriven
from tests.golden.near import near

# ---- the global model alone, without a server ----


def test_hand_made_tasks_through_the_global_model():
    model = Model.empty(Layout.flat(2))
    tensors = GlobalModel(ob.fedavg(1), model)
    for i, (samples, delta) in enumerate([(1, [4.0, 8.0]), (3, [8.0, 0.0])]):
        tensors.dispatch(i)
        task = Task(i, i, base=0, steps=1, started=0.0, staleness=0, samples=samples, share=samples / 4)
        tensors.arrive(task, LocalResult(torch.tensor(delta), model.integers))
    tensors.aggregate(Aggregate((0, 1), version=1))
    assert tensors.model.values.tolist() == [7.0, 2.0]  # (1·4 + 3·8)/4, (1·8 + 3·0)/4
    assert model.values.tolist() == [0.0, 0.0]  # the old version is untouched
    assert (tensors.version, tensors.bases, tensors.updates) == (1, {}, {})


def test_base_versions_are_kept_as_long_as_somebody_needs_them():
    run = HandDriven(ob.fedasync(1, alpha=1.0), [1, 1], [0.0])
    run.model(1, 0, 5.0)
    assert set(run.tensors.versions()) == {0, 1}  # client 1 trains from 0, client 0 from 1
    run.model(2, 1, 7.0)
    assert set(run.tensors.versions()) == {1, 2}
    assert run.tensors.versions()[1].values.tolist() == [5.0]


# ---- FedAvg, FedAvgM ----


def test_fedavg_two_rounds():
    run = HandDriven(ob.fedavg(1), [1, 3], [0.0, 0.0])
    assert run.model(1, 0, 4.0, 8.0) == []  # waits for client 1
    assert run.w == [0.0, 0.0]
    run.model(2, 1, 8.0, 0.0)
    assert run.w == near(7.0, 2.0)  # 1/4·4 + 3/4·8, 1/4·8 + 3/4·0
    run.model(3, 1, 11.0, 2.0)
    run.model(4, 0, 3.0, 6.0)
    assert run.w == near(9.0, 3.0)  # 1/4·3 + 3/4·11, 1/4·6 + 3/4·2


def test_fedavgm_three_rounds():
    run = HandDriven(ob.fedavgm(1, momentum=0.5), [1, 1], [0.0, 0.0])
    run.model(1, 0, 1.0, 4.0)
    run.model(1, 1, 3.0, 4.0)
    assert run.w == near(2.0, 4.0)  # mean (2, 4): step (2, 4), m = (2, 4)
    run.model(2, 0, 8.0, 2.0)
    run.model(2, 1, 0.0, 6.0)
    assert run.w == near(5.0, 6.0)  # mean (4, 4): step (2, 0), m = ½(2, 4) + (2, 0) = (3, 2)
    run.model(3, 0, 5.0, 0.0)
    run.model(3, 1, 5.0, 4.0)
    assert run.w == near(6.5, 3.0)  # mean (5, 2): step (0, −4), m = ½(3, 2) + (0, −4) = (1.5, −3)


# ---- FedAsync ----

WEIGHTS = {  # α_t = 0.9 s(τ) for τ = 0 … 5
    ob.constant(): [0.9] * 6,
    ob.constant(0.5): [0.45] * 6,
    # 0.9/√(τ+1)
    ob.polynomial(): [0.9, 0.6363961, 0.5196152, 0.45, 0.4024922, 0.3674235],
    # 0.9·0.5/(τ+1)
    ob.polynomial(0.5, 1.0): [0.45, 0.225, 0.15, 0.1125, 0.09, 0.075],
    # 1 up to 4, then 1/(10·1 + 1)
    ob.hinge(): [0.9, 0.9, 0.9, 0.9, 0.9, 0.9 / 11],
    # 1 up to 2, then 1/1.5, 1/2, 1/2.5
    ob.hinge(0.5, 2.0): [0.9, 0.9, 0.9, 0.6, 0.45, 0.36],
}


@pytest.mark.parametrize("staleness", WEIGHTS, ids=str)
@pytest.mark.parametrize("old", range(6))
def test_fedasync_weight_at_each_staleness(staleness, old):
    run = HandDriven(ob.fedasync(1, alpha=0.9, staleness=staleness), [1, 99], [0.0, 0.0])
    for t in range(old):
        run.delta(t, 1, 0.0, 0.0)  # w stays (0, 0) while the version moves
    run.model(9, 0, 8.0, -4.0)
    alpha = WEIGHTS[staleness][old]
    assert run.server.version == old + 1
    assert run.w == near(8 * alpha, -4 * alpha)  # (1 − α_t)·0 + α_t·w_i; 1 and 99 samples play no part


def test_fedasync_mixes_the_model_not_the_delta():
    run = HandDriven(ob.fedasync(1, alpha=0.5, staleness=ob.polynomial(1.0, 1.0)), [1, 1], [2.0, 0.0])
    run.model(1, 1, 10.0, 4.0)
    assert run.w == near(6.0, 2.0)  # ½·2 + ½·10, ½·0 + ½·4
    run.model(2, 0, 4.0, 8.0)  # from (2, 0), one version old: α_t = ½·½
    assert run.w == near(5.5, 3.5)  # ¾·6 + ¼·4, ¾·2 + ¼·8
    run.model(3, 1, 7.5, 5.5)  # from (6, 2), version 1 of 2
    assert run.w == near(6.0, 4.0)  # ¾·5.5 + ¼·7.5, ¾·3.5 + ¼·5.5


def test_mixing_several_updates_at_once_is_mixing_them_in_turn():
    aggregator = ob.fedasync(1, alpha=0.5, staleness=ob.constant()).aggregator
    layout = Layout.flat(1)
    old, now = (Model(layout, torch.tensor([v]), torch.zeros(0, dtype=torch.int64)) for v in (1.0, 3.0))
    updates = [
        Update(Task(0, 0, 0, 1, 0.0, staleness=1), old, torch.tensor([4.0]), now.integers),  # w_0 = 5
        Update(Task(1, 1, 1, 1, 0.0, staleness=0), now, torch.tensor([6.0]), now.integers),  # w_1 = 9
    ]
    # 3 → ½·3 + ½·5 = 4 → ½·4 + ½·9 = 6.5
    assert (now.values + aggregator.step(updates, now, {})).tolist() == near(6.5)


# ---- FedBuff ----


def test_fedbuff_three_buffers():
    run = HandDriven(ob.fedbuff(3, 1, server_lr=2.0), [7, 1, 1, 1], [0.0, 1.0])
    run.delta(1, 1, 3.0, 0.0)  # client 1 goes on from version 0
    run.delta(2, 2, 6.0, 0.0)  # and so does client 2
    assert run.w == [0.0, 1.0]
    run.delta(3, 3, 9.0, 3.0)  # all fresh: 2/3·(3 + 6 + 9) = 12, 2/3·3 = 2
    assert run.w == near(12.0, 3.0)
    run.delta(4, 3, 3.0, 0.0)  # client 3 started from version 1: fresh
    run.delta(5, 1, 6.0, 0.0)  # one version old: 1/√2
    run.delta(6, 2, 12.0, 0.0)  # the same. 2/3·(3 + 18/√2) = 2 + 12/√2 = 10.4852814
    assert run.w == near(22.4852814, 3.0)
    run.delta(7, 0, 9.0, 9.0)  # from version 0 at version 2: 9/√3 = 5.1961524; 7 samples play no part
    run.delta(8, 1, 0.0, 0.0)  # started at time 5 from version 1
    run.delta(9, 3, 0.0, 3.0)  # started at time 4 from version 1: 3/√2 = 2.1213203
    # + 2/3·5.1961524 = 3.4641016 and + 2/3·(5.1961524 + 2.1213203) = 4.8783151
    assert run.w == near(25.9493830, 7.8783151)
    assert run.server.version == 3


# ---- FedCompass ----
# Q_min = 10, Q_max = 100, p = (1/8, 3/8, 1/2), st = 0.9 (τ + 1)^−½.
# Client 0 takes 1 s a step, client 1 takes 2 s (then 2.6 s), client 2 takes 11.5 s.

ST0, ST1, ST2, ST3 = 0.9, 0.9 / sqrt(2), 0.9 / sqrt(3), 0.45


def compass(**options):
    return HandDriven(ob.fedcompass(10, 100, **options), [1, 3, 4], [0.0, 0.0])


def through_first_group(run):
    run.delta(10, 0, 4.0, 8.0)  # first response: group 1, 100 steps, T_a = 110, T_max = 130
    run.delta(20, 1, 8.0, 0.0)  # first response, one version old: ⌊(110 − 20)/2⌋ = 45 steps
    run.delta(110, 0, 10.0, 20.0)  # from version 1 at version 2
    return run.delta(110, 1, 2.0, -4.0)  # fresh, the last one of group 1


# the two first responses: st·p·Δ each
FIRST = (ST0 / 8 * 4 + ST1 * 3 / 8 * 8, ST0 / 8 * 8)
# group 1: Σ st·p·Δ
GROUP1 = (ST1 / 8 * 10 + ST0 * 3 / 8 * 2, ST1 / 8 * 20 - ST0 * 3 / 8 * 4)


def through_late_update(run):
    """Client 2's first response, group 2 closed by its timer, client 1 late for it, group 3 with all."""
    through_first_group(run)  # group 2: T_a = 210, T_max = 230, clients 0 (100 steps) and 1 (50 steps)
    run.delta(115, 2, 2.0, 6.0)  # first, three versions old; group 3: T_exp = 310, ⌊195/11.5⌋ = 16, T_a = 299
    after_first = run.w
    run.delta(210, 0, 4.0, 4.0)  # waits; from version 3 at version 4
    assert run.w == after_first
    run.timer(230.0, "group 2")
    after_timer = run.w
    run.delta(240, 1, -2.0, 2.0)  # late, from version 3 at version 5; 2.6 s a step: ⌊59/2.6⌋ = 22 steps
    assert run.w == after_timer
    run.delta(297.2, 1, 1.0, 0.0)  # fresh
    run.delta(299, 0, 0.0, 8.0)  # fresh
    run.delta(299, 2, -1.0, 0.0)  # from version 4 at version 5
    return after_first, after_timer, run.w


FIRST2 = (ST3 / 2 * 2, ST3 / 2 * 6)
GROUP2 = (ST1 / 8 * 4, ST1 / 8 * 4)
LATE = (ST2 * 3 / 8 * -2, ST2 * 3 / 8 * 2)
GROUP3 = (ST0 * 3 / 8 * 1 + ST1 / 2 * -1 + LATE[0], ST0 / 8 * 8 + LATE[1])


def total(*steps: tuple[float, float]) -> object:
    return near(sum(s[0] for s in steps), sum(s[1] for s in steps))


def test_fedcompass_first_response_then_group():
    run = compass()
    run.delta(10, 0, 4.0, 8.0)
    assert run.w == near(0.45, 0.9)  # 0.9·⅛·(4, 8)
    run.delta(20, 1, 8.0, 0.0)
    assert run.w == near(2.3591883, 0.9)  # + 0.6363961·⅜·8 = 1.9091883
    assert run.delta(110, 0, 10.0, 20.0) == []
    assert run.w == near(2.3591883, 0.9)
    run.delta(110, 1, 2.0, -4.0)
    # + 0.6363961·⅛·(10, 20) + 0.9·⅜·(2, −4) = (0.7954951 + 0.675, 1.5909903 − 1.35)
    assert run.w == near(3.8296834, 1.1409903)


def test_fedcompass_late_update():
    after_first, after_timer, end = through_late_update(compass())
    assert after_first == total(FIRST, GROUP1, FIRST2)
    assert after_timer == total(FIRST, GROUP1, FIRST2, GROUP2)
    assert end == total(FIRST, GROUP1, FIRST2, GROUP2, GROUP3)


def test_fedcompass_momentum_passes_first_responses_by():
    beta = 0.5
    run = compass(momentum=beta)
    run.delta(10, 0, 4.0, 8.0)
    run.delta(20, 1, 8.0, 0.0)
    assert run.w == total(FIRST)
    assert run.tensors.step_memories == ({},)
    run = compass(momentum=beta)
    after_first, after_timer, end = through_late_update(run)
    m1 = GROUP1  # β·0 + step
    m2 = tuple(beta * m + s for m, s in zip(m1, GROUP2, strict=True))
    m3 = tuple(beta * m + s for m, s in zip(m2, GROUP3, strict=True))
    assert after_first == total(FIRST, m1, FIRST2)  # the third first response neither feeds m nor decays it
    assert after_timer == total(FIRST, m1, FIRST2, m2)
    assert end == total(FIRST, m1, FIRST2, m2, m3)
    assert run.tensors.step_memories[0]["m"].tolist() == near(*m3)


def test_fedcompass_normalized():
    run = compass(normalize=True)
    through_first_group(run)
    # Q = 100 and 45, p = ⅛ and ⅜: Σ p Q / Σ p = (12.5 + 16.875)/½ = 58.75
    # Σ st p Δ / Q: 0.6363961·⅛/100 = 0.00079549513, 0.9·⅜/45 = 0.0075
    step = (58.75 * (0.00079549513 * 10 + 0.0075 * 2), 58.75 * (0.00079549513 * 20 - 0.0075 * 4))
    assert run.w == total(FIRST, step)  # a single update's first response is not changed by +N


def test_fedcompass_normalized_at_equal_steps_is_plain():
    plain, normalized = (
        HandDriven(ob.fedcompass(10, 100, normalize=n), [1, 3], [0.0, 0.0]) for n in (False, True)
    )
    for run in (plain, normalized):
        for client in (0, 1):
            run.delta(10, client, 4.0, -8.0 * client)
        for client in (0, 1):  # both run 100 steps
            assert run.server.tasks[client].steps == 100
            run.delta(110, client, 2.0, 3.0 + client)
    assert normalized.w == near(*plain.w)


def test_the_share_is_of_the_clients_that_are_there():
    run = HandDriven(ob.fedcompass(10, 100), [1, 3, 12], [0.0])
    run.feed(5, Left(2))
    run.delta(10, 0, 4.0)
    assert run.w == near(0.9)  # 0.9·1/4·4, not 0.9·1/16·4


# ---- buffers ----

BN = Layout(
    (
        Entry("w", (1,), "float32", "parameter"),
        Entry("running_mean", (2,), "float32", "buffer"),
        Entry("batches", (1,), "int64", "integer"),
    )
)


def test_buffers_follow_the_parameters_and_integers_are_the_newest():
    run = HandDriven(ob.fedavg(1), [1, 3], [0.0, 0.0, 0.0], BN)
    run.model(1, 1, 4.0, 8.0, 0.0, integers=[30])
    run.model(2, 0, 0.0, 4.0, 4.0, integers=[10])
    assert run.w == near(3.0, 7.0, 1.0)  # ¾·4, ¾·8 + ¼·4, ¼·4
    assert run.tensors.model.integers.tolist() == [10]  # client 0 came last


def test_buffers_mean_is_the_unweighted_mean_of_the_clients():
    run = HandDriven(replace(ob.fedavg(1), buffers="mean"), [1, 3], [0.0, 1.0, 1.0], BN)
    run.model(1, 0, 0.0, 4.0, 4.0, integers=[10])
    run.model(2, 1, 4.0, 8.0, 0.0, integers=[30])
    assert run.w == near(3.0, 6.0, 2.0)  # ¾·4 as before; (4 + 8)/2, (4 + 0)/2
    assert run.tensors.model.integers.tolist() == [30]


def test_buffers_mean_counts_from_each_updates_own_base():
    run = HandDriven(
        replace(ob.fedbuff(2, 1, concurrency=2), buffers="mean"), [1, 1, 1, 1], [0.0, 0.0, 0.0], BN
    )
    first, second = sorted(run.server.tasks)
    run.model(1, first, 2.0, 6.0, 0.0, integers=[1])
    other = next(c for c in run.server.tasks if c != second)  # from version 0 too
    run.model(2, other, 2.0, 2.0, 2.0, integers=[2])
    assert run.w == near(2.0, 4.0, 1.0)
    run.model(3, second, 0.0, 10.0, 10.0, integers=[3])  # a base older than the current version
    fresh = next(c for c in run.server.tasks if run.server.tasks[c].base == 1)
    run.model(4, fresh, 2.0, 0.0, 0.0, integers=[4])
    assert run.w[1:] == near(5.0, 5.0)


def test_buffers_mean_of_a_first_response_replaces():
    run = HandDriven(replace(ob.fedcompass(10, 100), buffers="mean"), [1, 1], [0.0, 0.0, 0.0], BN)
    run.model(10, 0, 1.0, 6.0, -2.0, integers=[10])
    assert run.w == near(0.45, 6.0, -2.0)
    assert run.tensors.model.integers.tolist() == [10]


def test_buffers_mean_is_not_carried_on_by_momentum():
    run = HandDriven(replace(ob.fedavgm(1, momentum=0.5), buffers="mean"), [1, 1], [0.0, 0.0, 0.0], BN)
    for t in (1, 2):
        run.model(t, 0, *(w + 1 for w in run.w[:1]), 2.0, 4.0, integers=[t])
        run.model(t, 1, *(w + 1 for w in run.w[:1]), 4.0, 4.0, integers=[t])
        assert run.w[1:] == near(3.0, 4.0)
    assert run.w[0] == pytest.approx(2.5)  # 1, then m = ½·1 + 1


@pytest.mark.parametrize("policy", ["local", "recompute"])
@pytest.mark.parametrize(
    "make",
    [ob.fedavg, ob.fedbuff, lambda steps, **_: ob.fedavgm(steps, momentum=0.5), ob.fedlws],
    ids=["fedavg", "fedbuff", "fedavgm", "fedlws"],
)
def test_buffers_that_are_not_sent_stay_as_they_were_made(policy, make):
    """Whatever an update says of them, and whatever a sum of weights or a server step has made of it."""
    options = {"size": 2, "concurrency": 2} if make is ob.fedbuff else {}
    run = HandDriven(replace(make(steps=1, **options), buffers=policy), [1, 2], [0.0, 0.3, 1.7], BN)
    start = run.w[1:]
    for t in (1, 3):
        run.model(t, 0, 1.0, 8.0, 0.0, integers=[30])
        run.model(t + 1, 1, 2.0, 4.0, 4.0, integers=[10])
    assert run.w[1:] == start
    assert run.w[0] != 0.0
    assert run.tensors.model.integers.tolist() == [0]


def test_commands_carry_the_version_and_the_clients():
    run = HandDriven(ob.fedavg(5), [1, 3], [0.0])
    run.delta(1, 1, 1.0)
    commands = run.delta(2, 0, 1.0)
    assert commands == [
        Aggregate((1, 0), version=1, clients=(1, 0)),
        Train(0, 5, task=2, base=1),
        Train(1, 5, task=3, base=1),
    ]
