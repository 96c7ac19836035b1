"""A world fitted to a run's journal: speeds, links and presence of its clients.

Seen from the server a task takes, with p seconds a local step, a latency L each way and a time T to carry a
model one way: Q p + 2 L + 2 T from dispatch to arrival; 2 L + T more than its steps until a request or a
`Ready`; L + T from an `Upload` to the arrival. Each is one linear equation in p, L and T. They are solved per
client by least squares, where what varies in the journal can tell the unknowns apart; what cannot be told
apart from a step's time counts as that. Both ways of a link are taken to be alike.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offbeat.core.errors import UsageError
from offbeat.core.journal import Row, expand
from offbeat.world.availability import Availability
from offbeat.world.network import Network
from offbeat.world.world import World

Speeds = Literal["jitter", "tasks"]
Floats = NDArray[np.float64]
# bit/s of a link that takes no time, where other links take some.
_FREE = 1e18
# Seconds per step of a client whose tasks took no time.
_LEAST = 1e-9
# With fewer equations, only p is estimated.
_ENOUGH = 8
# L or T is above 0 if it makes the journal e^5 times as likely. By chance, 1 of 500 fits has that.
_PENALTY = 10.0
# Which of L and T are above 0. Of equally good ones the first is taken.
_UNKNOWNS = ((), (1,), (2,), (1, 2))


@dataclass(frozen=True, slots=True)
class ClientFit:
    """The fit of one client.

    Attributes:
        client: The client's number.
        seconds_per_step: Seconds of a local step.
        jitter: Relative deviation of a task's speed.
        latency: Seconds of a message, one way.
        transfer: Seconds of a model's transfer, one way.
        dropout: Lost over ended tasks.
        arrived: Number of updates that have arrived.
        lost: Number of lost tasks.
        tasks: Seconds per step of its tasks in order, without the links.
        intervals: Intervals of presence (from, until) in seconds; until None means the end.
    """

    client: int
    seconds_per_step: float
    jitter: float
    latency: float
    transfer: float
    dropout: float
    arrived: int
    lost: int
    tasks: tuple[float, ...]
    intervals: tuple[tuple[float, float | None], ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted world, the fit of each client, and the assumptions that were needed, a sentence each."""

    world: World
    clients: tuple[ClientFit, ...]
    notes: tuple[str, ...]


class _Equation(NamedTuple):
    """`seconds` = steps · p + latency · L + transfer · T, for a part of a task."""

    steps: int
    latency: int
    transfer: int
    seconds: float
    task: int


@dataclass(slots=True)
class _History:
    """One client's part of a journal."""

    equations: list[_Equation] = field(default_factory=list)
    arrived: int = 0
    lost: int = 0
    intervals: list[tuple[float, float | None]] = field(default_factory=list)

    @property
    def timed(self) -> bool:
        """Whether it determines the client's speed."""
        return self.arrived > 0 and len(self.equations) > 0


@dataclass(slots=True)
class _FittedTask:
    """A task in training: the time, steps and messages from which its next equation counts."""

    client: int
    since: float
    done: int = 0
    latency: int = 1
    transfer: int = 1


