"""Selection of coordinates: r of d at random, or the r largest; indices ascend."""

import numpy as np
import torch
from torch import Tensor

from offbeat.codec.validation import Floats, pieces
from offbeat.core.types import Indices

BLOCK = 1 << 18


def random_subset(size: int, count: int, rng: np.random.Generator) -> Indices:
    """Draw a subset of `count` of `size` coordinates; each has the same probability.

    The numbers of coordinates in each block are multivariate hypergeometric; given them, a block's
    coordinates are uniform in it. So no permutation of `size` numbers is needed, and nothing is sorted but
    within a block.
    """
    starts = np.arange(0, size, BLOCK)
    sizes = np.minimum(BLOCK, size - starts)
    counts = rng.multivariate_hypergeometric(sizes, count, method="marginals")
    indices = np.empty(count, np.int64)
    at = 0
    for start, n, k in zip(starts.tolist(), sizes.tolist(), counts.tolist(), strict=True):
        if k:
            indices[at : at + k] = _within(n, k, rng)
            indices[at : at + k] += start
            at += k
    return indices


def _within(size: int, count: int, rng: np.random.Generator) -> Indices:
    """Draw a subset of one block, by its complement where that is smaller."""
    inverted = 2 * count > size
    drawn = rng.choice(size, size - count if inverted else count, replace=False, shuffle=False)
    if 16 * count < size:
        return np.sort(drawn)
    marked = np.full(size, inverted)
    marked[drawn] = not inverted
    return np.flatnonzero(marked)


def largest(values: Floats, count: int) -> Indices:
    """The `count` coordinates of largest |u|; of equal ones, those that come first."""
    if count == 0:
        return np.empty(0, np.int64)
    sizes = np.abs(values)
    bound = np.partition(sizes, len(sizes) - count)[len(sizes) - count]
    indices = np.empty(count, np.int64)
    above = sum(int(np.count_nonzero(sizes[piece] > bound)) for piece in pieces(len(sizes)))
    ties, at = count - above, 0
    for piece in pieces(len(sizes)):
        mask = sizes[piece] > bound
        if ties:
            equal = np.flatnonzero(sizes[piece] == bound)[:ties]
            mask[equal] = True
            ties -= len(equal)
        here = np.flatnonzero(mask)
        indices[at : at + len(here)] = here + piece.start
        at += len(here)
    return indices


def scatter(values: Floats, indices: Indices | None, size: int) -> Tensor:
    """Scatter values to their indices, with zeros elsewhere; indices None means all."""
    if indices is None:
        return torch.from_numpy(values)
    out = np.zeros(size, np.float32)
    out[indices] = values
    return torch.from_numpy(out)
