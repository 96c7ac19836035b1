"""FedDyn, SCAFFOLD and ASO-Fed worked out by hand on two parameters, clients' and server's side."""

from collections.abc import Sequence
from math import e, log

import pytest
import torch

import offbeat as ob
from offbeat.algorithms.asofed import Online
from offbeat.algorithms.feddyn import Dynamic
from offbeat.algorithms.scaffold import ControlVariates
from offbeat.core.commands import Train
from offbeat.core.errors import UsageError
from offbeat.core.layout import Entry, Layout
from offbeat.core.model import Tensors
from offbeat.core.objective import LocalRun, Objective
from tests.golden.hand_driven import HandDriven
from tests.golden.near import near


def local(
    objective: Objective,
    w_o: Sequence[float],
    gradients: Sequence[Sequence[float]],
    lr: float,
    state: Tensors | None = None,
    shared: Sequence[float] = (),
) -> LocalRun:
    """A task of plain SGD whose loss has these gradients, one a step."""
    w = torch.tensor(w_o)
    run = LocalRun([w], [w.clone()], state=dict(state or {}), lr=lr, steps=len(gradients))
    run.shared = run.shaped(torch.tensor(shared))
    objective.begin(run)
    for gradient in gradients:
        w.grad = torch.tensor(gradient)
        objective.adjust(run)
        w -= lr * w.grad
    objective.end(run)
    return run


def w_i(run: LocalRun) -> list[float]:
    return run.parameters[0].tolist()


# ---- FedDyn ----


def test_feddyn_two_tasks_of_a_client():
    objective = Dynamic(alpha=0.5)
    run = local(objective, [1.0, 2.0], [[2.0, 0.0], [0.0, 4.0]], lr=1.0)
    # (2, 0) − 0 + ½(0, 0): w = (−1, 2); (0, 4) − 0 + ½(−2, 0) = (−1, 4): w = (0, −2)
    assert w_i(run) == near(0.0, -2.0)
    assert run.state["g"].tolist() == near(0.5, 2.0)  # 0 − ½(−1, −4)
    again = local(objective, [0.0, 0.0], [[1.0, 1.0]], lr=1.0, state=run.state)
    assert w_i(again) == near(-0.5, 1.0)  # −((1, 1) − (½, 2))
    assert again.state["g"].tolist() == near(0.75, 1.5)  # (½, 2) − ½(−½, 1)
    assert run.state["g"].tolist() == near(0.5, 2.0)  # what the client had is not written over


WITH_BUFFER = Layout(
    (Entry("w", (2,), "float32", "parameter"), Entry("running_mean", (1,), "float32", "buffer"))
)


def test_feddyn_two_rounds_of_the_server():
    run = HandDriven(ob.feddyn(1, clients_per_round=2, alpha=0.5), [9, 1, 1, 1], [0.0, 0.0, 0.0], WITH_BUFFER)
    one, other = run.server.tasks
    run.model(1, one, 4.0, 8.0, 6.0)
    run.model(1, other, 8.0, 0.0, 2.0)
    assert run.tensors.memory["h"].tolist() == near(-1.5, -1.0)  # −½/4·(12, 8): of 4 clients in all
    assert run.w == near(9.0, 6.0, 4.0)  # mean (6, 4) + 2·(1.5, 1), samples play no part; the buffer's mean
    one, other = run.server.tasks
    run.delta(2, one, -1.0, 2.0, 2.0)
    run.delta(2, other, 3.0, -4.0, 0.0)
    assert run.tensors.memory["h"].tolist() == near(-1.75, -0.75)  # − ½/4·(2, −2)
    assert run.w == near(13.5, 6.5, 5.0)  # (9, 6) + (1, −1) + 2·(1.75, 0.75); 4 + 1


# ---- SCAFFOLD ----


def test_scaffold_two_tasks_of_a_client():
    objective = ControlVariates()
    run = local(objective, [0.0, 0.0], [[1.0, 1.0], [1.0, 3.0]], lr=0.5, shared=[1.0, -1.0])
    # (1, 1) + c = (2, 0): w = (−1, 0); (1, 3) + c = (2, 2): w = (−2, −1)
    assert w_i(run) == near(-2.0, -1.0)
    assert run.state["c_i"].tolist() == near(1.0, 2.0)  # 0 − (1, −1) + (2, 1)/(2·½): the mean gradient
    assert run.shared_delta.tolist() == near(1.0, 2.0)
    again = local(objective, [1.0, 1.0], [[3.0, 1.0]], lr=0.5, state=run.state, shared=[0.0, 2.0])
    assert w_i(again) == near(0.0, 0.5)  # (3, 1) + (0, 2) − (1, 2) = (2, 1)
    assert again.state["c_i"].tolist() == near(3.0, 1.0)  # (1, 2) − (0, 2) + (1, ½)/½
    assert again.shared_delta.tolist() == near(2.0, -1.0)
    assert run.state["c_i"].tolist() == near(1.0, 2.0)


def test_scaffold_two_rounds_of_the_server():
    run = HandDriven(ob.scaffold(1, clients_per_round=2, server_lr=2.0), [9, 1, 1, 1], [0.0, 0.0])
    assert run.tensors.model.shared.tolist() == [0.0, 0.0]
    one, other = run.server.tasks
    run.delta(1, one, 1.0, 2.0, shared=[4.0, 0.0])
    run.delta(1, other, 3.0, -2.0, shared=[0.0, 8.0])
    assert run.w == near(4.0, 0.0)  # 2·½·(4, 0)
    assert run.tensors.model.shared.tolist() == near(1.0, 2.0)  # (4, 8)/4
    one, other = run.server.tasks
    run.delta(2, one, 0.0, 1.0, shared=[-4.0, 0.0])
    run.delta(2, other, 0.0, 3.0, shared=[0.0, 4.0])
    assert run.w == near(4.0, 4.0)  # + 2·½·(0, 4)
    assert run.tensors.model.shared.tolist() == near(0.0, 3.0)  # + (−4, 4)/4