def fit_world(
    rows: Iterable[Row], clients: int, *, model_bits: int | None = None, speeds: Speeds = "jitter"
) -> Fit:
    """Fit a world to a run's journal.

    Args:
        rows: The journal's rows in order.
        clients: Number of clients.
        model_bits: Size of a model in bits. None means that links cost latency only.
        speeds: "jitter" gives a client a mean speed and a normal deviation from it; "tasks" repeats the
            speeds of its recorded tasks in their order, and then their median.

    Raises:
        UsageError: No update has arrived, or each one's client was away during the task.
    """
    seen = _read(rows, clients)
    if not any(history.arrived for history in seen):
        raise UsageError("no update has arrived in this run: there is nothing to fit a world to")
    solved = {
        client: _solve(history.equations, model_bits is not None)
        for client, history in enumerate(seen)
        if history.timed
    }
    if not solved:
        raise UsageError(
            "all updates of this run are of clients that were away in between: their speeds are unknown"
        )
    middle = tuple(float(x) for x in np.median([unknowns for unknowns, *_ in solved.values()], axis=0))
    fits = []
    for client, history in enumerate(seen):
        unknowns, jitter, tasks = solved.get(client, (middle, 0.0, (middle[0],)))
        ended = history.arrived + history.lost
        dropout = history.lost / (ended if history.arrived else ended + 1) if ended else 0.0
        p, latency, transfer = unknowns
        fits.append(
            ClientFit(client, p, jitter, latency, transfer, dropout, history.arrived, history.lost, tasks,
                      tuple(history.intervals))
        )  # fmt: skip
    return Fit(_world(fits, model_bits, speeds), tuple(fits), tuple(_notes(fits, seen)))


# ---- reading ----


def _read(rows: Iterable[Row], clients: int) -> list[_History]:
    """Each client's equations, counts and presence; time starts at `begin`."""
    seen = [_History() for _ in range(clients)]
    tasks: dict[int, _FittedTask] = {}
    present: dict[int, float] = {}
    begun = 0.0
    for row in chain.from_iterable(map(expand, rows)):
        if row.name == "begin":
            begun, present = row.t, dict.fromkeys(present, 0.0)
        t = row.t - begun
        if row.client is None or not 0 <= row.client < clients:
            continue
        history = seen[row.client]
        if row.name == "joined":
            present.setdefault(row.client, t)
        elif row.name == "left":
            since = present.pop(row.client, t)
            if since < t:
                history.intervals.append((since, t))
            tasks = {task: open_ for task, open_ in tasks.items() if open_.client != row.client}
        elif row.task is not None:
            _follow(row, t, history, tasks)
    for client, since in present.items():
        seen[client].intervals.append((since, None))
    return seen


def _follow(row: Row, t: float, history: _History, tasks: dict[int, _FittedTask]) -> None:
    """Add a row about a task to its client's history."""
    assert row.client is not None
    assert row.task is not None
    if row.name == "train":
        tasks[row.task] = _FittedTask(row.client, t)
        return
    if row.name == "arrived":
        history.arrived += 1
    elif row.name == "lost":
        history.lost += 1
    task = tasks.get(row.task)
    if task is None:
        # The client was away since its task began, so the time does not determine its speed.
        return
    steps = (row.steps or 0) - task.done
    carries = row.name == "arrived"
    if row.name in ("wants_model", "ready", "arrived"):
        latency, transfer = task.latency + 1, task.transfer + carries
        history.equations.append(_Equation(steps, latency, transfer, t - task.since, row.task))
    match row.name:
        case "wants_model":
            # The answer is a short message, unless a model is sent.
            tasks[row.task] = _FittedTask(row.client, t, row.steps or 0, transfer=0)
        case "send":
            task.transfer = 1
        case "ready":
            task.done = row.steps or 0
        case "upload":
            tasks[row.task] = _FittedTask(row.client, t, task.done, latency=0, transfer=0)
        case "arrived" | "lost" | "discard":
            del tasks[row.task]


# ---- solving ----


