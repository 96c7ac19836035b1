"""What is said of all pairs of a claim together."""

from dataclasses import replace
from math import log

import pytest

from offbeat.studies.judge import Arm, JudgedClaim, JudgedPair
from offbeat.studies.study import PaperClaim
from offbeat.studies.verdicts import Verdict


def pair(than: str, seeds: int = 3, **by_seed: float) -> JudgedPair:
    said = {int(seed.removeprefix("seed")): log(ratio) for seed, ratio in by_seed.items()}
    arms: tuple[Arm, Arm] = ("ours", "one"), (than, "one")
    return JudgedPair(*arms, Verdict.UNDECIDED, frozenset(range(seeds)), said, None)


def claim(*pairs: JudgedPair) -> JudgedClaim:
    says = PaperClaim(says="ours is faster", better="ours", than=["a", "b"])
    return JudgedClaim(says, "time", Verdict.UNDECIDED, pairs, len(pairs))


def test_the_mean_over_pairs_is_of_each_seed_first() -> None:
    mean = claim(pair("a", seed0=2, seed1=4), pair("b", seed0=8, seed2=2)).mean
    assert mean is not None
    assert mean.n == 3
    assert mean.mean == pytest.approx((log(4) + log(4) + log(2)) / 3)  # seed 0: the mean of log 2, log 8
    assert (mean.low, mean.high) == pytest.approx((log(2), log(4)))


def test_the_mean_over_pairs_is_over_the_seeds_that_all_have() -> None:
    more = pair("b", seeds=5, seed0=8, seed1=2, seed2=2, seed3=1000, seed4=1000)
    assert claim(pair("a", seed0=2, seed1=4), more).mean == (
        claim(pair("a", seed0=2, seed1=4), pair("b", seed0=8, seed1=2, seed2=2)).mean
    )


def test_the_mean_over_pairs_is_judged_with_the_claims_margin() -> None:
    ahead = claim(pair("a", seed0=2, seed1=4, seed2=2), pair("b", seed0=1, seed1=1, seed2=1))
    assert ahead.on_average == Verdict.HELD
    much = ahead.claim.model_copy(update={"margin": 1.5})  # 2.5 times as fast; its mean is 1.4 to 2 times
    assert replace(ahead, claim=much).on_average == Verdict.NOT_HELD
    assert claim(pair("a", seed0=2, seed1=0.5, seed2=1)).on_average == Verdict.UNDECIDED
    assert claim(pair("a", seeds=2, seed0=2, seed1=4)).on_average == Verdict.NOT_RUN


def test_of_one_pair_it_is_the_pairs_own() -> None:
    alone = pair("a", seed0=2, seed1=0.5, seed2=4)
    assert claim(alone).mean == alone.mean


def test_pairs_that_say_nothing_have_no_mean() -> None:
    assert claim(pair("a"), pair("b")).mean is None
    assert claim().mean is None
