"""Verdicts on questions and on experiments, by hand."""

import pytest

from offbeat.verdicts.average import Sides
from offbeat.verdicts.verdict import Verdict, answer_verdict, experiment_verdict

HELD, NOT, SAME, OPEN, NONE = (
    Verdict.HELD, Verdict.NOT_HELD, Verdict.NO_DIFFERENCE, Verdict.UNDECIDED, Verdict.NOT_RUN,
)  # fmt: skip


@pytest.mark.parametrize(
    ("sides", "differs", "equal", "verdict"),
    [
        (Sides(0.001, 0.999), 0.05, 1.0, HELD),
        (Sides(0.999, 0.001), 0.05, 1.0, NOT),
        (Sides(0.001, 0.999), 0.051, 1.0, OPEN),  # not after the adjustment for several claims
        (Sides(0.4, 0.6), 0.8, 0.05, SAME),
        (Sides(0.001, 0.999), 0.01, 0.01, HELD),  # a difference that is too small to matter, but known
        (Sides(1.0, 1.0), 1.0, 1.0, OPEN),
    ],
)
def test_the_verdict_on_a_question(sides: Sides, differs: float, equal: float, verdict: Verdict) -> None:
    assert answer_verdict(sides, differs, equal) == verdict


@pytest.mark.parametrize(
    ("claims", "verdict"),
    [
        ([HELD, HELD], HELD),
        ([HELD, NOT, OPEN], NOT),
        ([SAME, NOT], NOT),
        ([HELD, SAME], SAME),
        ([SAME, SAME], SAME),
        ([HELD, SAME, OPEN], OPEN),
        ([HELD, NONE], OPEN),
        ([NONE, NONE], NONE),
        ([], NONE),
    ],
)
def test_the_verdict_on_an_experiment(claims: list[Verdict], verdict: Verdict) -> None:
    assert experiment_verdict(claims) == verdict
