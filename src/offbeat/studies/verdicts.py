"""Verdicts on a paper's claims: the rule, written before any run of a study was made.

A claim says of two arms, in a column, that one is ahead of the other. The runs of both are paired by seed.

1. Advantage of a pair of runs. Of a value (an accuracy, a loss): the difference, positive where the claim has
   it. Of a cost up to a target (seconds, tasks, bytes): the logarithm of the other's cost over the claimed
   one's. A run that did not reach the target is censored at its last evaluation: it counts as that much, and
   so does the other one if it took longer (both are restricted to a common horizon). Where both are at the
   horizon the pair of runs says nothing.
2. Interval. The 95 % percentile interval of the paired bootstrap over seeds: of the means of all n^n
   resamples where at most 6 seeds say something, else of 10,000 from a fixed stream. Its ends are resampled
   means: the lower one at or below the quantile 0.025, the upper one at or above the quantile 0.975.
3. Verdict of a pair of arms. Held: the interval, less the claim's margin, is wholly above 0. Not held: it is
   wholly below 0. Undecided: otherwise, and where fewer than 3 seeds say something. Not run: there are fewer
   than 3 seeds of both arms.
4. Verdict of a claim of several pairs, over all columns. Not run if no pair was run; held if every pair is
   held; not held if more than half of all pairs are not held; otherwise undecided. The counts stand beside.
   So does the mean advantage over its pairs, with the bootstrap's interval over seeds: with few seeds it says
   more than the pairs do one by one. It came after the rule, and no verdict rests on it.

At least 3 seeds are run; where a claim is undecided 5 are better. With 3 seeds the interval goes from the
smallest advantage to the largest: a pair is held if all seeds agree. Of pairs that do not differ (4,000
draws of normal advantages) 25 % are held or not held by chance with 3 seeds, 16 % with 5, 9 % with 10,
and 31 % with 3 seeds and with 5 where 3 leave it undecided, half of them each way: a claim of one pair and
three seeds is weak evidence. There is no correction for many claims.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import product
from math import floor, log

import numpy as np
from numpy.typing import NDArray

from offbeat.report.statistics import CONFIDENCE
from offbeat.studies.rows import Cost

LEAST_SEEDS = 3
ALL_RESAMPLES = 6
"""Most seeds of which all resamples are made."""
RESAMPLES = 10_000
UNDECIDED_SEEDS = 5
"""Seeds of what is undecided."""


class Verdict(StrEnum):
    """What the runs say of a claim."""

    HELD = "held"
    NOT_HELD = "not held"
    UNDECIDED = "undecided"
    NOT_RUN = "not run"
    NO_REAL_DATA = "no real data here"


@dataclass(frozen=True, slots=True)
class Interval:
    """Mean of paired advantages over `n` seeds, with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float
    n: int


def log_ratio(better: Cost, other: Cost) -> float | None:
    """The logarithm of the other's cost over the better one's, restricted to where both were observed.

    Args:
        better: Cost of the run that the claim says is ahead, above 0.
        other: Cost of the other run.

    Returns:
        The advantage; None where neither reached the target before the horizon, which says nothing.
    """
    horizon = min((cost.amount for cost in (better, other) if not cost.reached), default=float("inf"))
    restricted = [min(cost.amount, horizon) for cost in (better, other)]
    if min(restricted) >= horizon:
        return None
    least = min((amount for amount in restricted if amount > 0), default=1.0)
    ahead, behind = (max(amount, least * 1e-3) for amount in restricted)  # at the target from the start
    return log(behind / ahead)


def interval(advantages: Sequence[float]) -> Interval | None:
    """The paired bootstrap's interval of the mean; None without any advantage."""
    if not advantages:
        return None
    ordered = tuple(sorted(advantages))
    mirrored = tuple(sorted(-a for a in advantages))
    sign = 1.0 if ordered >= mirrored else -1.0  # resampled the same way round: a claim mirrors its reverse
    values = np.array(max(ordered, mirrored))
    means = np.sort(values[_resamples(len(values))].mean(axis=1))
    tail = (1 - CONFIDENCE) / 2 * (len(means) - 1)
    ends = sorted(sign * float(means[place]) for place in (floor(tail), len(means) - 1 - floor(tail)))
    return Interval(sign * float(values.mean()), ends[0], ends[1], len(values))


@cache
def _resamples(n: int) -> NDArray[np.int64]:
    """Indices of resamples of n values, a row each."""
    if n <= ALL_RESAMPLES:
        return np.array(list(product(range(n), repeat=n)), dtype=np.int64)
    return np.random.Generator(np.random.Philox(key=n)).integers(0, n, (RESAMPLES, n))


def pair_verdict(advantages: Sequence[float | None], margin: float = 0.0) -> Verdict:
    """Verdict on a pair of arms.

    Args:
        advantages: The advantage in each seed of both; None where it says nothing.
        margin: What the claimed one is ahead by at least.
    """
    if len(advantages) < LEAST_SEEDS:
        return Verdict.NOT_RUN
    found = interval([advantage - margin for advantage in advantages if advantage is not None])
    if found is None or found.n < LEAST_SEEDS:
        return Verdict.UNDECIDED
    if found.low > 0:
        return Verdict.HELD
    return Verdict.NOT_HELD if found.high < 0 else Verdict.UNDECIDED


def claim_verdict(pairs: Sequence[Verdict]) -> Verdict:
    """Verdict on a claim of several pairs of arms."""
    if all(pair == Verdict.NOT_RUN for pair in pairs):
        return Verdict.NOT_RUN
    if all(pair == Verdict.HELD for pair in pairs):
        return Verdict.HELD
    return Verdict.NOT_HELD if 2 * pairs.count(Verdict.NOT_HELD) > len(pairs) else Verdict.UNDECIDED


def experiment_verdict(claims: Sequence[Verdict]) -> Verdict:
    """Verdict on an experiment of several claims: held if all are, not held if one is not."""
    if Verdict.NOT_HELD in claims:
        return Verdict.NOT_HELD
    known = set(claims)
    return known.pop() if len(known) == 1 else Verdict.UNDECIDED if known else Verdict.NOT_RUN
