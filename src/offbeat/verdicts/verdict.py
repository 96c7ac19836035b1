"""Verdicts on a paper's claims, by the rule of docs/studies.md, which was frozen on 2026-11-25."""

from collections.abc import Sequence
from enum import StrEnum

from offbeat.verdicts.average import Sides
from offbeat.verdicts.multiplicity import LEVEL


class Verdict(StrEnum):
    """The runs' verdict on a claim."""

    HELD = "held"
    NOT_HELD = "not held"
    NO_DIFFERENCE = "no difference"
    UNDECIDED = "undecided"
    NOT_RUN = "not run"
    NO_REAL_DATA = "no real data here"


def answer_verdict(sides: Sides, differs: float, equal: float) -> Verdict:
    """Verdict on a question.

    Args:
        sides: P-values that it is not as the question has it, and that it is not otherwise.
        differs: Their two-sided p-value, adjusted for several claims.
        equal: P-value of a difference that matters, adjusted as well.
    """
    if differs <= LEVEL:
        return Verdict.HELD if sides.ahead < sides.behind else Verdict.NOT_HELD
    return Verdict.NO_DIFFERENCE if equal <= LEVEL else Verdict.UNDECIDED


def experiment_verdict(claims: Sequence[Verdict]) -> Verdict:
    """Verdict on an experiment of several claims.

    It is held if all are, and not held if one is not. If all are decided and none is not held, but one says
    that there is no difference, so does the experiment.
    """
    known = set(claims)
    if Verdict.NOT_HELD in known:
        return Verdict.NOT_HELD
    if known == {Verdict.HELD, Verdict.NO_DIFFERENCE}:
        return Verdict.NO_DIFFERENCE
    return known.pop() if len(known) == 1 else Verdict.UNDECIDED if known else Verdict.NOT_RUN
