"""Ranks of algorithms with intervals, from the rows of the leaderboard's runs.

In a block, one seed of one world with one data set, the algorithms have ranks from 1, ties their mean. An
algorithm's rank is the mean over seeds and then over worlds with data sets. The worlds are fixed and their
seeds vary: intervals are of the stratified t by which claims of studies are judged, with worlds as columns
(`offbeat.verdicts.average`). An algorithm is *behind* the one of the least mean rank if their paired
difference is not 0 by that t, after Benjamini and Hochberg over all algorithms; the others share the lead.
The probability of improvement over a label is that of being better than it in a world and seed, ties half.
Blocks that miss a run of one of the algorithms are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from offbeat.report.seed_statistics import CONFIDENCE
from offbeat.verdicts.average import PairSample, average, column_correlation
from offbeat.verdicts.cost import Cost
from offbeat.verdicts.multiplicity import LEVEL, false_discovery
from offbeat_papers import ItemRows
from offbeat_papers.interval import Interval

Blocks = Mapping[tuple[str, str], Sequence[Sequence[float]]]
"""By data set and world: for each seed the value of each label; less is better."""
Values = NDArray[np.float64]
"""[seeds, labels] of one world."""


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
    blocks: dict[tuple[str, str], list[list[float]]] = {}
    for data, rows in boards.items():
        for world in rows.study.columns:
            amounts = [rows.amounts((label, world), by) for label in labels]
            for seed in sorted(set.intersection(*(set(by_seed) for by_seed in amounts))):
                values = [_lower_is_better(by_seed[seed]) for by_seed in amounts]
                blocks.setdefault((data, world), []).append(values)
    return blocks


def _lower_is_better(amount: Cost | float) -> float:
    if isinstance(amount, Cost):
        return amount.amount if amount.reached else inf
    return -amount


def rank(labels: Sequence[str], blocks: Blocks) -> list[Rank]:
    """The labels by their mean rank, the least first; none without blocks."""
    worlds = [_block_ranks(np.array(values)) for values in blocks.values()]
    if not worlds:
        return []
    correlation = column_correlation([_samples(worlds, k) for k in range(len(labels))])
    ranks = [_estimate(_samples(worlds, k), worlds, k, correlation) for k in range(len(labels))]
    order = np.argsort([each.mean for each in ranks], kind="stable")
    behind = _behind(worlds, int(order[0]), correlation)
    return [Rank(labels[k], ranks[k].mean, ranks[k].low, ranks[k].high, behind[k]) for k in order]


def improvement(labels: Sequence[str], blocks: Blocks, over: str) -> dict[str, Interval]:
    """The probability that each label is better than one of them in a world and seed, ties half.

    Args:
        labels: The labels.
        blocks: Their values.
        over: The label they are compared with.
    """
    base = labels.index(over)
    values = [np.array(each) for each in blocks.values()]
    wins: list[Values] = [(each < each[:, [base]]) + (each == each[:, [base]]) / 2 for each in values]
    if not wins:
        return {}
    correlation = column_correlation([_samples(wins, k) for k in range(len(labels))])
    found = [_estimate(_samples(wins, k), wins, k, correlation) for k in range(len(labels))]
    return {
        label: Interval(each.mean, max(0.0, each.low), min(1.0, each.high), each.n)
        for label, each in zip(labels, found, strict=True)
        if label != over
    }


def _behind(worlds: Sequence[Values], first: int, correlation: float) -> list[bool]:
    """Whether each label is behind the first one; where nothing varies nothing is tested."""
    count = worlds[0].shape[1]
    gaps = [world - world[:, [first]] for world in worlds]
    found = [average(_samples(gaps, k), correlation) for k in range(count)]
    others = [k for k in range(count) if k != first]
    p_values = [1.0 if each is None else each.sides().two_sided for each in (found[k] for k in others)]
    # The first label has the least mean, so each of the others can only be behind it.
    adjusted = dict(zip(others, false_discovery(p_values), strict=True))
    return [k != first and adjusted[k] <= LEVEL for k in range(count)]


def _samples(worlds: Sequence[Values], label: int) -> list[PairSample]:
    """A label's values by seed, each world a block of its own."""
    return [
        PairSample(place, {seed: float(value) for seed, value in enumerate(world[:, label])})
        for place, world in enumerate(worlds)
    ]


def _estimate(
    samples: Sequence[PairSample], worlds: Sequence[Values], label: int, correlation: float
) -> Interval:
    """The mean with its 95 % interval; both ends are the mean with too few seeds, or where none varies."""
    found, seeds = average(samples, correlation), sum(map(len, worlds))
    if found is None:
        mean = float(np.mean([world[:, label].mean() for world in worlds]))
        return Interval(mean, mean, mean, seeds)
    return Interval(found.mean, *found.interval(CONFIDENCE), seeds)


def _block_ranks(values: Values) -> Values:
    """Ranks [seeds, labels] of values [seeds, labels]."""
    below = (values[:, :, None] > values[:, None, :]).sum(axis=2)
    equal = (values[:, :, None] == values[:, None, :]).sum(axis=2)
    ranks: Values = below + (equal + 1) / 2
    return ranks
