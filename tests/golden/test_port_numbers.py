"""PORT's weights, worked out by hand (the arithmetic is in the comments)."""

from collections.abc import Sequence

import pytest
import torch

import offbeat as ob
from offbeat.algorithms.aggregators import SumOfDeltas
from offbeat.algorithms.port import Similarity
from offbeat.core.aggregator import Update
from offbeat.core.commands import Aggregate
from offbeat.core.layout import Entry, Layout
from offbeat.core.model import Model
from offbeat.core.schedule import Task
from offbeat.vectors.chunked import CHUNK
from tests.golden.hand_driven import HandDriven
from tests.golden.near import near


def model(*values: float, layout: Layout | None = None) -> Model:
    return Model(layout or Layout.flat(len(values)), torch.tensor(values), torch.zeros(0, dtype=torch.int64))


def update(samples: int, staleness: int, base: Model, delta: Sequence[float]) -> Update:
    task = Task(0, 0, 0, 1, 0.0, staleness=staleness, samples=samples, share=samples / 10)
    return Update(task, base, torch.tensor(delta), base.integers)


OLD, NOW = model(0.0, 0.0), model(3.0, 4.0)  # moved by (3, 4), which has length 5
UPDATES = [  # τ_max = 4
    update(1, 0, NOW, [2.0, 0.0]),  # g = 1, fresh: cos 1. 1·(1 + 1) = 2
    update(2, 4, OLD, [4.0, 3.0]),  # g = 4/8, cos = (12 + 12)/25 = 0.96. 2·(0.5 + 0.98) = 2.96
    update(1, 4, OLD, [-3.0, -4.0]),  # g = 4/8, cos = −1. 1·(0.5 + 0) = 0.5
]  # Σ = 5.46


def test_weights_by_samples_freshness_and_direction():
    step = Similarity(1.0, 1.0, 4).step(UPDATES, NOW, {})
    # (2·2 + 2.96·4 − 0.5·3)/5.46 = 14.34/5.46, (2.96·3 − 0.5·4)/5.46 = 6.88/5.46
    assert step.tolist() == near(2.6263736, 1.2600733)


def test_the_authors_average_of_models():
    step = Similarity(1.0, 1.0, 4, "models").step(UPDATES, NOW, {})
    # w_i = (5, 4), (4, 3), (−3, −4):
    # (2·5 + 2.96·4 − 0.5·3)/5.46 = 20.34/5.46 = 3.7252747, (2·4 + 2.96·3 − 0.5·4)/5.46 = 14.88/5.46
    assert (NOW.values + step).tolist() == near(3.7252747, 2.7252747)


def test_alpha_and_beta_weigh_the_two():
    # 3·1 + 1 = 4; 2·(3·0.5 + 0.98) = 4.96; 3·0.5 = 1.5. Σ = 10.46
    # (4·2 + 4.96·4 − 1.5·3)/10.46 = 23.34/10.46, (4.96·3 − 1.5·4)/10.46 = 8.88/10.46
    assert Similarity(3.0, 1.0, 4).step(UPDATES, NOW, {}).tolist() == near(2.2313576, 0.8489484)
    # β alone: 1, 2·0.98 = 1.96, 0. (2 + 1.96·4)/2.96, 1.96·3/2.96
    assert Similarity(0.0, 5.0, 4).step(UPDATES, NOW, {}).tolist() == near(3.3243243, 1.9864865)
    # α alone: 1, 2·0.5 = 1, 0.5. (2 + 4 − 1.5)/2.5, (3 − 2)/2.5
    assert Similarity(5.0, 0.0, 4).step(UPDATES, NOW, {}).tolist() == near(1.8, 0.4)


def test_all_against_the_movement_are_weighed_by_samples():
    against = [update(1, 1, OLD, [-3.0, -4.0]), update(3, 1, OLD, [-6.0, -8.0])]
    # 1/4·(−3, −4) + 3/4·(−6, −8)
    assert Similarity(0.0, 1.0, 4).step(against, NOW, {}).tolist() == near(-5.25, -7.0)


def test_a_zero_update_has_no_direction():
    updates = [update(1, 1, OLD, [0.0, 0.0]), update(1, 1, OLD, [3.0, 4.0])]
    # (1 + 0)/2 = 1/2 and 1: 2/3·(3, 4)
    assert Similarity(0.0, 1.0, 4).step(updates, NOW, {}).tolist() == near(2.0, 8 / 3)


