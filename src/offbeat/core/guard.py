"""Guard of the global model: refuses an update whose size is absurd beside ordinary ones.

One finite update of 10³⁰ times the usual size ends a run: whatever it is averaged with is lost. So each
update's norms are held against the usual ones: those of its parameters, of its floating buffers, and of its
change of the shared vector. With n = ‖Δ‖ / √steps, an update is refused if an n is not finite or above a
limit, which `core.client_norms` makes from the initial model and from the norms of accepted updates, one vote
for each client. Nothing of the current model enters it, which attackers may have moved. An n of 0 says
nothing.

The rules, in order:

1. While fewer clients than the quorum have delivered, n may be at most `FIRST` · (1 + ‖w₀‖), and
   `FIRST_OTHER` in its place for buffers and the shared vector, whose size says little about the model's; or
   `factor` times what an honest client has delivered, if that is more.
2. When the quorum is there, the updates of the warm-up are judged again by its median, and once more when it
   has delivered five times over. Held ones that turn out to be absurd are left out of their aggregations, and
   the one that has just arrived is refused. If absurd ones have made versions, `poisoned` says so, and the
   driver goes back to the last good version, or to the initial model.
3. From then on n may be at most `factor` times the usual one, and `OF_BUFFERS` times as much for buffers:
   statistics of unequal clients differ more than their gradients do.
4. An n of the parameters of at most `OF_INITIAL` · (1 + ‖w₀‖) is never absurd: it goes no farther than
   training from the initial model may, and the usual norm says little where most clients have nothing left to
   learn.

A new version is checked too: its values, and what its aggregation has changed in the memories of the parts,
must be finite. Parameters need not be looked at while the norms of the initial model and of all steps
together are far from the largest number. The norm of its step, before the server steps and after, may be at
most `OF_STEPS` times as much as an update's: sums, momentum and a rule of one's own may take bounded updates
far. The norm divided by the number of updates may be that instead: where updates are summed, as FedCompass
does, a group of a hundred honestly goes a hundred times as far as one. A step always passes that is no longer
than the ways of its updates together, since these have been checked: where clients have very unequal numbers
of samples, most steps may be a thousandth of the largest. So does one of at most `OF_MODEL` times the model's
own norm: FedAT's slow tiers go as far at once as the model has gone since they last did. Each client of an
accepted step has a vote; refused steps have none. If a step is refused, the aggregation is skipped, and the
version has the content of the one before.

The guard bounds one update. Attackers who stay below that bound are a matter of robust aggregation, and of
the rollback of deployed runs.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf, isfinite, sqrt
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor
from torch.linalg import vector_norm

from offbeat.core.aggregator import Update
from offbeat.core.client_norms import QUORUM, ClientNorms
from offbeat.core.events import ClientId, TaskId, Version
from offbeat.core.layout import Layout
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model
from offbeat.core.reads import read_numbers
from offbeat.core.types import NUMBER
from offbeat.core.validation import checked_dataclass

FIRST, FIRST_OTHER, OF_INITIAL = 100.0, 10_000.0, 1.5
OF_STEPS, OF_BUFFERS, OF_MODEL = 3.0, 30.0, 2.0
# Far below the largest float32, so that no rounding of norms matters.
_SAFE = 1e30
# Number of refusals in a row that the guard remembers.
_REMEMBERED = 1000


@checked_dataclass
class Guard:
    """Options of the guard.

    Attributes:
        factor: Largest ratio of an update's norm to the usual norm, at least 2. We have seen honest updates
            of very unequal clients with up to 18 times the usual norm, above the norm that rule 4 always
            accepts.
    """

    factor: Annotated[float, Field(ge=2, allow_inf_nan=False), NUMBER] = 30.0


class RefusalStreak:
    """The clients of the updates that were refused since the last one that was not.

    Args:
        clients: Number of clients of the run.
    """

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self.refused: list[ClientId] = []

    def add(self, client: ClientId) -> None:
        """Count one."""
        self.refused.append(client)
        del self.refused[:-_REMEMBERED]

    @property
    def diverged(self) -> str | None:
        """Why the updates of most clients are refused one after another; None means that they are not.

        Ten updates and two for each client, or 200, of more than half of the clients, or of 100: however
        often a few clients come, they alone do not make a run diverge.
        """
        count, clients = len(self.refused), len(set(self.refused))
        if count < min(max(10, 2 * self._clients), 200) or clients < min(self._clients // 2 + 1, 100):
            return None
        return f"the last {count} updates were refused for their size: the training has diverged"


class UpdateGuard:
    """The guard of one run.

    Args:
        options: Its options.
        clients: Number of clients of the run.
        initial: The initial model.

    Attributes:
        options, clients: As given.
        poisoned: Why versions that were published must be withdrawn; None means that they need not be.
    """

    def __init__(self, options: Guard, clients: int, initial: Model) -> None:
        self.options, self.clients = options, clients
        self.poisoned: str | None = None
        self._size = 1 + float(initial.values.norm())
        # No parameter of any version is larger. NaN or infinite where that is not known.
        self._largest = self._size
        self._norms: dict[str, ClientNorms] = {}
        self._streak = RefusalStreak(clients)
        self._condemned: set[TaskId] = set()

    def save(self) -> dict[str, Any]:
        """The state, as `restore` takes it."""
        norms = {part: norms.save() for part, norms in self._norms.items()}
        return {"norms": norms, "refused": list(self._streak.refused)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._largest = inf
        self._streak.refused = list(state["refused"])
        self._norms = {part: ClientNorms.read(self.clients, own) for part, own in state["norms"].items()}

    @property
    def diverged(self) -> str | None:
        """Why the updates of most clients are refused one after another; None means that they are not."""
        return self._streak.diverged

    @property
    def settled(self) -> bool:
        """Whether the updates of the warm-up have been judged for the last time."""
        return bool(self._norms) and self._of("parameters").judged

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
        """Check an update that has arrived, and count its norms.

        Args:
            client: The client.
            steps: Local steps that it has done.
            result: Its update.
            model: The current version.
            version: Its number.
            task: The task.
            held: The tasks whose updates are held, and in no version yet.

        Returns:
            Why the update is refused; None means that it is not.
        """
        found = norms_of(result, model.layout) if result.norms is None else result.norms
        norms = {part: norm / sqrt(steps) for part, norm in found.items()}
        absurd = {part: why for part, n in norms.items() if n and (why := self._absurd(part, n)) is not None}
        for part in [part for part in absurd if isfinite(norms[part])]:
            if self._of(part).refuse(client, version, norms[part]):
                # A part as large as those of most clients is not absurd.
                del absurd[part]
        if absurd:
            self.count_refused(client)
            return next(iter(absurd.values()))
        for part, norm in norms.items():
            if norm:
                self._of(part).accept(client, version, norm, task)
                absurd |= self._judge_early(part, task, held)
        if absurd:
            # The update that completes the quorum may itself be what only the quorum's median condemns.
            self.count_refused(client)
            return next(iter(absurd.values()))
        self._streak.refused.clear()
        return None

    def _judge_early(self, part: str, last: TaskId, held: Collection[TaskId]) -> dict[str, str]:
        """Judge the updates of the warm-up again, once it is over.

        Args:
            part: The part of the updates.
            last: The task whose update has arrived now, and is not held yet.
            held: The tasks whose updates are held, and in no version yet.

        Returns:
            Why the last update is absurd, by part; empty if it is not.
        """
        norms = self._of(part)
        if not norms.look_due:
            return {}
        absurd = norms.judge_early(self._factor(part), self._always(part))
        left_out = [task for task in absurd if task == last or task in held]
        self._condemned.update(task for task in left_out if task != last)
        # An update that is left out for one part makes no version, however large its other parts are.
        for other in self._norms.values():
            for task in left_out:
                other.early.pop(task, None)
        if used := [task for task in absurd if task not in left_out]:
            self.poisoned = (
                f"the norm of the {part} of {len(used)} updates that it is made of is more than "
                f"{self._factor(part):g} times that of most clients, which had not delivered then"
            )
        if last not in absurd:
            return {}
        return {part: f"the norm of its {part} is more than {self._factor(part):g} times the usual one"}

    def take_condemned(self) -> Collection[TaskId]:
        """Held updates that have turned out to be absurd since the last call."""
        condemned, self._condemned = self._condemned, set()
        return condemned

    def check_step(
        self, step: Tensor, model: Model, version: Version, updates: Sequence[Update], name: str = "step"
    ) -> str | None:
        """Check the step to a new version, and count its norm if it may be published.

        Args:
            step: The step over the flat values, float32 [values].
            model: The current version.
            version: The new one.
            updates: The updates that it is made of.
            name: What it is.

        Returns:
            Why the version must not be published; None means that it may be.
        """
        norm = float(vector_norm(_parameters(step, model.layout)))
        if norm == 0.0:
            return None
        own = {name: norm, f"{name} per update": norm / len(updates)}
        absurd = [why for part, n in own.items() if (why := self._absurd(part, n, OF_STEPS)) is not None]
        if len(absurd) == len(own) and not (isfinite(norm) and norm <= _reach(model, updates)):
            return absurd[0]
        for client in list(dict.fromkeys(u.task.client for u in updates))[:QUORUM]:
            for part, n in own.items():
                self._of(part).accept(client, version, n)
        self._largest += norm
        return None

    def check_version(self, model: Model) -> str | None:
        """Check the values of a new version whose step may be published.

        Args:
            model: The version.

        Returns:
            Why it must not be published; None means that it may be.
        """
        layout, unknown = model.layout, not self._largest <= _SAFE
        looked_at = [model.shared] if layout.shared else []
        if unknown:
            looked_at.append(model.values)
        elif layout.values > layout.parameters:
            looked_at.append(model.values[layout.parameters :])
        if not all_finite(looked_at):
            return NOT_FINITE
        if unknown:
            self._largest = float(_parameters(model.values, layout).norm())
        return None

    def roll_back(self, to: Version) -> None:
        """Forget the norms since an earlier version, whose content the model has again."""
        self._streak.refused.clear()
        if self.poisoned is None:
            for norms in self._norms.values():
                norms.roll_back(to)
        else:
            # The norms of the warm-up were judged again; those of steps are not known to be good.
            self._norms = {part: norms for part, norms in self._norms.items() if part in PARTS}
            for norms in self._norms.values():
                norms.early = {}
        for norms in self._norms.values():
            norms.forgive()
        self.poisoned = None

    def count_refused(self, client: ClientId) -> None:
        """Count an update that is refused; by this call alone if its norms are not known."""
        self._streak.add(client)

    def _absurd(self, part: str, norm: float, times_factor: float = 1.0) -> str | None:
        """Why a norm is absurd; None means that it is not."""
        if not isfinite(norm):
            return f"the norm of its {part} is not finite"
        if norm <= self._always(part):
            return None
        factor, norms = times_factor * self._factor(part), self._of(part)
        limit = norms.limit(factor, (FIRST_OTHER if part in PARTS[1:] else FIRST) * self._size)
        if norm <= limit:
            return None
        if norms.settled:
            times = norm / (limit / factor)
            return f"the norm of its {part} is {times:.3g} times the usual one, more than {factor:g}"
        given = f"the norm of its {part}, {norm:.3g}, is above {limit:.3g}"
        return f"{given}, the most before most clients have delivered"

    def _factor(self, part: str) -> float:
        return self.options.factor * (OF_BUFFERS if part == "buffers" else 1.0)

    def _always(self, part: str) -> float:
        """The norm that is never absurd."""
        return OF_INITIAL * self._size if part == PARTS[0] else 0.0

    def _of(self, part: str) -> ClientNorms:
        if part not in self._norms:
            self._norms[part] = ClientNorms(self.clients)
        return self._norms[part]


PARTS = ("parameters", "buffers", "shared vector")
"""Names of the parts of an update."""
NOT_FINITE = "its values are not finite"
"""Why a version with such values is not published."""


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all values of tensors are finite; they are if their sum is, which may overflow otherwise."""
    wanted = [tensor for tensor in tensors if tensor.numel()]
    sums = read_numbers([t.sum() for t in wanted])
    return all(isfinite(n) or bool(t.isfinite().all()) for n, t in zip(sums, wanted, strict=True))


