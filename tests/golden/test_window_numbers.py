"""FedFa's window, worked out by hand on two parameters (the arithmetic is in the comments)."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import offbeat as ob
from offbeat.algorithms.aggregators import Normalization
from offbeat.algorithms.fedfa import Window
from offbeat.core.aggregator import Update
from offbeat.core.events import Joined
from offbeat.core.layout import Layout
from offbeat.core.model import Model
from offbeat.core.schedule import Task
from offbeat.vectors.arithmetic import RunningWindow
from tests.golden.hand_driven import HandDriven
from tests.golden.near import near
from tests.sampling import examples

NONE = torch.zeros(0, dtype=torch.int64)


def model(*values: float) -> Model:
    return Model(Layout.flat(len(values)), torch.tensor(values), NONE)


def update(base: Model, *delta: float, **task: Any) -> Update:
    return Update(Task(0, 0, 0, **{"steps": 1, "started": 0.0, "staleness": 0, **task}), base,
                  torch.tensor(delta), NONE)  # fmt: skip


# ---- Eq. 4 and Eq. 3, K = 2 ----


def test_delta_is_the_window_once_it_has_been_full():
    run = HandDriven(ob.fedfa(2, steps=1), [1, 1, 9], [0.0, 0.0])
    run.delta(1, 0, 4.0, 0.0)
    run.delta(2, 1, 2.0, 8.0)
    assert run.w == [0.0, 0.0]  # the first K only fill the window
    run.delta(3, 2, 6.0, -4.0)
    assert run.w == near(4.0, 2.0)  # ½((2, 8) + (6, −4)); 9 samples play no part
    run.delta(4, 0, 0.0, 2.0)
    assert run.w == near(7.0, 1.0)  # + ½((6, −4) + (0, 2)) = (3, −1)
    run.delta(5, 0, 2.0, 2.0)
    assert run.w == near(8.0, 3.0)  # + ½((0, 2) + (2, 2)) = (1, 2)
    assert run.server.version == 5  # t counts arrivals


def test_delta_with_a_server_rate():
    run = HandDriven(ob.fedfa(2, steps=1, server_lr=0.5), [1], [1.0, 1.0])
    for t, delta in enumerate([(4.0, 0.0), (2.0, 8.0), (6.0, -4.0), (0.0, 2.0)]):
        run.delta(t, 0, *delta)
    assert run.w == near(4.5, 1.5)  # (1, 1) + ½·½((8, 4) + (6, −2)) = (1, 1) + ¼(14, 2)


def test_each_delta_ends_with_the_whole_server_rate():
    run = HandDriven(ob.fedfa(3, steps=1, server_lr=0.5), [1], [0.0, 0.0])
    for t, first in enumerate([0.0, 0.0, 0.0, 6.0, 0.0, 0.0, 0.0, 0.0]):
        run.delta(t, 0, first, -2 * first)
    assert run.w == near(3.0, -6.0)  # three times ½·⅓·(6, −12)


def test_param_is_the_mean_of_the_windows_models():
    run = HandDriven(ob.fedfa(2, "param", steps=1), [1, 1, 9], [1.0, 1.0])
    run.model(1, 0, 4.0, 0.0)
    run.model(2, 1, 2.0, 8.0)
    assert run.w == [1.0, 1.0]
    run.model(3, 2, 6.0, -4.0)
    assert run.w == near(4.0, 2.0)  # ½((2, 8) + (6, −4)), whatever they started from
    run.model(4, 0, 0.0, 2.0)
    assert run.w == near(3.0, -1.0)  # ½((6, −4) + (0, 2))
    run.model(5, 0, 2.0, 2.0)
    assert run.w == near(1.0, 2.0)  # ½((0, 2) + (2, 2))


# ---- weights ----


def test_delta_by_share():
    run = HandDriven(ob.fedfa(2, steps=1, weights="share"), [1, 3, 4], [0.0, 0.0])  # p = ⅛, ⅜, ½
    run.delta(1, 0, 9.0, 9.0)
    run.delta(2, 1, 7.0, 0.0)
    run.delta(3, 2, 0.0, 14.0)
    assert run.w == near(3.0, 8.0)  # (⅜(7, 0) + ½(0, 14)) / ⅞
    run.delta(4, 1, 7.0, 7.0)
    assert run.w == near(6.0, 19.0)  # + (½(0, 14) + ⅜(7, 7)) / ⅞ = (3, 11)
    run.delta(5, 0, 3.0, -1.0)
    assert run.w == near(12.0, 24.0)  # + (⅜(7, 7) + ⅛(3, −1)) / ½ = (6, 5)


def test_param_by_share():
    run = HandDriven(ob.fedfa(2, "param", steps=1, weights="share"), [1, 3, 4], [5.0, 5.0])
    run.model(1, 0, 9.0, 9.0)
    run.model(2, 1, 7.0, 0.0)
    run.model(3, 2, 0.0, 14.0)
    assert run.w == near(3.0, 8.0)
    run.model(4, 1, 7.0, 7.0)
    assert run.w == near(3.0, 11.0)
    run.model(5, 0, 3.0, -1.0)
    assert run.w == near(6.0, 5.0)


# s(τ) = 1/(τ + 1), and τ = 0, 1, 1, 0, 2: client 0 starts from version 0, 1 and 3 and comes at version 0, 2
# and 3, client 1 starts from 0 and 2 and comes at 1 and 4.
STALE = {"steps": 1, "staleness": ob.polynomial(1.0, 1.0)}


def test_delta_by_staleness():
    run = HandDriven(ob.fedfa(2, **STALE), [1, 1], [0.0, 0.0])
    run.delta(1, 0, 8.0, 8.0)
    run.delta(2, 1, 4.0, 0.0)
    run.delta(3, 0, 0.0, 8.0)
    assert run.w == near(1.0, 2.0)  # ½(½(4, 0) + ½(0, 8))
    run.delta(4, 0, 2.0, 2.0)
    assert run.w == near(2.0, 5.0)  # + ½(½(0, 8) + (2, 2)) = (1, 3)
    run.delta(5, 1, 6.0, -6.0)
    assert run.w == near(4.0, 5.0)  # + ½((2, 2) + ⅓(6, −6)) = (2, 0)


def test_param_by_staleness():
    run = HandDriven(ob.fedfa(2, "param", **STALE), [1, 1], [0.0, 0.0])
    run.model(1, 0, 8.0, 8.0)
    run.model(2, 1, 4.0, 0.0)
    run.model(3, 0, 0.0, 8.0)
    assert run.w == near(2.0, 4.0)  # (½(4, 0) + ½(0, 8)) / 1
    run.model(4, 0, 3.0, 1.0)
    assert run.w == near(2.0, 10 / 3)  # (½(0, 8) + (3, 1)) / 1½
    run.model(5, 1, -1.0, 5.0)
    assert run.w == near(2.0, 2.0)  # ((3, 1) + ⅓(−1, 5)) / (4/3)


# ---- Table 6: normalised ----


def test_delta_normalized_by_steps():
    run = HandDriven(ob.fedfa(2, epochs=1, normalize=True), [], [0.0, 0.0])
    run.feed(0, Joined(0, 1, 1))  # one step an epoch
    run.feed(0, Joined(1, 1, 3))  # three
    run.delta(1, 0, 9.0, 9.0)
    run.delta(2, 1, 6.0, 0.0)
    run.delta(3, 0, 0.0, 4.0)
    assert run.w == near(2.0, 4.0)  # ½ · (3 + 1)/2 · ((6, 0)/3 + (0, 4)/1)
    run.delta(4, 1, 3.0, 3.0)
    assert run.w == near(3.0, 9.0)  # + ½ · (1 + 3)/2 · ((0, 4)/1 + (3, 3)/3) = (1, 5)
    run.delta(5, 1, 6.0, -3.0)
    assert run.w == near(7.5, 9.0)  # + ½ · (3 + 3)/2 · ((3, 3)/3 + (6, −3)/3) = 3/2·(3, 0)


# ---- several at once, the running sum ----


def test_updates_that_come_together_are_taken_in_turn():
    w = model(1.0, 1.0)
    updates = [update(w, *d) for d in [(9.0, 9.0), (2.0, 8.0), (6.0, -4.0), (0.0, 2.0)]]
    assert Window(2).step(updates, w, {}).tolist() == near(7.0, 1.0)  # ½((8, 4) + (6, −2))
    # the last mean counts: ½((7, −3) + (1, 3)) − (1, 1)
    assert Window(2, "param").step(updates, w, {}).tolist() == near(3.0, -1.0)


def test_the_running_sum_is_made_anew(monkeypatch):
    w, memory = model(0.0), {}
    window = Window(2)
    monkeypatch.setattr(RunningWindow, "RESUM", 4)
    sums = []
    for delta in (1e8, 1.0, 1.0, 1.0, 1.0):
        window.step([update(w, delta)], w, memory)
        sums.append(memory["sum"].item())
    # float32 has no 10⁸ + 1: the second arrival is lost in the sum, and stays lost when 10⁸ goes …
    # … until the fourth, when 1 + 1 is summed anew
    assert sums == [1e8, 1e8, 1.0, 2.0, 2.0]


@pytest.mark.parametrize("kind", ["delta", "param"])
def test_an_update_in_the_window_is_left_alone(kind):
    w, memory, updates = model(1.0, 2.0), {}, []
    for _ in range(5):
        updates.append(update(w, 3.0, 4.0))
        Window(2, kind).step([updates[-1]], w, memory)
        assert all(u.delta.tolist() == [3.0, 4.0] for u in updates)
        assert w.values.tolist() == [1.0, 2.0]


def test_a_delta_is_kept_without_a_copy():
    w, memory = model(1.0, 2.0), {}
    u = update(w, 3.0, 4.0)
    Window(1).step([u], w, memory)
    assert memory["x0"] is u.delta


numbers = st.integers(-50, 50).map(float)
arrivals = st.lists(
    st.tuples(numbers, numbers, st.integers(0, 5), st.integers(1, 9), st.sampled_from([0.125, 0.25, 0.5])),
    max_size=30,
)


@examples(200)
@given(
    arrivals,
    st.integers(1, 6),
    st.sampled_from([("delta", None), ("delta", Normalization()), ("param", None)]),
    st.sampled_from(["equal", "share"]),
    st.sampled_from([ob.constant(), ob.constant(0.5), ob.polynomial()]),
    st.lists(st.integers(1, 4), min_size=1),
)
def test_the_window_is_the_sum_over_the_last_k(arrived, K, how, weights, staleness, together):
    kind, normalize = how
    window = Window(K, kind, 1.0, staleness, weights, normalize)
    w, memory = model(0.5), {}
    updates = [
        update(model(base), delta, staleness=tau, steps=steps, share=share)
        for base, delta, tau, steps, share in arrived
    ]
    done = 0
    while done < len(updates):
        batch = updates[done : done + together[done % len(together)]]
        step = window.step(batch, w, memory)
        steps = [
            brute(updates[: n + 1], window, w) if n >= K else None for n in range(done, done + len(batch))
        ]
        expected = [s for s in steps if s is not None] or [0.0]
        expected = expected[-1] if kind == "param" else sum(expected)
        assert step.item() == pytest.approx(expected, rel=1e-4, abs=1e-3)
        done += len(batch)


def brute(updates: list[Update], window: Window, w: Model) -> float:
    last = updates[-window.size :]
    q = [u.task.share if window.weights == "share" else 1.0 for u in last]
    s = [window.staleness(u.task.staleness) for u in last]
    a = [u.task.steps if window.normalize else 1 for u in last]
    if window.kind == "param":
        ends = [u.base.values.item() + u.delta.item() for u in last]
        total = sum(s_k * q_k for s_k, q_k in zip(s, q, strict=True))
        return sum(s_k * q_k * e / total for s_k, q_k, e in zip(s, q, ends, strict=True)) - w.values.item()
    mean_a = sum(q_k * a_k for q_k, a_k in zip(q, a, strict=True)) / sum(q)
    parts = [s_k * q_k * u.delta.item() / a_k for s_k, q_k, a_k, u in zip(s, q, a, last, strict=True)]
    return mean_a * sum(parts) / sum(q)


def test_the_memory_is_tensors_whose_number_does_not_grow():
    w, memory = model(0.0, 0.0), {}
    shapes = []
    for _ in range(5):
        Window(3).step([update(w, 1.0, 2.0)], w, memory)
        shapes.append({name: tuple(tensor.shape) for name, tensor in memory.items()})
    assert all(s == shapes[0] for s in shapes)
    assert [shapes[0][f"x{k}"] for k in range(3)] == [(2,)] * 3