def test_a_model_that_came_back_has_not_moved():
    there, back = model(1.0, 1.0), model(1.0, 1.0)
    updates = [update(1, 2, there, [-1.0, 0.0]), update(1, 0, back, [3.0, 0.0])]
    assert Similarity(0.0, 1.0, 4).step(updates, back, {}).tolist() == near(1.0, 0.0)  # both cos 1


def test_buffers_have_no_part_in_the_direction():
    entries = (Entry("w", (2,), "float32", "parameter"), Entry("mean", (1,), "float32", "buffer"))
    layout = Layout(entries)
    old, now = model(0.0, 0.0, 50.0, layout=layout), model(3.0, 4.0, 0.0, layout=layout)
    updates = [update(1, 1, old, [3.0, 4.0, 9.0]), update(1, 1, old, [4.0, -3.0, 90.0])]
    # cos 1 and 0: weights 1 and 1/2, ω = 2/3 and 1/3, for the buffers too
    assert Similarity(0.0, 1.0, 4).step(updates, now, {}).tolist() == near(10 / 3, 5 / 3, 36.0)


def test_the_cosine_of_long_vectors():
    generator = torch.Generator().manual_seed(0)
    old, now, a, b = (torch.randn(2 * CHUNK + 7, generator=generator) for _ in range(4))
    a += 0.5 * (now - old)
    layout = Layout.flat(len(old))
    base, head = (Model(layout, v, torch.zeros(0, dtype=torch.int64)) for v in (old, now))
    updates = [Update(Task(0, 0, 0, 1, 0.0, samples=1), base, d, base.integers) for d in (a, b)]
    moved = now.double() - old.double()
    cos = [float(torch.cosine_similarity(d.double(), moved, dim=0)) for d in (a, b)]
    assert cos[0] > 0.3 > abs(cos[1])
    weights = [(1 + c) / (2 + sum(cos)) for c in cos]
    step = Similarity(0.0, 1.0, 4).step(updates, head, {})
    assert torch.allclose(step, weights[0] * a + weights[1] * b, rtol=1e-5, atol=1e-6)


def test_through_the_server():
    run = HandDriven(ob.port(2, 2, 1), [1, 3, 2], [0.0, 0.0])
    assert run.delta(1, 0, 3.0, 4.0) == []
    run.delta(2, 1, 3.0, 4.0)  # both fresh
    assert run.w == near(3.0, 4.0)
    run.delta(3, 2, 4.0, -3.0)  # τ = 1: g = 2/3, cos = 0: 2·(2/3 + 1/2) = 7/3
    run.delta(4, 0, 0.0, 1.0)  # fresh: 2. Σ = 13/3
    # 3 + 7/13·4, 4 − 7/13·3 + 6/13
    assert run.w == near(5.1538462, 2.8461538)


def test_freshness_alone_without_a_bound_is_fedbuff():
    aggregator = Similarity(alpha=2.0, beta=0.0, tau_max=10**15)
    equal = [update(2, u.task.staleness, u.base, u.delta.tolist()) for u in UPDATES]
    fedbuff = ob.fedbuff(3, 1, staleness=ob.constant()).aggregator
    assert torch.allclose(aggregator.step(equal, NOW, {}), fedbuff.step(equal, NOW, {}), rtol=1e-6)
    shares = SumOfDeltas(weights="share", scale=10 / 4)  # p_i by all clients' samples: 10, those here have 4
    assert torch.allclose(aggregator.step(UPDATES, NOW, {}), shares.step(UPDATES, NOW, {}), rtol=1e-6)


def test_an_aggregation_of_all_clients_together_is_fedavgs():
    port, fedavg = ob.port(3, 5, 1, average="models"), ob.fedavg(1)
    runs = [HandDriven(algorithm, [1, 3, 2], [1.0, 0.0]) for algorithm in (port, fedavg)]
    for run in runs:
        for t in range(3):
            for client in (2, 0, 1):
                commands = run.model(t + 1, client, float(client + t), float(t * client))
            assert isinstance(commands[0], Aggregate)
    assert runs[0].w == near(*runs[1].w)


def test_no_weight_at_all_is_refused():
    with pytest.raises(ob.UsageError, match="alpha and beta must not both be 0"):
        ob.port(2, 2, 1, alpha=0.0, beta=0.0)
