"""A world fitted to a run's journal: speeds, links and presence of its clients.

The row of an update says what its task's time went to (`core.events.Line`), where messages take any. A
client's time of a step is the mean over its tasks of the training time by the steps. Its latency and the
seconds of a model and of an update, without latency, are medians over its tasks: so an interrupted transfer
or a busy server changes little. Their sizes by these seconds are the bandwidths.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from statistics import median
from typing import Literal, NamedTuple

import numpy as np

from offbeat.core.errors import UsageError
from offbeat.core.journal import Row, expand, line_of
from offbeat.world.availability import Availability
from offbeat.world.network import Network
from offbeat.world.world import World

Speeds = Literal["jitter", "tasks"]
# bit/s of a link that takes no time, where other links take some.
_FREE = 1e18
# Seconds per step of a client whose tasks took no time.
_LEAST = 1e-9
# Share of a transfer's time below which it is rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class ClientFit:
    """The fit of one client.

    Attributes:
        client: The client's number.
        seconds_per_step: Seconds of a local step.
        jitter: Relative deviation of a task's speed.
        latency: Seconds of a message, one way.
        down: Bandwidth to the client in bits per second. None means that models take no time.
        up: Bandwidth from the client. None means that updates take no time.
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
    down: float | None
    up: float | None
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


class Sizes(NamedTuple):
    """Bits of a model as it is sent, and of an update."""

    model: float
    update: float


class _DoneTask(NamedTuple):
    """A task whose update has arrived: seconds of a step, of a message, of a model and of the update."""

    per_step: float
    latency: float
    down: float
    up: float


@dataclass(slots=True)
class _History:
    """One client's part of a journal."""

    done: list[_DoneTask] = field(default_factory=list)
    arrived: int = 0
    lost: int = 0
    intervals: list[tuple[float, float | None]] = field(default_factory=list)


@dataclass(slots=True)
class _FittedTask:
    """A task in training: its begin, whether it asked for a model, was sent one, and when it was ready."""

    client: int
    since: float
    asked: bool = False
    fresh: bool = False
    ready: float | None = None


def fit_world(
    rows: Iterable[Row], clients: int, *, sizes: Sizes | None = None, speeds: Speeds = "jitter"
) -> Fit:
    """Fit a world to a run's journal.

    Args:
        rows: The journal's rows in order.
        clients: Number of clients.
        sizes: Sizes of what is sent. None means that they are unknown: links then cost latency only.
        speeds: "jitter" gives a client a mean speed and a normal deviation from it; "tasks" repeats the
            speeds of its recorded tasks in their order, and then their median.

    Raises:
        UsageError: No update has arrived, or each one's client was away during the task.
    """
    seen = _read(rows, clients)
    if not any(history.arrived for history in seen):
        raise UsageError("no update has arrived in this run: there is nothing to fit a world to")
    solved = {client: _solve(history.done) for client, history in enumerate(seen) if history.done}
    if not solved:
        raise UsageError(
            "all updates of this run are of clients that were away in between: their speeds are unknown"
        )
    middle = _DoneTask(*(float(x) for x in np.median([task for task, *_ in solved.values()], axis=0)))
    fits = []
    for client, history in enumerate(seen):
        found, jitter, tasks = solved.get(client, (middle, 0.0, (middle.per_step,)))
        ended = history.arrived + history.lost
        dropout = history.lost / (ended if history.arrived else ended + 1) if ended else 0.0
        latency, down, up = found.latency, None, None
        if sizes is None:
            latency += (found.down + found.up) / 2
        else:
            down, up = _rate(sizes.model, found.down), _rate(sizes.update, found.up)
        fits.append(
            ClientFit(client, found.per_step, jitter, latency, down, up, dropout, history.arrived,
                      history.lost, tasks, tuple(history.intervals))
        )  # fmt: skip
    return Fit(_world(fits, speeds), tuple(fits), tuple(_notes(fits, seen)))


