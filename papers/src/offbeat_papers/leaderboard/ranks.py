"""Ranks of algorithms with intervals, from the rows of the leaderboard's runs.

In a block, one seed of one world with one data set, the algorithms have ranks from 1, ties their mean. An
algorithm's rank is the mean over seeds and then over worlds with data sets. Its 95 % interval is the
percentile interval of the bootstrap that draws worlds with data sets and, in each, seeds. An algorithm is
*behind* the one of the least mean rank if the interval of their paired difference is wholly above 0; the
others share the lead. Blocks that miss a run of one of the algorithms are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from offbeat.report.statistics import CONFIDENCE
from offbeat_papers import ItemRows
from offbeat_papers.rows import Cost

RESAMPLES = 10_000
Blocks = Mapping[tuple[str, str], Sequence[Sequence[float]]]
"""By data set and world: for each seed the value of each label, of which less is better."""


@dataclass(frozen=True)
class Rank:
    """An algorithm's rank.

    Attributes:
        label: The algorithm.
        mean: Its mean rank.
        low: Lower end of the 95 % interval.
        high: Upper end.
        behind: Whether it is behind the first, beyond the noise.
    """

    label: str
    mean: float
    low: float
    high: float
    behind: bool


def blocks_of(boards: Mapping[str, ItemRows], labels: Sequence[str], by: str) -> Blocks:
    """The blocks in which every label has a run.

    Args:
        boards: The rows by data set.
        labels: The labels.
        by: "time" to the target, later than any where it was not reached; or "final" or "worst" accuracy.
    """
    found: dict[tuple[str, str], list[list[float]]] = {}
    for data, rows in boards.items():
        for world in rows.study.columns:
            amounts = [rows.amounts((label, world), by) for label in labels]
            for seed in sorted(set.intersection(*(set(own) for own in amounts))):
                values = [_lower_is_better(own[seed]) for own in amounts]
                found.setdefault((data, world), []).append(values)
    return found


def _lower_is_better(amount: Cost | float) -> float:
    if isinstance(amount, Cost):
        return amount.amount if amount.reached else inf
    return -amount


def rank(labels: Sequence[str], blocks: Blocks) -> list[Rank]:
    """The labels by their mean rank, the least first; none without blocks."""
    groups = [_block_ranks(np.array(values)) for values in blocks.values()]
    if not groups:
        return []
    mean = np.mean([group.mean(axis=0) for group in groups], axis=0)
    drawn = _resampled(groups)
    tail = 50 * (1 - CONFIDENCE)
    first = int(np.argmin(mean))
    low, high = np.percentile(drawn, [tail, 100 - tail], axis=0)
    apart = np.percentile(drawn - drawn[:, [first]], tail, axis=0) > 0
    return [
        Rank(labels[k], float(mean[k]), float(low[k]), float(high[k]), bool(apart[k]))
        for k in np.argsort(mean, kind="stable")
    ]


def _block_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks [seeds, labels] of values [seeds, labels]."""
    below = (values[:, :, None] > values[:, None, :]).sum(axis=2)
    equal = (values[:, :, None] == values[:, None, :]).sum(axis=2)
    ranks: NDArray[np.float64] = below + (equal + 1) / 2
    return ranks


def _resampled(groups: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Mean ranks [resamples, labels], from a fixed stream."""
    rng = np.random.Generator(np.random.Philox(key=len(groups)))
    chosen = rng.integers(0, len(groups), (RESAMPLES, len(groups)))
    total = np.zeros((RESAMPLES, groups[0].shape[1]))
    for place in range(len(groups)):
        for number, group in enumerate(groups):
            who = np.flatnonzero(chosen[:, place] == number)
            seeds = rng.integers(0, len(group), (len(who), len(group)))
            total[who] += group[seeds].mean(axis=1)
    return total / len(groups)
