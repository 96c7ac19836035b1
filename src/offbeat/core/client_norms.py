"""Recent norms of one part of the updates, with one vote for each client.

The usual norm is a median over clients, not over updates: however often a client comes, it has one vote. The
vote of a client is the median of its last `OF_A_CLIENT` accepted norms. Votes are those of the last `RECENT`
clients.

1. *Warm-up.* The quorum is all clients of a run, at most `QUORUM`. It tolerates f = (quorum − 1) / 2 clients
   that lie. Before it is there, the f + 1 largest votes have at least one honest client among them, so the
   smallest of these is no larger than an honest vote: it may raise the limit above `first`, and no f clients
   can. A run of two clients has no majority and stays in the warm-up.
2. *From the quorum on* the limit is factor · max(median, peak / `DECLINE`). The peak is the largest median so
   far: in a run that has converged for most of its clients, the others still make updates of ordinary size.
3. *The warm-up is judged twice.* Once the quorum is there, each of its norms is held against the median over
   the clients of their largest ones. Honest clients that trained from a poisoned model make updates that are
   large themselves, and hide the poison then. So once there are `LATER` norms for each client of the quorum,
   the norms so far are held against the votes, which are of ordinary size again; and against the first
   measure, times `OF_EARLY`, since the first updates of an honest training are larger than later ones.
4. *Refused norms* are no votes. Where the latest norms of more than half of the clients were refused, the
   updates have grown for most of them, as when a learning rate rises: then these norms become their votes.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, Self

from offbeat.core.events import ClientId, TaskId, Version

RECENT, OF_A_CLIENT, QUORUM, DECLINE = 100, 5, 10, 10.0
LATER, OF_EARLY = 5, 3.0
LOOKS = 2
"""How often the norms of the warm-up are judged."""
# Most norms that are remembered of the warm-up.
_REMEMBERED = 1000


class ClientNorms:
    """The recent norms of one part of the updates.

    Args:
        clients: Number of clients of the run.

    Attributes:
        early: The accepted norms by task that are to be judged again, each with its client; the largest ones
            where there are more than 1,000. Empty once they have been judged twice.
    """

    def __init__(self, clients: int) -> None:
        self._clients = min(clients, RECENT)
        self._quorum = max(min(self._clients, QUORUM), 3 if clients == 2 else 1)
        # The client that was heard last comes last.
        self._accepted: dict[ClientId, deque[tuple[Version, float]]] = {}
        self._votes: dict[ClientId, float] = {}
        # The votes in the order of their norms.
        self._sorted: list[float] = []
        # The latest norm of each client whose latest update was refused.
        self._refused: dict[ClientId, float] = {}
        # Versions and norms, of which both rise.
        self._peaks: list[tuple[Version, float]] = []
        self.early: dict[TaskId, tuple[ClientId, float]] = {}
        # How many norms of updates were accepted, while they are to be judged again, and how often they were.
        self._heard, self._looks = 0, 0

    @property
    def settled(self) -> bool:
        """Whether the warm-up is over."""
        return bool(self._peaks)

    @property
    def look_due(self) -> bool:
        """Whether the norms so far are to be judged again now."""
        if self._looks == 0:
            return self.settled
        return not self.judged and self._heard >= LATER * self._quorum

    @property
    def judged(self) -> bool:
        """Whether the norms of the warm-up have been judged for the last time."""
        return self._looks == LOOKS

    @property
    def tolerated(self) -> int:
        """Number of clients that may lie without leading the limit."""
        return (self._quorum - 1) // 2

    def limit(self, factor: float, first: float) -> float:
        """The largest norm that is not absurd.

        Args:
            factor: Times the usual norm that a norm may be.
            first: The limit before anything is known.
        """
        heard = len(self._sorted)
        if heard >= self._quorum:
            peak = self._peaks[-1][1] if self._peaks else 0.0
            return factor * max(self._sorted[heard // 2], peak / DECLINE)
        # Where there were votes, their clients have left, or a rollback has withdrawn them.
        if self._peaks:
            return factor * self._peaks[-1][1]
        if heard <= self.tolerated:
            return first
        return max(first, factor * self._sorted[-1 - self.tolerated])

    def accept(self, client: ClientId, version: Version, norm: float, task: TaskId | None = None) -> None:
        """Count a norm that is not absurd.

        Args:
            client: The client.
            version: The current version.
            norm: The norm.
            task: The task, of an update that may have to be judged again.
        """
        if task is not None and not self.judged:
            self._heard += 1
            self.early[task] = client, norm
            if len(self.early) > 2 * _REMEMBERED:
                largest = sorted(self.early.items(), key=lambda entry: entry[1][1])[_REMEMBERED:]
                self.early = dict(largest)
        self._refused.pop(client, None)
        norms = self._accepted.pop(client, None) or deque(maxlen=OF_A_CLIENT)
        norms.append((version, norm))
        self._accepted[client] = norms
        self._vote(client)
        if len(self._accepted) > RECENT:
            self._forget(next(iter(self._accepted)))
        heard = len(self._sorted)
        if heard >= self._quorum:
            median = self._sorted[heard // 2]
            if not self._peaks or median > self._peaks[-1][1]:
                self._peaks.append((version, median))

    def refuse(self, client: ClientId, version: Version, norm: float) -> bool:
        """Count a norm that is absurd, though finite.

        Returns:
            Whether the latest norms of more than half of the clients were refused, which are their votes now.
        """
        self._refused.pop(client, None)
        self._refused[client] = norm
        if len(self._refused) > RECENT:
            del self._refused[next(iter(self._refused))]
        known = len(self._accepted.keys() | self._refused.keys())
        if len(self._refused) <= max(self._clients, min(known, RECENT)) / 2:
            return False
        grown, self._refused = self._refused, {}
        for own, size in grown.items():
            self._accepted.pop(own, None)
            self.accept(own, version, size)
        return True

    def judge_early(self, factor: float, always: float = 0.0) -> Collection[TaskId]:
        """Judge the norms of the warm-up again, and forget the absurd ones.

        Args:
            factor: Times the usual norm that a norm may be.
            always: The norm that is never absurd.

        Returns:
            The tasks whose norms were absurd.
        """
        largest: dict[ClientId, float] = {}
        for client, norm in self.early.values():
            largest[client] = max(norm, largest.get(client, 0.0))
        usual = sorted(largest.values())[len(largest) // 2] if largest else 0.0
        limit = factor * usual
        if self._looks == 1:
            usual = self._sorted[len(self._sorted) // 2] if self._sorted else usual
            limit = max(factor * usual, OF_EARLY * limit / factor)
        most = max(limit, always)
        absurd = [task for task, (_, norm) in self.early.items() if norm > most]
        self._looks += 1
        if self.judged:
            self.early = {}
        for task in absurd:
            self.early.pop(task, None)
        if absurd:
            self._keep(lambda entry: entry[1] <= most)
            if self._sorted:
                self._peaks = [(self._peaks[0][0], min(self._peaks[-1][1], usual))]
        return absurd

    def forgive(self) -> None:
        """Forget the refusals: the model was at fault."""
        self._refused.clear()

    def roll_back(self, to: Version) -> None:
        """Forget the norms since a version: they are those of updates of a model that is withdrawn."""
        self.forgive()
        self._keep(lambda entry: entry[0] <= to)
        self._peaks = [peak for peak in self._peaks if peak[0] <= to]
        self.early = {}

    def save(self) -> dict[str, Any]:
        """The state as plain data, as `read` takes it."""
        return {
            "accepted": [[client, list(map(list, norms))] for client, norms in self._accepted.items()],
            "refused": list(map(list, self._refused.items())),
            "peaks": list(map(list, self._peaks)),
            "early": [[task, client, norm] for task, (client, norm) in self.early.items()],
            "heard": self._heard,
            "looks": self._looks,
        }

    @classmethod
    def read(cls, clients: int, state: dict[str, Any]) -> Self:
        """Make it from a state."""
        norms = cls(clients)
        for client, entries in state["accepted"]:
            norms._accepted[client] = deque(((v, n) for v, n in entries), maxlen=OF_A_CLIENT)
            norms._vote(client)
        norms._refused = dict(state["refused"])
        norms._peaks = [(version, norm) for version, norm in state["peaks"]]
        norms.early = {task: (client, norm) for task, client, norm in state["early"]}
        norms._heard, norms._looks = state["heard"], state["looks"]
        return norms

    def _vote(self, client: ClientId) -> None:
        if (before := self._votes.pop(client, None)) is not None:
            del self._sorted[bisect_left(self._sorted, before)]
        self._votes[client] = vote = _median([norm for _, norm in self._accepted[client]])
        insort(self._sorted, vote)

    def _forget(self, client: ClientId) -> None:
        del self._accepted[client]
        del self._sorted[bisect_left(self._sorted, self._votes.pop(client))]

    def _keep(self, kept: Callable[[tuple[Version, float]], bool]) -> None:
        """Forget the norms that are not to be kept."""
        for client, norms in list(self._accepted.items()):
            left = deque((entry for entry in norms if kept(entry)), maxlen=OF_A_CLIENT)
            if left:
                self._accepted[client] = left
                self._vote(client)
            else:
                self._forget(client)


def _median(norms: Iterable[float]) -> float:
    """The median, the upper one of two."""
    ordered = sorted(norms)
    return ordered[len(ordered) // 2]