def test_scaffold_says_that_it_divides_by_the_learning_rate():
    with pytest.raises(UsageError, match="give its decay a floor"):
        local(ControlVariates(), [0.0], [[1.0]], lr=0.0, shared=[0.0])


# ---- ASO-Fed ----


def test_asofed_three_tasks_of_a_client():
    objective = Online(proximal=0.5, beta=0.25)
    one = local(objective, [0.0, 0.0], [[2.0, 0.0], [0.0, 4.0]], lr=1.0)
    # ∇s = (2, 0): w = (−2, 0); ∇s = (0, 4) + ½(−2, 0) = (−1, 4): w = (−1, −4)
    assert w_i(one) == near(-1.0, -4.0)
    assert one.state["h"].tolist() == [0.0, 0.0]
    assert one.state["v"].tolist() == near(0.5, 2.0)  # ½((2, 0) + (−1, 4))
    two = local(objective, [1.0, 1.0], [[1.0, 1.0]], lr=1.0, state=one.state)
    assert w_i(two) == near(0.5, 2.0)  # ζ = (1, 1) − (½, 2) + 0 = (½, −1)
    assert two.state["h"].tolist() == near(0.375, 1.5)  # ¼·0 + ¾(½, 2): after ζ
    assert two.state["v"].tolist() == near(1.0, 1.0)
    three = local(objective, [0.0, 0.0], [[2.0, 2.0]], lr=1.0, state=two.state)
    assert w_i(three) == near(-1.375, -2.5)  # ζ = (2, 2) − (1, 1) + (0.375, 1.5)
    assert three.state["h"].tolist() == near(0.84375, 1.125)  # ¼(0.375, 1.5) + ¾(1, 1)
    assert three.state["v"].tolist() == near(2.0, 2.0)


def test_asofed_adds_each_change_by_its_share():
    run = HandDriven(ob.asofed(1), [1, 3], [0.0, 0.0])
    run.delta(1, 0, 4.0, 8.0)
    assert run.w == near(1.0, 2.0)  # ¼(4, 8)
    run.delta(2, 1, 4.0, -4.0)  # from version 0
    assert run.w == near(4.0, -1.0)  # + ¾(4, −4)
    run.delta(3, 0, 0.0, 4.0)  # from version 1
    assert run.w == near(4.0, 0.0)  # + ¼(0, 4)
    assert run.tensors.memory == {}


def test_asofed_against_the_copy_keeps_the_mean_of_the_clients_models():
    run = HandDriven(ob.asofed(1, against="copy"), [1, 3], [1.0, 1.0])
    run.model(1, 0, 5.0, 9.0)
    assert run.w == near(2.0, 3.0)  # (1, 1) + ¼((5, 9) − (1, 1))
    run.model(2, 1, 5.0, -3.0)
    assert run.w == near(5.0, 0.0)  # + ¾((5, −3) − (1, 1)) = ¼(5, 9) + ¾(5, −3)
    run.model(3, 0, 1.0, 1.0)  # started from (2, 3), its copy is (5, 9)
    assert run.w == near(4.0, -2.0)  # + ¼((1, 1) − (5, 9)) = ¼(1, 1) + ¾(5, −3)
    assert sorted(run.tensors.memory) == ["client 0", "client 1", "first"]


@pytest.mark.parametrize("shape", [(2, 2), (2, 1, 1, 2)])
def test_asofed_features_weigh_the_rows_of_the_first_layer(shape):
    entries = [("b", (1,)), ("weight", shape), ("later", (1, 2))]
    layout = Layout(tuple(Entry(n, s, "float32", "parameter") for n, s in entries))
    run = HandDriven(ob.asofed(1, features=True), [1], [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0], layout)
    run.model(1, 0, 2.0, 0.0, log(3), -log(3), log(3), 5.0, 6.0)
    # exp|w| = (1, 3) and (3, 3): α = (¼, ¾) and (½, ½)
    assert run.w == near(2.0, 0.0, 0.75 * log(3), -0.5 * log(3), 0.5 * log(3), 5.0, 6.0)


def test_asofed_features_need_a_matrix():
    run = HandDriven(ob.asofed(1, features=True), [1], [0.0])
    with pytest.raises(UsageError, match="weight matrix"):
        run.delta(1, 0, 1.0)


def test_asofed_scales_the_rate_by_the_log_of_the_mean_delay():
    run = HandDriven(ob.asofed(1), [1, 1], [0.0])
    assert {task.steps for task in run.server.tasks.values()} == {1}

    def factor(t: float, client: int) -> float:
        (train,) = [c for c in run.delta(t, client, 0.0) if isinstance(c, Train)]
        assert train.client == client
        return train.lr_factor

    assert factor(2.0, 0) == 1.0  # log 2 < 1
    assert factor(e**2, 1) == pytest.approx(2.0)
    assert factor(2 * e**3, 1) == pytest.approx(3.0)  # e² and 2e³ − e² seconds: e³ in the mean
    assert factor(2 * e**3, 0) == pytest.approx(3.0)  # 2 and 2e³ − 2: its own mean
