"""Sums that cannot be those of clipped updates, and the search for the clients that spoil them.

What a site has masked can be checked in no other way than by the sum, and sums of fewer updates are not
allowed. So who spoils sums is told by which clients are in invalid ones: in each there is one that spoils it.
An explanation is a set of clients that has a member in every invalid release; the smallest ones count. Some
of them are put aside at a time, half if there are enough other clients. An invalid release without a set's
clients refutes it. Only an explanation that is left alone, and without which releases are valid for long
enough, is sent away. So one client that spoils sums, and times that as it likes, cannot have another one sent
away: it is in every invalid release itself.

Where helpers do not vote, one of them may spoil the sums of the releases that a client is in. So nobody is
sent away there: a client that would be is aside instead, each time for twice as many valid releases.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from math import ceil, log, sqrt

import numpy as np

from offbeat.core.events import ClientId
from offbeat.core.privacy.sums import Integers, SumGrid
from offbeat.secure.refusals import SecureRefusal

Clients = frozenset[ClientId]
# A client is put aside after this number of invalid releases: a single one may be an accident.
_FEWEST = 2
# Number of invalid releases that are remembered.
_REMEMBERED = 32
# Most clients of an explanation, and most combinations that are searched for one.
_LARGEST, _WORK = 3, 4096
_TRIALS, _DOUBT = 3, 0.001
# The trial of a client that comes back and sums with it are invalid again is doubled this often, at most.
_DOUBLED = 8
# After this number of valid releases for each invalid one, no client is put aside for now.
_CALM = 10


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
    """Finds the clients that spoil sums.

    Args:
        fewest: Fewest clients of a release: no client is put aside where fewer would be left.

    Attributes:
        aside: The clients that are put aside, in order.
        sent_away: The clients that are sent away for good.
    """

    def __init__(self, fewest: int) -> None:
        self._fewest = fewest
        self.aside: list[ClientId] = []
        self.sent_away: set[ClientId] = set()
        self._invalid: list[Clients] = []
        self._explanations: list[Clients] = []
        # How often clients would have been sent away, if that were sure.
        self._suspected = Counter[Clients]()
        # How often releases without the clients of an explanation were valid.
        self._tried = Counter[Clients]()
        # Releases while no client was aside, by whether they were valid.
        self._before = Counter[bool]()
        # Valid releases in a row: since the last invalid one, and since the last change.
        self._valid = self._trials = 0

    def note(
        self, clients: Collection[ClientId], valid: bool, present: Collection[ClientId], *, sure: bool = True
    ) -> None:
        """Note a release whose sum was formed.

        Args:
            clients: The clients of its updates.
            valid: Whether its sum was valid.
            present: The clients that take part in the run, those that are put aside left out.
            sure: Whether nobody but a client can have spoiled the sum.
        """
        if not self.aside:
            self._before[valid] += 1
        if not valid:
            self._valid = self._trials = 0
            self._invalid = [*self._invalid, frozenset(clients)][-_REMEMBERED:]
            self._explain()
            self._put_aside(present)
            return
        self._valid += 1
        # A release with a client that is aside began before the change and does not count.
        self._trials += set(clients).isdisjoint(self.aside)
        if self.aside and self._trials >= self._enough:
            self._end_trial(sure=sure)
        if not self.aside:
            self._put_aside(present)

    def bring_back(self) -> None:
        """Bring back all clients that are aside: without them nothing could be released."""
        self.aside.clear()
        self._trials = 0

    @property
    def _enough(self) -> int:
        """Valid releases in a row that are no accident any more, for as often as sums were spoiled before."""
        share = self._before[False] / (self._before.total() + 1)
        least = max(_TRIALS, ceil(log(_DOUBT) / log(1 - share))) if share else _TRIALS
        return least << min(_DOUBLED, self._suspected[frozenset(self.aside)])

    def _explain(self) -> None:
        self._explanations = smallest_explanations(self._invalid)
        if not self._explanations:
            # Too many clients spoil sums, or another party does.
            self._forget(self._invalid[-1:])

    def _put_aside(self, present: Collection[ClientId]) -> None:
        """Begin the next trial, without clients whose explanations have had the fewest."""
        self.bring_back()
        alone = len(self._explanations) == 1
        calm = not alone and self._valid >= _CALM * len(self._invalid)
        # Clients that were suspected before are the first ones again.
        suspected = [own for own in self._explanations if self._suspected[own]]
        if len(self._invalid) < (1 if suspected else _FEWEST) or calm:
            return
        explanations = suspected or self._explanations
        room, half = len(set(present)) - self._fewest, max(1, len(explanations) // 2)
        chosen: set[ClientId] = set()
        for own in sorted(explanations, key=lambda own: (self._tried[own], sorted(own)))[:half]:
            if len((chosen | own) & set(present)) <= room:
                chosen |= own
        self.aside = sorted(chosen)

    def _end_trial(self, *, sure: bool) -> None:
        """End a trial in which the releases without the clients aside were valid."""
        covered = [own for own in self._explanations if own <= set(self.aside)]
        if len(covered) == 1 and (covered == self._explanations or self._suspected[covered[0]]):
            away = covered[0]
            if sure:
                self.sent_away |= away
            else:
                self._suspected[away] += 1
            self._forget([own for own in self._invalid if not own & away])
        self._tried.update(covered)
        self.bring_back()

    def _forget(self, remembered: list[Clients]) -> None:
        """Begin anew with these invalid releases."""
        self._invalid, self._explanations = remembered, smallest_explanations(remembered)
        self._tried.clear()
        self._before.clear()


def smallest_explanations(invalid: Sequence[Clients]) -> list[Clients]:
    """The smallest sets of clients that have a member in each of these releases; none if they are large."""
    for size in range(1, _LARGEST + 1):
        if not invalid or min(map(len, invalid)) ** (size - 1) > _WORK:
            return []
        if found := set(_explanations(invalid, size)):
            return sorted(found, key=sorted)
    return []


def _explanations(invalid: Sequence[Clients], size: int) -> Iterator[Clients]:
    if size == 1:
        yield from (frozenset([client]) for client in frozenset.intersection(*invalid))
        return
    for client in min(invalid, key=len):
        others = [own for own in invalid if client not in own]
        yield from (rest | {client} for rest in (_explanations(others, size - 1) if others else ()))
