"""How long one label takes to a target, relative to another one: one rule for headline, table and figures."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp
from statistics import fmean, stdev
from typing import Literal

from offbeat.report.seed_statistics import BySeed
from offbeat.verdicts.cost import Cost, log_ratio

Bound = Literal["", ">", "<", "≈"]
"""What seeds that did not get there leave open: the true ratio is larger, is smaller, or may be either."""


@dataclass(frozen=True, slots=True)
class TimeRatio:
    """One label's time over another one's: the geometric mean over the seeds that both have.

    A seed that did not get to the target counts with the time of its last evaluation.

    Attributes:
        mean: The mean.
        std: Its deviation over the seeds (to first order). None for a single seed.
        bound: What the seeds leave open that did not get there.
    """

    mean: float
    std: float | None
    bound: Bound = ""


SAME = TimeRatio(1.0, None)
"""A label's time over its own."""


def mostly_reached(times: BySeed) -> bool:
    """Whether more than half of a label's seeds reached the target."""
    return 2 * sum(time is not None for time in times.values()) > len(times)


def time_ratio(ours: Mapping[int, Cost], theirs: Mapping[int, Cost]) -> TimeRatio | None:
    """Divide our times by theirs, seed by seed.

    Args:
        ours: Our time to the target by seed; where it was not reached, that of the last evaluation.
        theirs: Theirs.

    Returns:
        The ratio. None without a common seed, and where one of both was at the target from the start.
    """
    pairs = [(cost, theirs[seed]) for seed, cost in ours.items() if seed in theirs]
    if not pairs or any(cost.reached and not cost.amount for pair in pairs for cost in pair):
        return None
    # A seed in which nobody got there within the time of both counts as equal, as in the rule of studies.
    logs = [log_ratio(their, our) for our, their in pairs]
    known = [each or 0.0 for each in logs]
    mean = exp(fmean(known))
    return TimeRatio(mean, mean * stdev(known) if len(known) > 1 else None, _bound(pairs, logs))


def _bound(pairs: list[tuple[Cost, Cost]], logs: list[float | None]) -> Bound:
    ours = any(not our.reached for our, _ in pairs)
    theirs = any(not their.reached for _, their in pairs)
    if None in logs or (ours and theirs):
        return "≈"
    return ">" if ours else "<" if theirs else ""
