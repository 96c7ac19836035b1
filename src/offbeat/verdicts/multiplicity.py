"""Several looks at the seeds of a claim, and several claims: the level of each test."""

from collections.abc import Mapping, Sequence

import numpy as np

LEVEL = 0.05
"""Level of a claim over all looks, and of false discoveries among claims."""
LOOKS: Mapping[int, float] = {3: 0.02, 5: 0.01, 8: 0.01, 10: 0.01}
"""Level of the look at each number of seeds. The sum is `LEVEL`, and holds however the looks depend."""


def looks(planned: int) -> dict[int, float]:
    """The looks at a study, with the level of each.

    The first look is at the number of seeds that the study's recipe plans. It also has the levels of the
    looks before this number.

    Args:
        planned: Number of seeds of the recipe. If it is below the first of `LOOKS`, that look is the first.
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
