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
        sides: P-values that the question's claim is not so, and that its opposite is not so.
        differs: Their two-sided p-value, adjusted for several claims.
        equal: P-value of a difference that matters, also adjusted.
    """
    if differs <= LEVEL:
        return Verdict.HELD if sides.ahead < sides.behind else Verdict.NOT_HELD
    return Verdict.NO_DIFFERENCE if equal <= LEVEL else Verdict.UNDECIDED


def experiment_verdict(claims: Sequence[Verdict]) -> Verdict:
    """Verdict on an experiment of several claims.

    The experiment is held if all claims are held, and not held if one claim is not held. It has no difference
    if each claim is held or has no difference, and at least one has no difference.
    """
    known = set(claims)
    if Verdict.NOT_HELD in known:
        return Verdict.NOT_HELD
    if known == {Verdict.HELD, Verdict.NO_DIFFERENCE}:
        return Verdict.NO_DIFFERENCE
    return known.pop() if len(known) == 1 else Verdict.UNDECIDED if known else Verdict.NOT_RUN
