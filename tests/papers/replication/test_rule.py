"""The rule of the second study."""

from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from offbeat.verdicts.answers import Quantifier
from offbeat_papers.replication.rule import (
    Advantages,
    Answer,
    FreshClaim,
    answer_family,
    equal,
    is_smaller,
    mean_effect,
    p_value,
    seeds_to_decide,
    sides,
    with_least_error,
)

UP = {100: 1.0, 101: 2.0, 102: 3.0}
DOWN = {seed: -value for seed, value in UP.items()}
FLAT = {100: -0.1, 101: 0.0, 102: 0.1}


def claim(
    pairs: list[Advantages], question: Quantifier = "average", *, key: str = "c", margin: float = 0.0,
    matters: float | None = None,
) -> FreshClaim:  # fmt: skip
    """A claim with all its seeds."""
    return FreshClaim(key, pairs, question, margin, matters, seeds=len(pairs[0]))


def answer(one: FreshClaim) -> Answer:
    """The answer to a claim that is judged alone."""
    return answer_family([one])[one.key]


def test_a_seed_is_the_replicate_over_all_pairs() -> None:
    # Means of the seeds: (1 + 3) / 2 = 2, (2 + 6) / 2 = 4, (3 + 3) / 2 = 3. Their deviation is 1.
    effect = mean_effect([UP, {100: 3.0, 101: 6.0, 102: 3.0}])
    assert (effect.mean, effect.freedom, effect.pairs) == (3.0, 2, 2)
    assert effect.error == pytest.approx(1 / sqrt(3))
    t, p = stats.ttest_1samp([2.0, 4.0, 3.0], 0)
    assert t == pytest.approx(effect.mean / effect.error)
    assert effect.sides().two_sided == pytest.approx(p)


def test_pairs_that_say_nothing_count_as_the_margin() -> None:
    pair = {100: None, 101: 1.0, 102: 1.1}
    assert mean_effect([pair]).mean == pytest.approx(0.7)
    assert mean_effect([pair], 0.5).mean == pytest.approx(2.6 / 3)


def test_an_average_is_confirmed_contradicted_or_open() -> None:
    firm = {seed: 5.0 + value for seed, value in FLAT.items()}
    assert answer(claim([firm])) == Answer.CONFIRMED
    assert answer(claim([{seed: -value for seed, value in firm.items()}])) == Answer.CONTRADICTED
    assert answer(claim([firm], margin=5.0)) == Answer.NOT_DECIDED
    assert answer(claim([FLAT], matters=2.0)) == Answer.NO_DIFFERENCE
    assert answer(claim([FLAT], matters=0.05)) == Answer.NOT_DECIDED
    assert answer(claim([dict.fromkeys(UP, 1.0)])) == Answer.NOT_DECIDED, "nothing varies"


def test_every_pair_is_refuted_by_one_firm_reversal_and_never_confirmed() -> None:
    firm = {seed: 5.0 + value for seed, value in FLAT.items()}
    behind = {seed: -value for seed, value in firm.items()}
    assert answer(claim([firm, firm, firm], "every")) == Answer.NOT_REFUTED
    assert answer(claim([firm, FLAT, firm], "every")) == Answer.NOT_REFUTED
    reversed_claim = claim([firm, firm, behind], "every")
    assert answer(reversed_claim) == Answer.CONTRADICTED
    # Holm's first step: three pairs, the least one-sided p-value.
    assert p_value(reversed_claim) == pytest.approx(3 * mean_effect([behind]).sides().behind)
    assert answer(claim([firm], "every")) == Answer.CONFIRMED, "of one pair all questions are one"


def test_most_and_some_are_partial_conjunctions() -> None:
    firm = {seed: 5.0 + value for seed, value in FLAT.items()}
    behind = {seed: -value for seed, value in firm.items()}
    one = mean_effect([firm]).sides().ahead
    pairs = [firm, firm, firm, behind, FLAT]
    # At least three of five: the third smallest p-value, times three.
    assert sides(claim(pairs, "most")).ahead == pytest.approx(3 * one)
    assert sides(claim(pairs, "some")).ahead == pytest.approx(5 * one)
    assert answer(claim(pairs, "most")) == answer(claim(pairs, "some")) == Answer.CONFIRMED
    assert answer(claim([behind, behind, firm], "most")) == Answer.CONTRADICTED


