"""The devices whose training data, put together, has its labels most evenly: the least label variance.

Hu, Chen, Larsson, Scheduling and Aggregation Design for Asynchronous Federated Learning over Wireless
Networks, 2023, Section III-A. b_k^j is the number of samples of label j on device k, ω the number of labels:

    Ω(Π) = Σ_j |Σ_{k∈Π} b_k^j − b̄|²,  b̄ = (1/ω) Σ_j Σ_{k∈Π} b_k^j

With v_k = ω b_k − Σ_j b_k^j, a vector of whole numbers, ω² Ω(Π) = ‖Σ_{k∈Π} v_k‖². That is what is minimised:
sums of v_k are exact (below 2^53), so ties are ties.

The paper does not say how it finds the argmin over subsets of R of n devices. Here, where there are few
subsets, all of them are looked at. Else swaps of one device against another improve a subset until none does,
from several starts: the subset that grows by the best device at a time, and 30 random ones. These are always
the same for the same n and R, so that the answer depends on the labels alone. It is never worse than the best
of the 30, and rarely worse than the best of all; how rarely, tests/algorithms/test_policies.py says.

A swap looks at R (n − R) pairs, and a random start needs up to about R swaps. Where there are many pairs,
fewer random starts are taken, so that a choice among thousands of devices takes seconds.
"""

from collections.abc import Sequence
from itertools import combinations
from math import comb

import numpy as np
import numpy.typing as npt

from offbeat.core.streams import Purpose, stream

# Up to this number of subsets, the search looks at all of them.
EXACT = 20_000
# Swaps start from this number of random subsets,
STARTS = 30
# or from fewer, if they would look at more than this number of pairs in their first swaps.
PAIRS = 2_000_000

Vectors = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Members = npt.NDArray[np.bool_]


def label_variance(labels: Sequence[Sequence[int]]) -> float:
    """Ω of some devices together, each given as its numbers of samples of each label, b_k."""
    total = np.sum(np.asarray(labels, dtype=np.float64), axis=0)  # Σ_k b_k^j
    return float(np.sum((total - total.mean()) ** 2))


def least_variance(labels: Sequence[Sequence[int]], count: int) -> list[int]:
    """The `count` devices (all, if there are no more) with the least Ω, as sorted indices into `labels`.

    `labels` has the b_k of each device. Where several subsets have the least, an exact search takes the one
    that comes first in the order of indices.
    """
    n = len(labels)
    if count >= n:
        return list(range(n))
    b = np.asarray(labels, dtype=np.float64)
    v: Vectors = b.shape[1] * b - b.sum(axis=1, keepdims=True)  # ω b_k − Σ_j b_k^j
    chosen = _all(v, count) if comb(n, count) <= EXACT else _search(v, count)
    return [int(k) for k in chosen]


def _squares(v: Vectors) -> Vectors:
    """‖·‖² of the last axis."""
    return np.asarray((v * v).sum(axis=-1))


def _all(v: Vectors, count: int) -> Indices:
    """The least of all subsets. Of a subset and its complement the smaller one is listed."""
    n = len(v)
    small = min(count, n - count)
    subsets = np.array(list(combinations(range(n), small)), dtype=np.intp).reshape(-1, small)
    sums = v[subsets].sum(axis=1)
    if small == count:
        best: Indices = subsets[_squares(sums).argmin()]
        return best
    # Subsets of the devices left out come in reverse order of those inside, so the last minimum is taken.
    left_out: Indices = subsets[::-1][_squares(v.sum(axis=0) - sums)[::-1].argmin()]
    return np.delete(np.arange(n), left_out)


def _search(v: Vectors, count: int) -> Indices:
    """The least of the local minima that the starts lead to."""
    n = len(v)
    gram = v @ v.T
    # The key is fixed, so the starts are always the same.
    rng = stream(0, Purpose.SCHEDULE, n, count)
    starts = [_grown(v, gram, count)]
    few = min(STARTS, PAIRS // (count * (n - count)))
    starts += [np.isin(np.arange(n), rng.permutation(n)[:count]) for _ in range(few)]
    found = [_swapped(v, gram, start) for start in starts]
    values = [float(_squares(v[members].sum(axis=0))) for members in found]
    return np.flatnonzero(found[int(np.argmin(values))])


def _grown(v: Vectors, gram: Vectors, count: int) -> Members:
    """Greedily: of all devices always the one that leaves the least ‖s + v_k‖², s the sum so far."""
    inside = np.zeros(len(v), dtype=np.bool_)
    s = np.zeros(v.shape[1])
    for _ in range(count):
        k = int(np.where(inside, np.inf, gram.diagonal() + 2 * (v @ s)).argmin())
        inside[k] = True
        s = s + v[k]
    return inside


def _swapped(v: Vectors, gram: Vectors, start: Members) -> Members:
    """Swap the pair that lowers ‖s‖² most, again and again, until no swap lowers it."""
    inside = start.copy()
    own, s = gram.diagonal(), v[inside].sum(axis=0)
    while True:
        i, o = np.flatnonzero(inside), np.flatnonzero(~inside)
        along = v @ s
        # ‖s − v_i + v_o‖² − ‖s‖²
        change = (own[i] - 2 * along[i])[:, None] + (own[o] + 2 * along[o]) - 2 * gram[np.ix_(i, o)]
        out, into = divmod(int(change.argmin()), len(o))
        after = s - v[i[out]] + v[o[into]]
        if _squares(after) >= _squares(s):
            # Each swap must lower the variance, so the loop ends.
            return inside
        inside[i[out]], inside[o[into]] = False, True
        s = after
