"""Means over seeds with their intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from offbeat.report.seed_statistics import student_t


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
