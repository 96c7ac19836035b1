"""How many pairs of a claim are ahead: tests of "at least u of K", and an estimate by shrinkage."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from offbeat.verdicts.average import Average, PairSample, Sides, average

Array = NDArray[np.float64]
# Number of points, and the last one, of the distribution of the mean over pairs, in logits of probability.
_POINTS, _TAIL = 400, 14.0
# A smaller variance counts as none, and keeps divisions finite.
_NOISE = 1e-24


def each_pair(pairs: Sequence[PairSample], neither: float) -> list[Average | None]:
    """The average of each pair by itself; None with too few seeds.

    The standard error of a pair is at least the root mean square of the pairs' standard errors. A few seeds
    that happen to agree are no evidence, and a skewed law would give many small errors.
    """
    found = [average([pair], neither=neither) for pair in pairs]
    least = sqrt(fmean([one.error**2 for one in found if one is not None] or [0.0]))
    return [one and replace(one, error=max(one.error, least)) for one in found]


def at_least(pairs: Sequence[Sides], number: int) -> Sides:
    """Test that at least `number` pairs are ahead: the partial conjunction of Benjamini and Heller.

    All pairs (number = K) is the intersection-union test, and one pair (number = 1) is Holm's first step: of
    "every pair is ahead" the side `behind` says that a pair is firmly reversed.

    Args:
        pairs: The one-sided p-values of each pair.
        number: Number of pairs, from 1 to all.
    """
    ahead, behind = (sorted(side) for side in zip(*pairs, strict=True))
    others = len(pairs) - number + 1
    found = Sides(others * ahead[number - 1], number * behind[others - 1])
    return found.times(1.0)


@dataclass(frozen=True, slots=True)
class PairsAhead:
    """Number of pairs that are ahead, by shrinkage of each pair's effect towards their mean.

    Attributes:
        expected: Its expectation.
        low: Lower end of its 95 % interval.
        high: Upper end of it.
        of: Number of pairs.
        most: P-values of "at most half of them", and of "at least half".
    """

    expected: float
    low: int
    high: int
    of: int
    most: Sides


def pairs_ahead(pairs: Sequence[PairSample], margin: float, mean: Average | None) -> PairsAhead | None:
    """Estimate how many pairs are ahead by more than a margin.

    The effect of a pair is normal around the mean over pairs, which has Student's distribution. The measured
    mean of a pair is normal around the pair's effect, with the standard error of `each_pair`.

    Args:
        pairs: The pairs.
        margin: The margin.
        mean: The average of the pairs' advantages that is compared with the margin.

    Returns:
        The estimate. None means that nothing varies.
    """
    each = [one for one in each_pair(pairs, margin) if one is not None]
    if mean is None or not mean.error:
        return None
    effects = np.array([one.mean - margin for one in each])
    noise = np.array([one.error**2 for one in each])
    spread = max(0.0, float(np.var(effects, ddof=1) - noise.mean())) if len(each) > 1 else 0.0
    quantiles, weights = _quantiles(mean.freedom)
    ahead = _ahead(effects, noise, spread, mean.mean - margin + mean.error * quantiles)
    counts = _count_distribution(ahead, weights)
    below = np.cumsum(counts)
    number = np.arange(len(counts))
    half = len(each) / 2
    most = Sides(float(counts[number <= half].sum()), float(counts[number >= half].sum()))
    low, high = (int(np.searchsorted(below, tail)) for tail in (0.025, 0.975))
    return PairsAhead(float(counts @ number), low, high, len(each), most)


def _ahead(effects: Array, noise: Array, spread: float, means: Array) -> Array:
    """Probability of each pair to be ahead, a row for each value of the mean over pairs."""
    from scipy.special import ndtr

    weight = spread / np.maximum(spread + noise, _NOISE)
    expected = weight * effects + (1 - weight) * means[:, None]
    found: Array = ndtr(expected / np.sqrt(np.maximum(weight * noise, _NOISE)))
    return found


def _quantiles(freedom: float) -> tuple[Array, Array]:
    """Quantiles of Student's distribution, the denser the farther out, with the probability about each."""
    from scipy.special import expit, stdtrit

    edges = expit(np.linspace(-_TAIL, _TAIL, _POINTS + 1))
    edges[0], edges[-1] = 0.0, 1.0
    found: Array = stdtrit(freedom, expit(np.linspace(-_TAIL, _TAIL, 2 * _POINTS + 1)[1::2]))
    return found, np.diff(edges)


def _count_distribution(ahead: Array, weights: Array) -> Array:
    """Distribution of how many pairs are ahead, over weighted rows."""
    counts = np.zeros((len(ahead), ahead.shape[1] + 1))
    counts[:, 0] = weights
    for chance in ahead.T[:, :, None]:
        counts[:, 1:] = counts[:, 1:] * (1 - chance) + counts[:, :-1] * chance
        counts[:, :1] *= 1 - chance
    found: Array = counts.sum(axis=0)
    return found
