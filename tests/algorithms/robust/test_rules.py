"""What robust rules withstand, where they break, and what holds for whatever updates."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import offbeat as ob
from offbeat.algorithms.aggregators import SumOfDeltas
from offbeat.algorithms.robust import (
    AFLGuard,
    Buckets,
    CenteredClip,
    Clipped,
    GeometricMedian,
    Median,
    MultiKrum,
    RobustAggregator,
    TrimmedMean,
    ZenoPlus,
)
from offbeat.algorithms.robust.distances import gram
from offbeat.core.aggregator import Update
from offbeat.vectors.chunked import CHUNK
from tests.algorithms.robust.by_hand import step, updates
from tests.sampling import examples

FRESH = ob.constant()
HONEST = [
    (1.0, 0.2),
    (1.1, -0.1),
    (0.9, 0.0),
    (1.05, 0.1),
    (0.95, -0.2),
    (1.0, 0.1),
    (1.02, 0.0),
    (0.98, 0.0),
]
FAR = (-1e6, 1e6)
ROOT = (1.0, 0.0)


def attacked(bad: int, k: int) -> list[Update]:
    """k updates, of which the first `bad` are all far away, in one place."""
    return updates([FAR] * bad + HONEST[: k - bad])


def error(found: list[float]) -> float:
    return float(np.hypot(found[0] - 1.0, found[1]))


# ---- what each withstands, and one more ----


@pytest.mark.parametrize(
    ("rule", "k", "most"),
    [
        (TrimmedMean(beta=0.2, staleness=FRESH), 10, 2),
        (TrimmedMean(beta=0.4, staleness=FRESH), 5, 2),
        (Median(staleness=FRESH), 5, 2),
        (Median(staleness=FRESH), 8, 3),
        (MultiKrum(f=1, n=1), 5, 2),  # three make a cluster of their own
        (MultiKrum(f=2), 7, 2),  # n = k − f includes a third
        (GeometricMedian(), 5, 2),
        (GeometricMedian(), 8, 3),
        (Buckets(buckets=5, f=2), 5, 2),
        (Buckets(buckets=5, f=1, rule="trimmed_mean"), 5, 1),
    ],
)  # fmt: skip
def test_a_rule_withstands_so_many_and_breaks_at_one_more(rule: Any, k: int, most: int) -> None:
    for bad in range(most + 1):
        assert error(step(rule, attacked(bad, k))) < 0.5, bad
    assert error(step(rule, attacked(most + 1, k))) > 1e3


def test_the_mean_breaks_at_one_and_clipping_bounds_what_any_number_do():
    mean = SumOfDeltas(weights="equal")
    assert error(step(mean, attacked(1, 8))) > 1e5
    for bad in range(9):
        clean = step(Clipped(mean, 2.0), updates([(0.0, 0.0)] * bad + HONEST[: 8 - bad]))
        moved = np.subtract(step(Clipped(mean, 2.0), attacked(bad, 8)), clean)
        assert np.hypot(*moved) == pytest.approx(2.0 * bad / 8, abs=1e-5)


def test_centered_clip_moves_by_no_more_than_its_radius_and_follows_a_majority():
    rule, memory = CenteredClip(tau=0.5, iterations=1), {}
    for _ in range(20):
        assert error(step(rule, attacked(2, 8), memory)) < 1.0  # ½ · 2/8 for ever, against 6/8
    start = memory["v"].numpy().copy()
    moved = step(rule, attacked(8, 8), memory)
    assert np.hypot(*np.subtract(moved, start)) == pytest.approx(0.5, abs=1e-5)
    for _ in range(20):
        moved = step(rule, attacked(5, 8), memory)
    assert error(moved) > 2.0  # further with each aggregation


@pytest.mark.parametrize("rule", [AFLGuard(steps=1), ZenoPlus(steps=1)], ids=["aflguard", "zeno_plus"])
def test_with_trusted_data_any_number_may_be_malicious(rule: Any) -> None:
    assert error(step(rule, attacked(7, 8), root=ROOT)) < 0.5
    assert step(rule, attacked(8, 8), root=ROOT) == [0.0, 0.0]
    if rule.kind == "aflguard":  # where λ lets the opposite of the server's own update through
        opposite = updates([(-1.0, 0.0)] * 7 + HONEST[:1])
        assert error(step(rule, opposite, root=ROOT)) < 0.5
        assert error(step(AFLGuard(steps=1, lam=2.0), opposite, root=ROOT)) > 1.0
    else:  # what points a little along it is believed, at its length
        sideways = updates([(0.2, 10.0)] * 7 + HONEST[:1])
        assert 0.5 < error(step(rule, sideways, root=ROOT)) < 2.0


def test_zeno_plus_leaves_out_what_no_float32_scales_to_the_servers_length() -> None:
    assert step(ZenoPlus(steps=1), updates([(1e-45, 0.0)] * 3), root=ROOT) == [0.0, 0.0]


# ---- for whatever updates ----

number = st.floats(-100, 100, width=32)
vectors = st.lists(st.tuples(number, number), min_size=7, max_size=12)
RULES: list[RobustAggregator] = [
    TrimmedMean(beta=0.2),
    Median(),
    Median(weigh="before"),
    MultiKrum(f=2),
    MultiKrum(f=2, n=1, weigh="before"),
    GeometricMedian(),
    CenteredClip(tau=2.0),
    Buckets(buckets=3),
    AFLGuard(steps=1, lam=3.0),
    ZenoPlus(steps=1),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.kind}")
@examples(15)
@given(vectors, st.randoms(use_true_random=False))
def test_the_order_of_arrival_changes_no_bit(rule: Any, deltas: Any, random: Any) -> None:
    ordered = updates(deltas, staleness=[i % 4 for i in range(len(deltas))])
    shuffled = list(ordered)
    random.shuffle(shuffled)
    assert step(rule, ordered, root=ROOT) == step(rule, shuffled, root=ROOT)
    assert step(Clipped(rule, 20.0), ordered, root=ROOT) == step(Clipped(rule, 20.0), shuffled, root=ROOT)


@pytest.mark.parametrize(
    "rule",
    [
        TrimmedMean(beta=0.0, staleness=FRESH),
        MultiKrum(f=0, staleness=FRESH),
        CenteredClip(tau=1e6, staleness=FRESH),
        Clipped(SumOfDeltas(weights="equal"), 1e6),
        AFLGuard(steps=1, lam=1e6, staleness=FRESH),
    ],
    ids=lambda rule: type(rule).__name__,
)
@examples(15)
@given(vectors)
def test_without_a_bound_it_is_the_mean(rule: Any, deltas: Any) -> None:
    expected = np.mean(np.array(deltas, dtype=np.float64), axis=0)
    assert step(rule, updates(deltas), root=ROOT) == pytest.approx(expected, rel=1e-5, abs=1e-4)


@pytest.mark.parametrize(
    ("rule", "near"),
    [
        (TrimmedMean(beta=0.2, staleness=FRESH), 1e-4),
        (Median(staleness=FRESH), 1e-4),
        (GeometricMedian(staleness=FRESH), 1e-2),
        (Buckets(buckets=3), 1e-4),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
@examples(15)
@given(vectors, number, number)
def test_updates_that_are_all_moved_move_the_result(
    rule: Any, near: float, deltas: Any, a: Any, b: Any
) -> None:
    moved = step(rule, updates([(x + a, y + b) for x, y in deltas], clients=range(len(deltas))))
    times = len(deltas) // 3 if isinstance(rule, Buckets) else 1  # as often as no bucket is empty
    found = step(rule, updates(deltas, clients=range(len(deltas))))
    assert moved == pytest.approx([found[0] + times * a, found[1] + times * b], rel=1e-4, abs=10 * near)


@examples(15)
@given(st.lists(st.tuples(*[st.integers(-50, 50)] * 2), min_size=7, max_size=9), *[st.integers(-50, 50)] * 2)
def test_krum_selects_the_same_wherever_they_are(deltas: Any, a: int, b: int) -> None:
    found = step(MultiKrum(f=2, n=1), updates(deltas))
    moved = step(MultiKrum(f=2, n=1), updates([(x + a, y + b) for x, y in deltas]))
    assert moved == [found[0] + a, found[1] + b]  # of whole numbers: without rounding


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.kind}")
def test_float64_and_models_of_several_chunks(rule: Any) -> None:
    """On more values than a chunk has, each coordinate is what it is in a model of its own."""
    rng = np.random.default_rng(0)
    some, size = rng.normal(size=(8, 2)), CHUNK + 3
    short, long = (
        updates([[*row, *[0.0] * more] for row in some], dtype=torch.float64) for more in (0, size - 2)
    )
    found = step(rule, long, root=[*ROOT, *[0.0] * (size - 2)])
    assert found[:2] == pytest.approx(step(rule, short, root=ROOT), rel=1e-12)
    assert not any(found[2:])


def test_products_do_not_depend_on_threads_and_take_no_more_memory_than_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(1)
    x = [torch.randn(3 * CHUNK + 17, generator=generator) for _ in range(12)]
    sizes, stack = [], torch.stack
    monkeypatch.setattr(torch, "stack", lambda rows: sizes.append(len(rows) * len(rows[0])) or stack(rows))
    threads, found = torch.get_num_threads(), []
    try:
        for number in (1, 2, 4):
            torch.set_num_threads(number)
            found.append(gram(x))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert max(sizes) == 12 * CHUNK
    exact = np.array([[a.double().numpy() @ b.double().numpy() for b in x] for a in x])
    assert found[0].numpy() == pytest.approx(exact, rel=1e-9, abs=1e-6)
