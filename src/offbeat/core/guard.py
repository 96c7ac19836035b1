"""Guard of the global model: an update whose size is absurd beside the recent ones is refused.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite, sqrt
from typing import Annotated

from pydantic import Field
from torch import Tensor

from offbeat.core.events import ClientId, Version
from offbeat.core.learner import LocalResult
from offbeat.core.model import Layout, Model
from offbeat.core.validation import checked_dataclass

GuardState = tuple[Mapping[str, Sequence[tuple[ClientId, float]]], Sequence[ClientId]]
"""The recent norms of each part of the updates, and the clients of those refused one after another."""

RECENT, OF_A_CLIENT, ENOUGH, FIRST, OF_STEPS, OF_MODEL = 100, 5, 5, 100.0, 3.0, 2.0
_REMEMBERED = 1000  # refusals one after another


@checked_dataclass
class Guard:
    """Options of the guard.

    Attributes:
        factor: Most times the median of the recent norms that an update's norm may be, at least 2. Of honest
            updates on very unequal clients, the largest that was seen is 14 times the median.
    """

    factor: Annotated[float, Field(ge=2, allow_inf_nan=False)] = 30.0


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


class UpdateGuard:
    """The guard of one run.

    Args:
        options: Its options.
        clients: Number of clients of the run.
    """

    def __init__(self, options: Guard, clients: int) -> None:
        self._options, self._clients = options, clients
        self._recent: dict[str, RecentNorms] = {}
        self._refused: list[ClientId] = []  # whose updates were, since the last one that was not

    def save(self) -> GuardState:
        """The state, as `restore` takes it."""
        return {part: list(norms.entries) for part, norms in self._recent.items()}, list(self._refused)

    def restore(self, state: GuardState) -> None:
        """Go on from a state."""
        recent, refused = state
        self._refused = list(refused)
        self._recent = {part: RecentNorms(entries) for part, entries in recent.items()}

    @property
    def diverged(self) -> str | None:
        """That the updates of most clients were refused one after another; None means that they were not.

        Ten updates and two for each client, or 200, of more than half of the clients, or of 100: however
        often a few clients come, they alone do not make a run diverge.
        """
        count, clients = len(self._refused), len(set(self._refused))
        if count < min(max(10, 2 * self._clients), 200) or clients < min(self._clients // 2 + 1, 100):
            return None
        return f"the last {count} updates were refused for their size: the training has diverged"

    def check(self, client: ClientId, steps: int, result: LocalResult, model: Model) -> str | None:
        """Check an update that has arrived, and count its norms among the recent ones.

        Args:
            client: The client.
            steps: Local steps that it has done.
            result: Its update.
            model: The current version.

        Returns:
            Why the update is refused; None means that it is not.
        """
        refused = None
        for part, tensor in parts_of(result, model.layout):
            norm = float(tensor.norm()) / sqrt(steps)
            if norm != 0.0:
                refused = self._check_norm(part, client, norm, model) or refused
        if refused:
            self.count_refused(client)
        else:
            self._refused.clear()
        return refused

    def check_step(
        self, step: Tensor, model: Model, version: Version, updates: int, name: str = "step"
    ) -> str | None:
        """Check the step to a new version, and count its norm among the recent ones of this name.

        Args:
            step: The step over the flat values, float32 [values].
            model: The current version.
            version: The new one.
            updates: Number of updates it is made of.
            name: What it is.

        Returns:
            Why the version must not be published; None means that it may be.
        """
        norm = float(step[: model.layout.parameters].norm())
        if norm == 0.0:
            return None
        whole = self._check_norm(name, version, norm, model, OF_STEPS)
        share = self._check_norm(f"{name} per update", version, norm / updates, model, OF_STEPS)
        if isfinite(norm) and norm <= OF_MODEL * float(model.values[: model.layout.parameters].norm()):
            return None
        return share and whole

    def forgive(self) -> None:
        """Count none of the updates that were refused: the model was at fault."""
        self._refused.clear()

    def count_refused(self, client: ClientId) -> None:
        """Count an update that is refused; by this call alone if its norms are not known."""
        self._refused.append(client)
        del self._refused[:-_REMEMBERED]

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


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all values of tensors are finite; they are if their sum is, which may overflow otherwise."""
    return all(isfinite(t.sum().item()) or bool(t.isfinite().all()) for t in tensors)


def parts_of(result: LocalResult, layout: Layout) -> Iterator[tuple[str, Tensor]]:
    """The parts of an update whose norms are held against the recent ones, by name."""
    yield "parameters", result.delta[: layout.parameters]
    if layout.values > layout.parameters:
        yield "buffers", result.delta[layout.parameters :]
    if result.shared is not None:
        yield "shared vector", result.shared