def _rate(bits: float, seconds: float) -> float | None:
    """Bits per second; None where there are none, or they take no time."""
    return bits / seconds if bits and seconds else None


# ---- reading ----


def _read(rows: Iterable[Row], clients: int) -> list[_History]:
    """Each client's tasks, counts and presence; time starts at `begin`."""
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
    match row.name:
        case "wants_model":
            task.asked = True
        case "send":
            task.fresh = True
        case "ready":
            task.ready = t
        case "arrived":
            history.done.append(_done(row, t, task))
            del tasks[row.task]
        case "lost" | "discard":
            del tasks[row.task]


def _done(row: Row, t: float, task: _FittedTask) -> _DoneTask:
    """The seconds of a task whose update has arrived, by its row."""
    line, steps = line_of(row), row.steps or 1
    if line is None:
        return _DoneTask(((t if task.ready is None else task.ready) - task.since) / steps, 0.0, 0.0, 0.0)
    # A request is one message, and its answer another; who holds its update sends one more.
    down = line.received - line.latency * (1 + 2 * task.asked)
    up = line.sent - line.latency * (1 + (task.ready is not None))
    # A difference of times has their rounding errors.
    down, up = (0.0 if each < _ROUNDING * max(t, 1.0) else each for each in (down, up))
    return _DoneTask(line.trained / steps, line.latency, down / (1 + task.fresh), up)


# ---- estimating ----


def _solve(done: list[_DoneTask]) -> tuple[_DoneTask, float, tuple[float, ...]]:
    """The seconds of a client's task, the relative deviation of its step's, and each task's own."""
    steps = np.array([task.per_step for task in done])
    mean = max(float(steps.mean()), _LEAST)
    jitter = float(np.sqrt(np.sum((steps - mean) ** 2) / max(1, len(steps) - 1))) / mean
    latency, down, up = (median(column) for column in list(zip(*done, strict=True))[1:])
    own = tuple(max(float(x), 0.05 * mean) for x in steps)
    return _DoneTask(mean, latency, down, up), min(1.0, jitter), own


# ---- the world ----


def _world(fits: list[ClientFit], speeds: Speeds) -> World:
    jitter = _listed(fit.jitter if fit.jitter > 1e-6 else 0.0 for fit in fits)
    whole = all(fit.intervals == ((0.0, None),) for fit in fits)
    intervals = [[(_short(a), None if b is None else _short(b)) for a, b in fit.intervals] for fit in fits]
    down, up = _bandwidths([fit.down for fit in fits]), _bandwidths([fit.up for fit in fits])
    network = Network(_listed(fit.latency for fit in fits), up, down)
    availability = Availability(_listed(fit.dropout for fit in fits), intervals=None if whole else intervals)
    if speeds == "tasks":
        listed = [[*map(_short, fit.tasks), _short(float(np.median(fit.tasks)))] for fit in fits]
        return World(listed, len(fits), network=network, availability=availability)
    means = [_short(fit.seconds_per_step) for fit in fits]
    return World(means, len(fits), jitter, network=network, availability=availability)


def _bandwidths(found: list[float | None]) -> list[float | None] | None:
    """The bandwidths of all clients, rounded; None where none takes time."""
    return [_FREE if own is None else _short(own) for own in found] if any(found) else None


def _notes(fits: list[ClientFit], seen: list[_History]) -> Iterator[str]:
    for fit, history in zip(fits, seen, strict=True):
        if not fit.intervals:
            yield f"client {fit.client} was never present: it stays away"
        elif not fit.arrived:
            yield f"client {fit.client} sent no update: its speed and links are the other clients' median"
        elif not history.done:
            yield (
                f"client {fit.client} was away during each task: its speed and links are the other "
                "clients' median"
            )


def _listed(values: Iterable[float]) -> list[float] | float:
    """The values of all clients, rounded; 0 where all are."""
    rounded = [*map(_short, values)]
    return rounded if any(rounded) else 0.0


def _short(value: float) -> float:
    """Round to six digits: a fitted number has fewer significant ones."""
    return float(f"{value:.6g}")
