"""Statistics over seeds: means, deviations, and paired differences with a confidence interval."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

CONFIDENCE = 0.95

BySeed = Mapping[int, float | None]
"""A number of each run of a label by its seed; None where the run lacks it."""


@dataclass(frozen=True, slots=True)
class Stat:
    """Mean and standard deviation (ddof = 1; 0 for a single value) over `n` seeds."""

    mean: float
    std: float
    n: int

    @property
    def spread(self) -> float | None:
        """The standard deviation; None for a single seed, which has none."""
        return self.std if self.n > 1 else None


@dataclass(frozen=True, slots=True)
class Difference:
    """Paired difference of two labels over their common seeds.

    Attributes:
        mean: Mean of the differences, seed by seed.
        half: Half the width of its 95 % confidence interval, t · s / √n, where s is the deviation of the
            differences and t the quantile 0.975 of Student's distribution with n − 1 degrees of freedom. None
            for a single seed, which gives no interval.
        n: Number of common seeds.
    """

    mean: float
    half: float | None
    n: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the confidence interval."""
        return None if self.half is None else (self.mean - self.half, self.mean + self.half)


def stat(values: Sequence[float | None]) -> Stat | None:
    """Mean and deviation of the values that are not None; None without any."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    std = float(np.std(known, ddof=1)) if len(known) > 1 else 0.0
    return Stat(float(np.mean(known)), std, len(known))


def paired_difference(ours: BySeed, theirs: BySeed) -> Difference | None:
    """How much larger ours are than theirs, over the seeds in which both have a value; None without any."""
    pairs = ((value, theirs.get(seed)) for seed, value in ours.items())
    found = stat([ours - theirs for ours, theirs in pairs if ours is not None and theirs is not None])
    if found is None:
        return None
    half = student_t(found.n - 1) * found.std / sqrt(found.n) if found.n > 1 else None
    return Difference(found.mean, half, found.n)


def student_t(freedom: int) -> float:
    """The quantile 0.975 of Student's distribution: 12.71 for one degree of freedom, 4.30 for two."""
    # The import takes a quarter of a second, and only comparisons need it.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
