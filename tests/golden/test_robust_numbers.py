"""Robust aggregators, worked out by hand on two parameters (the arithmetic is in the comments)."""

from math import inf, nan

import pytest
import torch

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
    TrimmedMean,
    ZenoPlus,
    geometric_median,
)
from offbeat.core.model import Tensors
from tests.algorithms.robust.by_hand import step, updates
from tests.golden.near import near

FRESH = ob.constant()
HALVES = ob.polynomial(1.0, 0.5)  # s(0) = 1, s(3) = 1/2


# ---- norm clipping ----


def test_clipped_mean():
    mean = Clipped(SumOfDeltas(weights="equal"), norm=5.0)
    assert step(mean, updates([(3, 4), (6, 8)])) == near(3.0, 4.0)  # norms 5 and 10: (3, 4) and (6, 8)/2
    assert step(mean, updates([(3, 4), (0, 1e30)])) == near(1.5, 4.5)  # (3, 4) and (0, 5)
    for broken in (nan, inf, -inf):
        assert step(mean, updates([(3, 4), (1, broken)])) == near(1.5, 2.0)  # (3, 4) and zeros


def test_what_is_short_enough_stays_as_it_is():
    plain = SumOfDeltas(HALVES, weights="equal")
    given = updates([(0.1, 0.7), (-0.3, 0.2), (1e-30, 3.0)], staleness=(0, 2, 5))
    assert step(Clipped(plain, 1e30), given) == step(plain, given)


# ---- coordinate by coordinate ----


def test_trimmed_mean():
    rule = TrimmedMean(beta=0.25, staleness=FRESH)
    # without the least and the greatest: (2 + 3)/2 and (0 + 4)/2
    assert step(rule, updates([(1, 4), (100, 0), (3, -50), (2, 8)])) == near(2.5, 2.0)
    # s = 1, 1/2, 1, 1: 1, 50, 3, 2 and 4, 0, −50, 8
    stale = updates([(1, 4), (100, 0), (3, -50), (2, 8)], staleness=(0, 3, 0, 0))
    assert step(TrimmedMean(beta=0.25, staleness=HALVES), stale) == near(2.5, 2.0)
    # after: (2.5, 2) times the mean of s, 7/8
    assert step(TrimmedMean(beta=0.25, weigh="after"), stale) == near(2.1875, 1.75)
    # of three 0.25 drops nothing: the mean
    assert step(rule, updates([(1, 4), (100, 0), (1, 2)])) == near(34.0, 2.0)


def test_median_of_odd_and_even_numbers():
    rule = Median(staleness=FRESH)
    assert step(rule, updates([(1, 9), (5, -7), (2, 2)])) == [2.0, 2.0]
    assert step(rule, updates([(1, 0), (2, 4), (3, 8), (100, -50)])) == near(2.5, 2.0)  # (2 + 3)/2, (0 + 4)/2
    assert step(rule, updates([(1, 0), (2, 4)])) == near(1.5, 2.0)  # two are too few: the mean


def test_median_weighed_after_and_before():
    given = updates([(1, 9), (5, -7), (2, 2)], staleness=(0, 3, 3))
    assert step(Median(), given) == near(4 / 3, 4 / 3)  # (2, 2) times the mean of 1, 1/2, 1/2
    assert step(Median(weigh="before"), given) == [1.0, 1.0]  # of (1, 9), (2.5, −3.5), (1, 1)


def test_scale_and_share():
    given = updates([(1, 9), (5, -7), (2, 2)])
    assert step(Median(scale=0.5), given) == [1.0, 1.0]
    assert step(Median(weights="share"), given) == near(0.6, 0.6)  # each has a tenth of all samples
    assert step(Median(weights="share", scale=2.0), given[:2]) == near(1.2, 0.4)  # 2 · 0.2 · (3, 1)


# ---- distances ----

# Squared distances: AB 4, AC 1, AD 8, BC 5, BD 4, CD 5. With f = 1 of 5 a score is the sum of the two least:
# A 1 + 4, B 4 + 4, C 1 + 5, D 4 + 5, and E is far.
FIVE = [(0.0, 0.0), (2.0, 0.0), (0.0, 1.0), (2.0, 2.0), (100.0, 100.0)]


def test_krum_and_multi_krum():
    assert step(MultiKrum(f=1, n=1), updates(FIVE)) == [0.0, 0.0]  # A
    assert step(MultiKrum(f=1, n=2), updates(FIVE)) == [0.0, 0.5]  # A and C
    assert step(MultiKrum(f=1), updates(FIVE)) == near(1.0, 0.75)  # k − f = 4: all but E
    assert step(MultiKrum(f=1), updates(FIVE[:4])) == near(1.0, 0.75)  # four are too few: the mean


def test_krum_takes_the_smaller_task_of_equal_scores():
    # f = 0, k = 3: a score is the distance to the nearest: 1, 1, 4
    given = updates([(1, 0), (2, 0), (4, 0)])
    assert step(MultiKrum(f=0, n=1), given) == [1.0, 0.0]
    assert step(MultiKrum(f=0, n=1), given[::-1]) == [1.0, 0.0]


def test_krum_weighed_after_and_before():
    given = updates(FIVE, staleness=(0, 0, 3, 0, 0))
    assert step(MultiKrum(f=1, n=2), given) == [0.0, 0.25]  # A and C, whose s is 1/2
    # C is at (0, 1/2): AC ¼, BC 4¼, so A 4¼, C 4½, B 8, D 4 + 6¼
    assert step(MultiKrum(f=1, n=2, weigh="before"), given) == [0.0, 0.25]
    assert step(MultiKrum(f=1, n=3, weigh="before"), given) == near(2 / 3, 0.5 / 3)  # and B