def _reach(model: Model, updates: Sequence[Update]) -> float:
    """How far a step goes that is no longer than the model, or than the ways of its updates together.

    The way of an update leads from the current version to where its task ended.
    """
    d = model.layout.parameters
    ways = [_length(u, d) + (u.base.values[:d] - model.values[:d]).norm() for u in updates]
    own, *read = read_numbers([model.values[:d].norm(), *ways])
    return max(OF_MODEL * own, sum(read))


def _length(update: Update, parameters: int) -> Tensor:
    """The norm of an update's parameters; the step may have been written over it if its norms are known."""
    known = update.norms
    return update.delta[:parameters].norm() if known is None else update.delta.new_tensor(known[PARTS[0]])


def _parameters(vector: Tensor, layout: Layout) -> Tensor:
    """The parameters in a vector of values, without the time that a view takes where these are all."""
    return vector if layout.parameters == layout.values else vector[: layout.parameters]


def norms_of(result: LocalResult, layout: Layout) -> dict[str, float]:
    """The norms of an update's parts, by name, which are held against the usual ones.

    They are finite only if all values are; those of finite values may overflow.
    """
    parts = {PARTS[0]: _parameters(result.delta, layout)}
    if layout.values > layout.parameters:
        parts[PARTS[1]] = result.delta[layout.parameters :]
    if result.shared is not None:
        parts[PARTS[2]] = result.shared
    return dict(zip(parts, read_numbers([vector_norm(own) for own in parts.values()]), strict=True))
