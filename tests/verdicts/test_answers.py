"""The answers of looks to the questions that claims ask."""

from math import log

import pytest

from offbeat.verdicts.answers import (
    QUANTIFIERS,
    LookAnswers,
    equal_over_looks,
    over_looks,
)
from offbeat.verdicts.average import NOTHING
from tests.verdicts.samples import sample

AHEAD, BEHIND = (1.0, 1.1, 0.9), (-1.0, -1.1, -0.9)
MIXED = [sample(str(k), *values) for k, values in enumerate((AHEAD, AHEAD, AHEAD, BEHIND))]


def test_each_question_has_its_own_answer() -> None:
    look = LookAnswers(MIXED, 3, 0.05)
    assert look.sides("average").two_sided < 0.01
    assert look.sides("every").behind == pytest.approx(4 * look.each[3].sides().behind)  # type: ignore[union-attr]
    assert look.sides("every").ahead > 0.99
    assert look.sides("some").ahead == pytest.approx(4 * look.each[0].sides().ahead)  # type: ignore[union-attr]
    assert look.sides("most").ahead < 0.01


def test_one_pair_answers_all_alike() -> None:
    look = LookAnswers([sample("a", 0.1, 0.4, 0.2)], 3, 0.05)
    for question in QUANTIFIERS:
        assert tuple(look.sides(question)) == pytest.approx(tuple(look.sides("average")), rel=0.05)
    assert look.detectable("every") == pytest.approx(look.detectable("average"))


def test_runs_that_did_not_get_there_are_neither_for_nor_against_a_margin() -> None:
    never = [sample("a", None, None, None), sample("b", 0.9, 1.1, 1.0)]
    far, near = (LookAnswers(never, 3, 0.05, margin=margin) for margin in (log(2), 0.0))
    assert far.effect is not None
    assert far.tested is not None
    assert far.effect.mean == pytest.approx(0.5)
    assert far.tested.mean == pytest.approx((log(2) + 1) / 2)
    assert near.tested == near.effect
    assert far.sides("average").ahead < 0.05


def test_no_difference_wants_seeds_that_say_something() -> None:
    close = [sample(str(k), 0.001, -0.001, 0.0005 * k) for k in range(3)]
    assert LookAnswers(close, 3, 0.05, matters=0.005).equal("average") < 0.01
    assert LookAnswers(close, 3, 0.05).equal("average") == 1.0
    silent = [sample("a", None, None, None), sample("b", None, None, 0.001), sample("c", 0.001, 0.0, 0.002)]
    assert LookAnswers(silent, 3, 0.05, matters=0.05).equal("average") == 1.0
    apart = [sample("a", 0.1, 0.101, 0.099), sample("b", -0.1, -0.101, -0.099)]
    look = LookAnswers(apart, 3, 0.05, matters=0.05)
    assert look.equal("average") < 0.01
    assert look.equal("every") > 0.9  # their mean is 0, and each differs


def test_the_level_of_a_look_is_spent_once() -> None:
    first, second = (LookAnswers(MIXED, seeds, level) for seeds, level in ((3, 0.02), (5, 0.01)))
    alone = first.sides("average")
    assert over_looks([first], "average").ahead == pytest.approx(2.5 * alone.ahead)
    assert over_looks([first, second], "average").ahead == pytest.approx(2.5 * alone.ahead)
    assert over_looks([second], "average").ahead == pytest.approx(5 * alone.ahead)
    assert equal_over_looks([first], "average") == 1.0


def test_what_would_have_been_shown_is_more_with_less_level_and_a_margin() -> None:
    sizes = [LookAnswers(MIXED, 3, level).detectable("average") for level in (0.05, 0.01)]
    assert sizes[0] is not None
    assert sizes[1] is not None
    assert 0 < sizes[0] < sizes[1]
    shifted = LookAnswers(MIXED, 3, 0.05, margin=0.5).detectable("average")
    assert shifted == pytest.approx(sizes[0] + 0.5)
    look = LookAnswers(MIXED, 3, 0.05)
    assert look.detectable("most") == look.detectable("average")
    assert look.detectable("some") > look.detectable("every")  # type: ignore[operator]  # equal errors, K tests
    assert LookAnswers([sample("a", 1.0, 1.0, 1.0)], 3, 0.05).detectable("average") is None
    assert LookAnswers([sample("a", 1.0)], 3, 0.05).sides("average") == NOTHING