def test_one_step_of_weiszfeld(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(geometric_median, "ITERATIONS", 1)
    # from the mean 1 at distances 1, 1, 2: (3/2)/(1 + 1 + 1/2) = 0.6
    assert step(GeometricMedian(), updates([(0, 0), (0, 0), (3, 0)])) == near(0.6, 0.0)


def test_geometric_median():
    # the diagonals of a convex quadrilateral cross there
    found = step(GeometricMedian(), updates([(-1, 1), (3, 1), (0, 0), (0, 6)]))
    assert found == pytest.approx([0.0, 1.0], abs=0.02)
    assert step(GeometricMedian(), updates([(1, 2), (1, 2), (1, 2), (9, 9), (-5, 7)])) == near(1.0, 2.0)
    assert step(GeometricMedian(), updates([(1, 2), (3, 4)])) == near(2.0, 3.0)  # too few: the mean


def test_centered_clip():
    rule, memory = CenteredClip(tau=1.0, iterations=1), Tensors()
    given = updates([(3, 4), (0, 0.5)])
    # from 0: ½ (3, 4)/5 + ½ (0, ½)
    assert step(rule, given, memory) == near(0.3, 0.65)
    # both at (1.3, 0.65) are at 1 from there
    assert step(rule, updates([(1.3, 0.65)] * 2), memory) == near(1.3, 0.65)
    # one at (1.3, 10.65) is at 10: ½ of a tenth of the way; one that is not finite stays
    assert step(rule, updates([(1.3, 10.65), (nan, 0.0)]), memory) == near(1.3, 1.15)
    # twice from 0: 1 of the 5, and then 1 of the 4
    assert step(CenteredClip(tau=1.0, iterations=2), updates([(3, 4)])) == near(1.2, 1.6)


# ---- buckets ----


def test_buckets():
    rule, memory = Buckets(buckets=3), Tensors()
    assert step(rule, updates([(1, 0)], clients=[0]), memory) == [0.0, 0.0]
    assert step(rule, updates([(3, 2)], clients=[3]), memory) == [0.0, 0.0]  # also 0's: (2, 1)
    assert step(rule, updates([(5, 5)], clients=[4]), memory) == [0.0, 0.0]  # 1's
    assert step(rule, updates([(-9, 3)], clients=[2]), memory) == near(2.0, 3.0)  # of (2, 1), (5, 5), (−9, 3)
    # emptied
    assert step(rule, updates([(1, 1), (2, 2)], clients=[0, 1]), memory) == [0.0, 0.0]
    assert step(rule, updates([(7, 7)], clients=[5]), memory) == near(2.0, 2.0)


def test_a_bucket_whose_clients_have_gone_stops_the_model():
    """BASGD's reassignment of buckets is left out, as docs/robust.md says."""
    rule, memory = Buckets(buckets=3), Tensors()
    for client in (0, 1, 3, 4) * 25:  # nobody of bucket 2
        assert step(rule, updates([(1, 0)], clients=[client]), memory) == [0.0, 0.0]
    assert step(rule, updates([(1, 0)], clients=[5]), memory) == near(1.0, 0.0)


def test_trimmed_buckets_that_come_together():
    rule = Buckets(buckets=4, rule="trimmed_mean", staleness=HALVES, scale=2.0)
    given = updates([(1, 1), (2, 2), (6, 6), (100, -9)], staleness=(0, 0, 3, 0))
    assert step(rule, given) == near(5.0, 3.0)  # 2 · ½ (2 + 3) of 1, 2, 3, 100; 2 · ½ (1 + 2) of 1, 2, 3, −9


# ---- trusted data ----


def test_aflguard():
    rule = AFLGuard(steps=1, lam=1.0)
    # at 4, 5 and 10 of (3, 4), whose norm is 5
    assert step(rule, updates([(3, 0), (0, 0), (-3, -4)]), root=(3, 4)) == near(1.5, 0.0)
    stale = updates([(3, 0), (3, 4), (nan, 0)], staleness=(0, 3, 0))
    assert step(rule, stale, root=(3, 4)) == near(2.25, 1.0)  # ½ ((3, 0) + ½ (3, 4))
    assert step(rule, updates([(-3, -4), (inf, 0)]), root=(3, 4)) == [0.0, 0.0]


def test_zeno():
    rule = ZenoPlus(steps=1)
    # of norm 5: (5, 0), (0, −5), (0, 5), whose products with (3, 4) are 15, −20, 20
    assert step(rule, updates([(10, 0), (0, -1), (0, 2)]), root=(3, 4)) == near(2.5, 2.5)
    assert step(rule, updates([(0, 0), (nan, 1), (4, -3)]), root=(3, 4)) == [0.0, 0.0]  # the last: 0 < 0.01
    assert step(ZenoPlus(steps=1, epsilon=0.02), updates([(4, -3)]), root=(3, 4)) == near(4.0, -3.0)
    assert step(ZenoPlus(steps=1, rho=0.7), updates([(10, 0), (0, 2)]), root=(3, 4)) == near(0.0, 5.0)


def test_memories_are_tensors_that_a_checkpoint_can_hold():
    memory: Tensors = {}
    step(CenteredClip(tau=1.0), updates([(3, 4)]), memory)
    step(Buckets(buckets=3), updates([(3, 4)]), memory)
    assert {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in memory.items()} == {
        "v": (torch.float32, (2,)), "counts": (torch.int64, (3,)), "mean.0": (torch.float32, (2,)),
    }  # fmt: skip
