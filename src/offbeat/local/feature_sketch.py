"""Sketches of a client's features: all that the client tells of them, whatever a server asks.

A sketch follows from the client's samples alone. Each number in it is of at least `least` samples: a smaller
group counts with the largest one, and no value far from all others has a part in mean and variance.
"""

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from hashlib import blake2b
from math import floor, fsum, log10, sqrt
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

REACH = 4.0
"""Deviations on either side of the mean that a sketch and a histogram cover; more is at their ends."""
CELLS = 128
"""Finest cells of a sketch, each with the same share of a normal distribution."""
DIGITS = 3
"""Significant digits of what a site sends, where it rounds."""
_GRID = np.array([-REACH, *(NormalDist().inv_cdf(k / CELLS) for k in range(1, CELLS)), REACH])
_TRIMMED = 8  # times `least` values, of which the outermost need no cells of their own
_ASIDE = 2.0  # ranges of the inner values by which a value in the moments may lie aside of them

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FeatureSketch:
    """What is told of a feature of a client.

    Attributes:
        present: Share of the samples that have it; 0 where they are too few to tell of.
        mean: Mean of its values.
        variance: Mean squared distance of its values from `mean`.
        leaves: Where the values lie: ends and share of each interval, [intervals, 3], in ascending order.
        hidden: Share of the values that may lie outside of the intervals, at either end.
    """

    present: float
    mean: float
    variance: float
    leaves: Floats
    hidden: float

    @classmethod
    def of(cls, column: Floats, least: int, *, rounded: bool) -> "FeatureSketch":
        """The sketch of a column, [samples]; NaN is missing.

        Args:
            column: The values.
            least: Fewest samples that a number is of, at least 1.
            rounded: Whether each number is rounded to `DIGITS` significant digits.
        """
        values = np.sort(column[~np.isnan(column)])
        count = len(values)
        if count < max(least, 1):
            return cls(0.0, 0.0, 0.0, np.zeros((0, 3)), 0.0)
        digits = DIGITS if rounded else 17
        present = 1.0 if len(column) - count < least else rounded_off(count / len(column), digits)
        typical = _typical(values, least)
        # `fsum` is exact, so the sketch is the same on any machine.
        mean = rounded_off(fsum(typical) / count, digits)
        variance = rounded_off(fsum((typical - mean) ** 2) / count, digits)
        trimmed = least - 1 if count >= _TRIMMED * least else 0
        edges = mean + sqrt(variance) * _GRID
        cells = _cells(values[trimmed : count - trimmed], edges, least)
        cells[0, 2] += trimmed
        cells[-1, 2] += trimmed
        shares = [rounded_off(float(n) / count, digits) for n in cells[:, 2]]
        leaves = np.column_stack([edges[cells[:, 0]], edges[cells[:, 1]], shares])
        return cls(present, mean, variance, leaves, rounded_off(trimmed / count, digits))

    def below(self, places: Floats) -> Floats:
        """Share of the values below each place, by linear interpolation within the intervals."""
        left, right, share = self.leaves.T
        total = np.cumsum(share)
        knots, sums = np.stack([left, right], 1), np.stack([total - share, total], 1)
        found: Floats = np.interp(places, knots.flat, sums.flat) / total[-1]
        return found

    def doubt(self, places: Floats) -> Floats:
        """The most by which `below` may differ from the truth at each place."""
        left, right, share = self.leaves.T
        found = np.where((places <= left[0]) | (places >= right[-1]), self.hidden, 0.0)
        at = np.searchsorted(left, places, "left") - 1
        inside = (at >= 0) & (places < right[at])
        return np.where(inside, share[at], found)


def sketch_digest(samples: int, labels: Floats, sketches: list[FeatureSketch]) -> str:
    """Digest of all that a client tells; the same for any order of its samples and features."""
    features = sorted(b"".join(np.asarray(n, np.float64).tobytes() for n in astuple(s)) for s in sketches)
    digest = blake2b(np.array([samples, *labels], np.float64).tobytes(), digest_size=32)
    for feature in features:
        digest.update(blake2b(feature).digest())
    return digest.hexdigest()


def told_counts(counts: Floats, least: int) -> Floats:
    """Numbers of samples by class, where each class of fewer than `least` counts with the largest one."""
    told = np.where(counts < least, 0.0, counts)
    told[counts.argmax()] += counts.sum() - told.sum() if told.any() else 0.0
    return told


def rounded_off(value: float, digits: int = DIGITS) -> float:
    """A value rounded to a number of significant digits."""
    return round(value, digits - 1 - floor(log10(abs(value)))) if value else value


def _typical(values: Floats, least: int) -> Floats:
    """Sorted values, of which none stands out of a crowd of others.

    The mean of many equal values and one other tells the other one.
    """
    if least == 1 or len(values) < 3 * least - 2:
        return values
    low, high = values[least - 1], values[-least]
    aside = _ASIDE * (high - low)
    values = np.clip(values, low - aside, high + aside)
    found, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    common, rare = found[counts >= least], counts[place] < least
    if len(common) and 0 < rare.sum() < least:
        values[rare] = common[np.abs(values[rare, None] - common).argmin(1)]
    return values


def _cells(values: Floats, edges: Floats, least: int) -> npt.NDArray[np.int64]:
    """Runs of the cells between `edges`, with the number of the sorted values in each: [runs, 3].

    A run is halved where each half has at least `least` values, or none.
    """
    below = [0, *np.searchsorted(values, edges[1:-1]).tolist(), len(values)]

    def halved(first: int, last: int) -> Iterator[tuple[int, int, int]]:
        middle = (first + last) // 2
        halves = [(first, middle), (middle, last)]
        counts = [below[end] - below[start] for start, end in halves]
        if last - first == 1 or any(0 < count < least for count in counts):
            yield first, last, sum(counts)
            return
        for half, count in zip(halves, counts, strict=True):
            if count:
                yield from halved(*half)

    return np.array(list(halved(0, CELLS)), np.int64)
