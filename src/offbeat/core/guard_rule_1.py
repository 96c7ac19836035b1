"""The guard's first rule, which runs recorded without the number of a rule go on with.

One finite update of 10³⁰ times the usual size ends a run: whatever it is averaged with is lost. So each
update's norms are held against the recent ones: those of its parameters, of its floating buffers, and
of its change of the shared vector. With n = ‖Δ‖ / √steps, an update is refused if an n is not finite or above
factor · m, where m is the median of the recent n.

The recent n are the last `RECENT`, at most `OF_A_CLIENT` of one client, so that no client alone determines
the median. Those of refused updates are among them: where the updates of most clients have become larger, as
when the learning rate rises, the larger ones are soon the usual ones. Before there are `ENOUGH`, from three
clients or from all, n may be at most `FIRST` · (1 + ‖w‖) instead. An n of 0 says nothing and is left out.

A new version is checked too: its values, and what its aggregation has changed in the memories of the parts,
must be finite, and the norm of its step, before the server steps and after, at most `OF_STEPS` · factor times
the median of the last `RECENT`: sums, momentum and a rule of one's own may take bounded updates far. The norm
divided by the number of updates may be that instead: where updates are summed, as FedCompass does, a group of
a hundred honestly goes a hundred times as far as one. And a step of at most `OF_MODEL` times the model's own
norm always passes: FedAT's slow tiers go as far at once as the model has gone since they last did. Else the
aggregation is skipped, and the version has the content of the one before.

The guard bounds one update. Attackers who stay below that bound are a matter of robust aggregation.
"""

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from math import isfinite, sqrt

from torch import Tensor

from offbeat.core.aggregator import Update
from offbeat.core.events import ClientId, TaskId, Version
from offbeat.core.guard import (
    FIRST,
    NOT_FINITE,
    OF_MODEL,
    OF_STEPS,
    Guard,
    RefusalStreak,
    all_finite,
    norms_of,
)
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model

GuardState = tuple[Mapping[str, Sequence[tuple[ClientId, float]]], Sequence[ClientId]]
"""The recent norms of each part of the updates, and the clients of those refused one after another."""

RECENT, OF_A_CLIENT, ENOUGH = 100, 5, 5


class RecentNorms:
    """The recent norms of one part of the updates; `entries` are the clients and their norms in order."""

    def __init__(self, entries: Sequence[tuple[ClientId, float]] = ()) -> None:
        self.entries: deque[tuple[ClientId, float]] = deque()
        self._sorted: list[float] = []
        self._count: Counter[ClientId] = Counter()
        for client, norm in entries:
            self.add(client, norm)

    def add(self, client: ClientId, norm: float) -> None:
        """Add a norm; the oldest goes, of this client where it has as many as one may have."""
        if self._count[client] == OF_A_CLIENT:
            self._remove(next(entry for entry in self.entries if entry[0] == client))
        elif len(self.entries) == RECENT:
            self._remove(self.entries[0])
        self.entries.append((client, norm))
        insort(self._sorted, norm)
        self._count[client] += 1

    def _remove(self, entry: tuple[ClientId, float]) -> None:
        self.entries.remove(entry)
        del self._sorted[bisect_left(self._sorted, entry[1])]
        self._count[entry[0]] -= 1
        if not self._count[entry[0]]:
            del self._count[entry[0]]

    def median(self, clients: int) -> float | None:
        """The median, the upper one of two; None while there are too few norms, of a run of `clients`."""
        if len(self._sorted) < ENOUGH or len(self._count) < min(3, clients):
            return None
        return self._sorted[len(self._sorted) // 2]


class UpdateGuardRule1:
    """The guard of one run by the first rule; methods are as those of `offbeat.core.guard.UpdateGuard`.

    Args:
        options: Its options.
        clients: Number of clients of the run.
    """

    poisoned: str | None = None
    settled = True

    def __init__(self, options: Guard, clients: int) -> None:
        self._options, self._clients = options, clients
        self._recent: dict[str, RecentNorms] = {}
        self._streak = RefusalStreak(clients)

    def save(self) -> GuardState:
        """The state, as `restore` takes it."""
        norms = {part: list(norms.entries) for part, norms in self._recent.items()}
        return norms, list(self._streak.refused)

    def restore(self, state: GuardState) -> None:
        """Go on from a state."""
        recent, refused = state
        self._streak.refused = list(refused)
        self._recent = {part: RecentNorms(entries) for part, entries in recent.items()}

    @property
    def diverged(self) -> str | None:
        """Why the updates of most clients are refused one after another; None means that they are not."""
        return self._streak.diverged

    def check(
        self,
        client: ClientId,
        steps: int,
        result: LocalResult,
        model: Model,
        version: Version = 0,
        task: TaskId = -1,
        held: Collection[TaskId] = (),
    ) -> str | None:
        """Check an update that has arrived, and count its norms among the recent ones."""
        refused = None
        for part, found in norms_of(result, model.layout).items():
            norm = found / sqrt(steps)
            if norm != 0.0:
                refused = self._check_norm(part, client, norm, model) or refused
        if refused:
            self.count_refused(client)
        else:
            self._streak.refused.clear()
        return refused

    def take_condemned(self) -> Collection[TaskId]:
        """Under this rule no update is judged a second time."""
        return ()

    def check_step(
        self, step: Tensor, model: Model, version: Version, updates: Sequence[Update], name: str = "step"
    ) -> str | None:
        """Check the step to a new version, and count its norm among the recent ones of this name."""
        norm = float(step[: model.layout.parameters].norm())
        if norm == 0.0:
            return None
        whole = self._check_norm(name, version, norm, model, OF_STEPS)
        share = self._check_norm(f"{name} per update", version, norm / len(updates), model, OF_STEPS)
        if isfinite(norm) and norm <= OF_MODEL * float(model.values[: model.layout.parameters].norm()):
            return None
        return share and whole

    def check_version(self, model: Model) -> str | None:
        """Check that all values of a new version are finite."""
        return None if all_finite((model.values, model.shared)) else NOT_FINITE

    def roll_back(self, to: Version) -> None:
        """Count none of the updates that were refused: the model was at fault."""
        self._streak.refused.clear()

    def count_refused(self, client: ClientId) -> None:
        """Count an update that is refused; by this call alone if its norms are not known."""
        self._streak.add(client)

    def _check_norm(
        self, part: str, client: ClientId, norm: float, model: Model, times_factor: float = 1.0
    ) -> str | None:
        if not isfinite(norm):
            return f"the norm of its {part} is not finite"
        recent = self._recent.setdefault(part, RecentNorms())
        usual = recent.median(self._clients)
        recent.add(client, norm)
        factor = times_factor * self._options.factor
        if usual is not None and norm > factor * usual:
            times = f"{norm / usual:.3g} times the median of the recent ones"
            return f"the norm of its {part} is {times}, more than {factor:g}"
        if usual is None and norm > FIRST and norm > FIRST * (1 + float(model.values.norm())):
            return f"the norm of its {part}, {norm:.3g}, is more than {FIRST:g} times that of the model"
        return None
