"""Verdicts on a paper's claims, by the rule of docs/studies.md, which was frozen on 2026-11-25.

A claim says of pairs of arms that one is ahead of the other. `judge` pairs their runs by seed, `answers` asks
the pairs each question with its p-values, `multiplicity` has the level of several looks and several claims.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import log, sqrt

import numpy as np

from offbeat.report.statistics import student_t
from offbeat.studies.average import Sides
from offbeat.studies.multiplicity import LEVEL
from offbeat.studies.rows import Cost


class Verdict(StrEnum):
    """What the runs say of a claim."""

    HELD = "held"
    NOT_HELD = "not held"
    NO_DIFFERENCE = "no difference"
    UNDECIDED = "undecided"
    NOT_RUN = "not run"
    NO_REAL_DATA = "no real data here"


@dataclass(frozen=True, slots=True)
class Interval:
    """Mean over `n` seeds, with its 95 % interval by Student's t; of one seed both ends are the mean."""

    mean: float
    low: float
    high: float
    n: int


def interval(values: Sequence[float]) -> Interval | None:
    """The interval of a mean over seeds; None without any value."""
    if not values:
        return None
    mean, n = float(np.mean(values)), len(values)
    half = student_t(n - 1) * float(np.std(values, ddof=1)) / sqrt(n) if n > 1 else 0.0
    return Interval(mean, mean - half, mean + half, n)


def log_ratio(better: Cost, other: Cost) -> float | None:
    """The logarithm of the other's cost over the better one's, restricted to where both were observed.

    Args:
        better: Cost of the run that the claim says is ahead, above 0.
        other: Cost of the other run.

    Returns:
        The advantage; None where neither reached the target before the horizon.
    """
    horizon = min((cost.amount for cost in (better, other) if not cost.reached), default=float("inf"))
    restricted = [min(cost.amount, horizon) for cost in (better, other)]
    if min(restricted) >= horizon:
        return None
    least = min((amount for amount in restricted if amount > 0), default=1.0)
    ahead, behind = (max(amount, least * 1e-3) for amount in restricted)  # at the target from the start
    return log(behind / ahead)


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
