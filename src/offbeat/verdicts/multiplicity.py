"""Several looks at the seeds of a claim, and several claims: the level that each is tested at."""

from collections.abc import Mapping, Sequence

import numpy as np

LEVEL = 0.05
"""Level of a claim over all looks, and of false discoveries among claims."""
LOOKS: Mapping[int, float] = {3: 0.02, 5: 0.01, 8: 0.01, 10: 0.01}
"""Level that is spent at each number of seeds: together `LEVEL`, which so holds however the looks depend."""


def looks(planned: int) -> dict[int, float]:
    """The looks that are taken of a study, and the level of each.

    The first look is at the number of seeds that the study's recipe plans; the level of looks that it passes
    over is spent there.

    Args:
        planned: Number of seeds of the recipe. With fewer than the first of `LOOKS` that one is the first.
    """
    first = max(planned, min(LOOKS))
    later = {seeds: level for seeds, level in LOOKS.items() if seeds > first}
    return {first: round(LEVEL - sum(later.values()), 10), **later}


def next_look(planned: int, seeds: int) -> int | None:
    """The number of seeds of the look after one; None after the last."""
    return min((look for look in looks(planned) if look > seeds), default=None)


def spent(level: float) -> float:
    """The factor of a look's p-value, so that the product is compared with `LEVEL`."""
    return LEVEL / level


def false_discovery(values: Sequence[float]) -> list[float]:
    """P-values adjusted by Benjamini and Hochberg: those up to `LEVEL` are discoveries."""
    if not values:
        return []
    p = np.asarray(values, dtype=float)
    order = np.argsort(-p, kind="stable")
    rank = np.arange(len(p), 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum.accumulate(np.minimum(1.0, p[order] * len(p) / rank))
    return [float(each) for each in adjusted]
