"""The mean effect over the pairs of a claim, tested by a stratified Welch t.

The settings of a paper are fixed, and only the seeds vary. So a (column, seed) block is the replicate.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from statistics import fmean
from typing import NamedTuple

LEAST_SEEDS = 3
"""Fewest seeds with which two arms are compared."""
POWER = 0.8
"""Probability of finding an effect of the detectable size."""
# A standard deviation nearer to 0 is rounding.
_ROUNDING = 1e-9


class Sides(NamedTuple):
    """One-sided p-values: that the effect is not above 0, and that it is not below 0."""

    ahead: float
    behind: float

    @property
    def two_sided(self) -> float:
        """The p-value of no effect."""
        return min(1.0, 2 * min(self))

    def times(self, factor: float) -> "Sides":
        """Both multiplied by a factor, as for several tests; at most 1."""
        return Sides(min(1.0, factor * self.ahead), min(1.0, factor * self.behind))


NOTHING = Sides(1.0, 1.0)
"""The p-values where nothing can be tested."""


@dataclass(frozen=True, slots=True)
class PairSample:
    """The seeds of a pair of arms.

    Attributes:
        block: The pair's column; pairs of the same block and seed are not independent.
        advantages: Advantage of the claimed arm by seed. None means that neither arm reached the target.
    """

    block: Hashable
    advantages: Mapping[int, float | None]

    def values(self, neither: float) -> dict[int, float]:
        """The advantages by seed, with `neither` in place of None; empty with too few seeds."""
        if len(self.advantages) < LEAST_SEEDS:
            return {}
        return {seed: neither if each is None else each for seed, each in self.advantages.items()}


@dataclass(frozen=True, slots=True)
class Average:
    """A mean effect with its standard error and Welch's degrees of freedom.

    Attributes:
        mean: The mean over pairs of their means over seeds.
        error: Its standard error; 0 if nothing varies, and then nothing is tested.
        freedom: Degrees of freedom, by Welch and Satterthwaite.
        pairs: Number of pairs.
    """

    mean: float
    error: float
    freedom: float
    pairs: int

    def sides(self, margin: float = 0.0) -> Sides:
        """P-values of a mean that is not above a margin, and not below it."""
        if not self.error:
            return NOTHING
        below = _student(self.freedom, (self.mean - margin) / self.error)
        return Sides(1 - below, below)

    def equal(self, margin: float) -> float:
        """P-value of a mean beyond a margin on one side or the other: two one-sided tests."""
        return 1 - _student(self.freedom, (margin - abs(self.mean)) / self.error) if self.error else 1.0

    def interval(self, confidence: float) -> tuple[float, float]:
        """Both ends of its confidence interval."""
        from scipy.special import stdtrit

        half = float(stdtrit(self.freedom, (1 + confidence) / 2)) * self.error if self.error else 0.0
        return self.mean - half, self.mean + half

    def detectable(self, level: float) -> float | None:
        """The effect that a two-sided test at a level would find with a probability of `POWER`."""
        if not self.error:
            return None
        from scipy.special import nctdtrinc, stdtrit

        threshold = float(stdtrit(self.freedom, 1 - level / 2))
        return float(nctdtrinc(self.freedom, 1 - POWER, threshold)) * self.error


def average(pairs: Sequence[PairSample], correlation: float = 0.0, neither: float = 0.0) -> Average | None:
    """Average the advantages of pairs, first over seeds, then over pairs.

    Args:
        pairs: The pairs.
        correlation: Correlation of the blocks of a seed over columns, in [0, 1].
        neither: The advantage of a seed in which neither arm reached the target.

    Returns:
        The average over the pairs that have `LEAST_SEEDS` seeds. None means that no pair has as many.
    """
    samples = [values for pair in pairs if (values := pair.values(neither))]
    if not samples:
        return None
    parts = _residuals(pairs, neither)
    variances = [len(part) / (len(part) - 1) * sum(r * r for r in part.values()) for part in parts.values()]
    total = sum(variances)
    mean = fmean(fmean(values.values()) for values in samples)
    if sqrt(total) <= _ROUNDING * max(1.0, abs(mean)):
        return Average(mean, 0.0, sum(len(part) - 1 for part in parts.values()), len(samples))
    freedom = total**2 / sum(
        v**2 / (len(part) - 1) for v, part in zip(variances, parts.values(), strict=True)
    )
    shared = sum(map(sqrt, variances)) ** 2 - total
    return Average(mean, sqrt(total + correlation * shared), freedom, len(samples))


def column_correlation(claims: Sequence[Sequence[PairSample]]) -> float:
    """The correlation of the blocks of a seed over the columns of a study, pooled over its claims.

    Runs with the same seed share the initial model and the partition of the data, in some studies also over
    columns. Each claim is divided by its own variance, because claims have different units.

    Returns:
        A correlation in [0, 1]; 0 without a claim of several columns.
    """
    together = apart = 0.0
    for pairs in claims:
        parts = _residuals(pairs, 0.0)
        whole = sum(r * r for part in parts.values() for r in part.values())
        for one, other in combinations(parts.values(), 2) if whole > _ROUNDING**2 else ():
            common = [seed for seed in one if seed in other]
            together += sum(one[seed] * other[seed] for seed in common) / whole
            apart += sqrt(sum(one[s] ** 2 for s in common) * sum(other[s] ** 2 for s in common)) / whole
    return min(1.0, max(0.0, together / apart)) if apart > 0 else 0.0


def _residuals(pairs: Sequence[PairSample], neither: float) -> dict[Hashable, dict[int, float]]:
    """By block and seed, the seed's contribution to the mean over all pairs."""
    samples = [(pair.block, values) for pair in pairs if (values := pair.values(neither))]
    found: defaultdict[Hashable, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    for block, values in samples:
        mean = fmean(values.values())
        for seed, value in values.items():
            found[block][seed] += (value - mean) / len(values) / len(samples)
    return {block: dict(part) for block, part in found.items()}


def _student(freedom: float, t: float) -> float:
    """Student's distribution function."""
    # The import takes a quarter of a second.
    from scipy.special import stdtr

    return float(stdtr(freedom, t))
