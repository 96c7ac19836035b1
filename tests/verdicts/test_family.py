"""Claims that are judged together: their looks, their distinctness and their number."""

from collections.abc import Hashable
from dataclasses import replace

import pytest

from offbeat.verdicts.average import PairSample
from offbeat.verdicts.family import SampledClaim, Verdicts, answer_claims, complete_seeds, judge_family
from offbeat.verdicts.multiplicity import LEVEL
from offbeat.verdicts.verdict import Verdict

CLEAR = (1.0, 1.02, 0.98, 1.01, 0.99)
CLOSE = (1.0, 1.3, 0.7)  # alone it is held at 5 %, and not at the 2 % of the first of several looks


def claim(key: Hashable, *values: float, planned: int = 3, matters: float | None = None) -> SampledClaim:
    pair = PairSample("a", dict(enumerate(values)))
    return SampledClaim(key, "study", [pair], range(planned), len(values), matters=matters)


def judged(*claims: SampledClaim) -> Verdicts:
    return judge_family(claims, answer_claims(claims))


def test_a_clear_difference_is_held_and_its_reverse_is_not() -> None:
    found = judged(claim("there", *CLEAR), claim("back", *(-value for value in CLEAR)))
    assert found["there", "average"] == Verdict.HELD
    assert found["back", "average"] == Verdict.NOT_HELD


def test_the_level_of_looks_that_are_to_come_is_not_spent_at_the_first() -> None:
    three, ten = claim("c", *CLOSE), claim("c", *CLOSE, planned=10)
    assert three.looks == {3: 0.02}
    (look,) = answer_claims([three])["c"]
    assert 0.02 < look.sides("average").two_sided < LEVEL
    assert judged(three)["c", "average"] == Verdict.UNDECIDED
    assert (ten.looks, ten.is_judged, dict(judged(ten))) == ({}, False, {})


def test_a_claim_with_too_few_seeds_has_no_verdict() -> None:
    few = claim("c", 1.0, 1.1)
    assert not few.is_judged
    assert judged(few, claim("d", *CLEAR)).keys() >= {("d", "average")}
    assert ("c", "average") not in judged(few, claim("d", *CLEAR))


def test_seeds_beyond_a_look_wait_for_the_next() -> None:
    four = claim("c", *CLEAR[:3], -50.0)
    assert four.looks == {3: 0.02}
    assert [list(pair.advantages) for pair in four.samples(3)] == [[0, 1, 2]]
    assert judged(four)["c", "average"] == Verdict.HELD


def test_claims_with_the_same_numbers_are_one_and_many_claims_ask_more_of_each() -> None:
    good = claim("good", 1.0, 1.15, 0.85)
    assert judged(good)["good", "average"] == Verdict.HELD
    assert judged(good, replace(good), replace(good)) == judged(good)
    nothing = [claim(number, 0.1, -0.1, 0.05 * number) for number in range(9)]
    assert judged(good, *nothing)["good", "average"] == Verdict.UNDECIDED


def test_a_difference_that_does_not_matter_is_none() -> None:
    tiny = claim("c", 0.0001, -0.0001, 0.00005, matters=0.005)
    assert judged(tiny)["c", "average"] == Verdict.NO_DIFFERENCE
    assert judged(replace(tiny, matters=None))["c", "average"] == Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("first", "pairs", "count"),
    [
        (0, [{0, 1, 2}, {0, 1, 2, 3}], 3),
        (0, [{0, 1, 3}], 2),
        (0, [{1, 2, 3}], 0),
        (7, [{7, 8, 9}], 3),
        (0, [{0, 1}, set()], 0),
        (0, [], 0),
    ],
)
def test_seeds_count_up_to_the_first_that_a_pair_lacks(first: int, pairs: list[set[int]], count: int) -> None:
    assert complete_seeds(first, [frozenset(pair) for pair in pairs]) == count