def _solve(
    equations: list[_Equation], separable: bool
) -> tuple[tuple[float, float, float], float, tuple[float, ...]]:
    """(p, L, T), the relative deviation of p, and each task's own p."""
    table = np.array(equations, dtype=float).reshape(-1, 5)
    a, b = table[:, :3], table[:, 3]
    trained = a[:, 0] > 0
    scale = np.where(trained, a[:, 0], np.median(a[trained, 0]) if trained.any() else 1.0)
    # The deviation of a task's time grows with its steps.
    a, b = a / scale[:, None], b / scale
    best: tuple[float, Floats] | None = None
    for extra in _UNKNOWNS:
        if 2 in extra and not separable:
            continue
        unknowns = _least_squares(a, b, (0, *extra))
        if unknowns is None or (unknowns < 0).any() or (extra and unknowns[0] == 0):
            continue
        error = float(np.mean((a @ unknowns - b) ** 2)) + (1e-9 * float(np.mean(b))) ** 2
        score = len(b) * np.log(error) + _PENALTY * len(extra)
        if best is None or score < best[0] - 1e-9:
            best = score, unknowns
    # The equations always have a solution with p alone.
    assert best is not None
    p, latency, transfer = max(float(best[1][0]), _LEAST), float(best[1][1]), float(best[1][2])
    own = _by_task(table[trained, 4], table[trained, 0], b[trained] - a[trained, 1:] @ best[1][1:])
    free = max(1, len(own) - int(np.count_nonzero(best[1])))
    jitter = float(np.sqrt(np.sum((own - p) ** 2) / free)) / p
    return (p, latency, transfer), min(1.0, jitter), tuple(max(float(x), 0.05 * p) for x in own) or (p,)


def _by_task(tasks: Floats, steps: Floats, speeds: Floats) -> Floats:
    """Seconds per step of each task, the mean over its parts, in the order of the tasks."""
    _, places = np.unique(tasks, return_inverse=True)
    return np.bincount(places, weights=steps * speeds) / np.bincount(places, weights=steps)


def _least_squares(a: Floats, b: Floats, columns: tuple[int, ...]) -> Floats | None:
    """The unknowns of these columns, the others 0; None where the equations do not separate them."""
    chosen = a[:, columns]
    if len(columns) > 1 and (len(b) < _ENOUGH or np.linalg.matrix_rank(chosen) < len(columns)):
        return None
    unknowns = np.zeros(3)
    unknowns[list(columns)] = np.linalg.lstsq(chosen, b, rcond=None)[0]
    return unknowns


# ---- the world ----


def _world(fits: list[ClientFit], model_bits: int | None, speeds: Speeds) -> World:
    jitter = _listed(fit.jitter if fit.jitter > 1e-6 else 0.0 for fit in fits)
    bandwidth: list[float | None] | None = None
    if model_bits is not None and any(fit.transfer for fit in fits):
        bandwidth = [_short(model_bits / fit.transfer) if fit.transfer else _FREE for fit in fits]
    whole = all(fit.intervals == ((0.0, None),) for fit in fits)
    intervals = [[(_short(a), None if b is None else _short(b)) for a, b in fit.intervals] for fit in fits]
    network = Network(_listed(fit.latency for fit in fits), bandwidth, bandwidth)
    availability = Availability(_listed(fit.dropout for fit in fits), intervals=None if whole else intervals)
    if speeds == "tasks":
        listed = [[*map(_short, fit.tasks), _short(float(np.median(fit.tasks)))] for fit in fits]
        return World(listed, len(fits), network=network, availability=availability)
    means = [_short(fit.seconds_per_step) for fit in fits]
    return World(means, len(fits), jitter, network=network, availability=availability)


def _notes(fits: list[ClientFit], seen: list[_History]) -> Iterator[str]:
    for fit, history in zip(fits, seen, strict=True):
        if not fit.intervals:
            yield f"client {fit.client} was never present: it stays away"
        elif not fit.arrived:
            yield f"client {fit.client} sent no update: its speed and links are the other clients' median"
        elif not history.timed:
            yield (
                f"client {fit.client} was away during each task: its speed and links are the other "
                "clients' median"
            )
        elif len({e.steps for e in history.equations}) == 1:
            yield (
                f"client {fit.client} always did the same number of steps: the time of its link is counted "
                "as time of a step"
            )


def _listed(values: Iterable[float]) -> list[float] | float:
    """The values of all clients, rounded; 0 where all are."""
    rounded = [*map(_short, values)]
    return rounded if any(rounded) else 0.0


def _short(value: float) -> float:
    """Round to six digits: a fitted number has fewer significant ones."""
    return float(f"{value:.6g}")