def test_seeds_that_agree_by_chance_do_not_refute_every_pair() -> None:
    wide = {100: -3.0, 101: 4.0, 102: 2.0}
    lucky = {100: -0.5, 101: -0.51, 102: -0.49}
    assert mean_effect([lucky]).sides().behind < 0.001
    effects = with_least_error([mean_effect([wide]), mean_effect([lucky])])
    assert effects[1].error == pytest.approx(mean_effect([wide]).error / sqrt(2), rel=0.01)
    assert answer(claim([wide, lucky], "every")) == Answer.NOT_REFUTED


def test_a_label_that_reaches_the_target_is_refuted_by_the_sign_test() -> None:
    def reaches(*reached: int, seeds: int = 10) -> FreshClaim:
        return FreshClaim("r", (), "every", reached=reached, seeds=seeds)

    assert answer(reaches(10, 9, 6)) == Answer.NOT_REFUTED
    # One setting in which no run of ten reaches it: 3 · 2⁻¹⁰.
    assert p_value(reaches(10, 0, 10)) == pytest.approx(3 / 1024)
    assert answer(reaches(10, 0, 10)) == Answer.CONTRADICTED
    assert answer(reaches(3, seeds=0)) == Answer.NOT_RUN


def test_a_claim_without_all_of_its_seeds_is_not_run() -> None:
    short = FreshClaim("c", [UP, {100: 1.0}], seeds=3)
    assert answer(short) == Answer.NOT_RUN
    assert answer(FreshClaim("c", [{100: 1.0, 101: 2.0}], seeds=2)) == Answer.NOT_RUN
    assert answer(FreshClaim("c", [], seeds=3)) == Answer.NOT_RUN


def test_claims_of_a_paper_are_adjusted_together_and_count_once() -> None:
    # Alone its p-value is 3.9 %. Beside three claims without an effect it is four times as much.
    weak = {100: 1.0, 101: 1.6, 102: 1.0, 103: 0.2}
    assert stats.ttest_1samp([*weak.values()], 0).pvalue == pytest.approx(0.039, abs=0.01)
    flat = {100: 1.0, 101: -1.1, 102: 1.0, 103: -1.0}
    none = [claim([flat], key=name) for name in "xyz"]
    assert answer(claim([weak])) == Answer.CONFIRMED
    assert answer_family([claim([weak]), *none])["c"] == Answer.NOT_DECIDED
    same = [claim([weak]) for _ in range(4)]
    assert answer_family(same) == {"c": Answer.CONFIRMED}


def test_equality_is_adjusted_among_the_claims_that_are_not_decided() -> None:
    near = claim([{100: -0.1, 101: 0.1, 102: 0.02}], key="near", matters=0.35)
    firm = [claim([{seed: 5.0 + v for seed, v in FLAT.items()}], key=str(n), matters=0.1) for n in range(9)]
    assert equal(near) < 0.05
    assert answer_family([near, *firm])["near"] == Answer.NO_DIFFERENCE
    assert equal(claim([{100: None, 101: None, 102: 0.0}], matters=9.0)) == 1.0, "most say nothing"


def test_the_papers_effect_is_larger_if_it_lies_above_the_interval() -> None:
    effect = mean_effect([UP])
    low, high = effect.interval(0.95)
    assert low < 2 < high
    assert is_smaller(effect, high + 0.01)
    assert is_smaller(effect, float("inf"))
    assert not is_smaller(effect, high - 0.01)
    assert not is_smaller(effect, None)


def test_seeds_to_decide_follow_from_the_measured_effect() -> None:
    effect = mean_effect([{100: 0.0, 101: 1.0, 102: 2.0}])
    # A deviation of 1 and a lead of 1: (2.8)² = 7.84.
    assert seeds_to_decide(effect, 0.0, 3) == 8
    assert seeds_to_decide(effect, 0.5, 3) == 32
    assert seeds_to_decide(effect, 1.0, 3) is None


@given(st.integers(0, 2**32), st.sampled_from(["average", "every", "most", "some"]), st.integers(1, 5))
def test_the_opposite_claim_has_the_opposite_side(seed: int, question: Quantifier, pairs: int) -> None:
    rng = np.random.default_rng(seed)
    drawn = [dict(enumerate(map(float, rng.standard_normal(5)))) for _ in range(pairs)]
    opposite: list[Advantages] = [{s: -v for s, v in pair.items()} for pair in drawn]
    found = sides(claim(drawn, question))
    assert 0 <= found.ahead <= 1
    assert 0 <= found.behind <= 1
    if question == "average":
        assert sides(claim(opposite, question)).behind == pytest.approx(found.ahead)
    if question == "some" and pairs > 1 and found.ahead < 0.5:
        # "Every" has a least standard error besides, so it says no sooner that a pair is behind.
        assert sides(claim(opposite, "every")).behind >= found.ahead - 1e-9
