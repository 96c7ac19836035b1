"""Sums that cannot be those of clipped updates, and the search for the site that spoils them.

What a site has masked can be checked in no other way than by the sum, and sums of fewer updates are not
allowed. So who spoils sums is told by releases that have different clients. One suspect at a time is put
aside, the client that was in most of the invalid releases, of these the one in fewest valid ones. If a
release without the suspect is invalid, another one is put aside in its place. If enough of them in a row are
valid, the suspect is sent away. When each client has been put aside by itself in vain, several spoil sums:
from then on suspects stay aside until releases are valid, and the last of them is sent away.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from math import ceil, log, sqrt

import numpy as np

from offbeat.core.events import ClientId
from offbeat.core.sums import Integers, SumGrid
from offbeat.secure.refusals import SecureRefusal

_FEWEST, _TRIALS, _DOUBT = 2, 3, 0.01


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


class SpoiledSums:
    """Finds the client that spoils sums.

    Args:
        fewest: Fewest clients of a release: no client is put aside where fewer would be left.

    Attributes:
        aside: The clients that are put aside, in the order in which they were.
        sent_away: The clients that are sent away for good.
    """

    def __init__(self, fewest: int) -> None:
        self._fewest = fewest
        self.aside: list[ClientId] = []
        self.sent_away: set[ClientId] = set()
        self._invalid: Counter[ClientId] = Counter()
        self._valid: Counter[ClientId] = Counter()
        self._cleared: Counter[ClientId] = Counter()
        self._before = Counter[bool]()  # releases before a suspect was put aside, by whether they were valid
        self._trials = 0

    def note(self, clients: Collection[ClientId], valid: bool, present: Collection[ClientId]) -> None:
        """Note a release whose sum was formed.

        Args:
            clients: The clients of its updates.
            valid: Whether its sum was valid.
            present: The clients that take part in the run, those that are put aside left out.
        """
        if set(clients) & set(self.aside):  # it was under way before: it tells nothing of the others
            return
        (self._valid if valid else self._invalid).update(clients)
        if not self.aside:
            self._before[valid] += 1
        if not valid:
            self._trials = 0
            self._suspect(clients, present)
        elif self.aside:
            self._trials += 1
            if self._trials >= self._enough:
                self._convict()

    @property
    def _enough(self) -> int:
        """Valid releases in a row that are no accident any more, for as often as sums were spoiled before."""
        share = self._before[False] / max(1, self._before.total())
        return _TRIALS if share >= 1 else max(_TRIALS, ceil(log(_DOUBT) / log(1 - share)))

    def _suspect(self, clients: Collection[ClientId], present: Collection[ClientId]) -> None:
        """A release without those who are aside is invalid: put another client aside."""
        candidates = [c for c in clients if self._invalid[c] >= _FEWEST]
        if not candidates:
            return
        together = min(self._cleared[c] for c in candidates) > 0
        back = 0 if together else len(self.aside)
        if not together:
            self._cleared.update(self.aside)
            self.aside.clear()
        if len(present) + back - 1 < self._fewest:
            self.bring_back()
            return
        self.aside.append(
            min(candidates, key=lambda c: (self._cleared[c], -self._invalid[c], self._valid[c], c))
        )

    def bring_back(self) -> None:
        """Put nobody aside: without these clients nothing could be released."""
        self._cleared.update(self.aside)
        self.aside.clear()
        self._trials = 0

    def _convict(self) -> None:
        self.sent_away.add(self.aside.pop())
        for own in (self._invalid, self._valid, self._cleared, self._before):
            own.clear()
        self.aside.clear()
        self._trials = 0
