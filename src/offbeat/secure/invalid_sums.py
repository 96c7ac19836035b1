"""Sums that cannot be those of clipped updates, and the sites that are in most of them."""

from collections import deque
from collections.abc import Iterable, Sequence
from math import sqrt

import numpy as np

from offbeat.core.events import ClientId
from offbeat.core.sums import Integers, SumGrid
from offbeat.secure.refusals import SecureRefusal

_KEPT, _FEWEST, _SHARE = 10, 3, 0.9


def invalid_sum(
    grid: SumGrid, release: int, weights: Sequence[int], total: Integers, sigma: float = 0.0
) -> str | None:
    """Why a sum cannot be right; None if it can.

    Args:
        grid: The grid of the run.
        release: Number of the release.
        weights: c̃ of its updates.
        total: S; where there is noise, with it: a check of the sum itself would tell of it.
        sigma: Standard deviation of the noise, at most, in grid steps.
    """
    values = total.astype(np.float64)
    norm, bound = sqrt(float(values @ values)), grid.bound_of_sum(weights, sigma)
    if norm <= bound:
        return None
    return SecureRefusal.INVALID_SUM.format(release=release, norm=norm, updates=len(weights), bound=bound)


class InvalidSums:
    """Which clients were in releases whose sums were invalid."""

    def __init__(self) -> None:
        self._last: dict[ClientId, deque[bool]] = {}

    def note(self, clients: Iterable[ClientId], valid: bool) -> list[ClientId]:
        """Note a release.

        Args:
            clients: The clients of its updates.
            valid: Whether its sum was valid.

        Returns:
            Those of them that were in 3 invalid releases or more, and these are 90 % of their last 10. Who
            spoils a sum cannot be told where all take part in all.
        """
        suspects = []
        for client in clients:
            last = self._last.setdefault(client, deque(maxlen=_KEPT))
            last.append(not valid)
            if sum(last) >= max(_FEWEST, _SHARE * len(last)):
                suspects.append(client)
        return suspects
