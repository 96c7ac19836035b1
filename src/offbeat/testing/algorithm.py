"""`check_algorithm`: does an algorithm keep every rule, whatever the world?"""

import json
from collections.abc import Iterable
from traceback import walk_tb

from msgspec import msgpack
from msgspec.structs import astuple

from offbeat.core.algorithm import Algorithm
from offbeat.core.engine import Engine, SavedEngine
from offbeat.core.errors import AlgorithmError
from offbeat.core.journal import Row, event_of
from offbeat.core.learner import NoTraining
from offbeat.core.limits import Every, Until
from offbeat.core.server import Server
from offbeat.sim.result import Run
from offbeat.sim.simulate import simulate
from offbeat.testing.journal import Invariant, JournalAudit, JournalError, check_journal, moments
from offbeat.testing.worlds import random_worlds
from offbeat.world.world import World

UNTIL = Until(seconds=400.0, tasks=80)
# Number of events after which a server is restored anew.
_KEPT = 3
_EVALUATIONS = (None, Every(versions=1), Every(seconds=7.0), Every(seconds=31.7, versions=3))


def check_algorithm(
    algorithm: Algorithm,
    worlds: Iterable[World] | int = 25,
    *,
    seed: int = 0,
    until: Until = UNTIL,
    clients: tuple[int, int] = (1, 5),
    invariant: Invariant | None = None,
) -> None:
    """Run an algorithm in many worlds, without training, and check each journal by an independent auditor.

    In each world these statements hold: the journal keeps the rules of `offbeat.testing.journal`; the run's
        summary agrees with the journal; the run continues until its limit while a client is present; the
        same seed gives the same journal however often the model is evaluated; a replay of the events gives
        the recorded commands.

    Args:
        algorithm: The algorithm to check.
        worlds: Worlds, or a number of random ones.
        seed: Seed of the random worlds; the run in world i has the seed `seed` + i.
        until: Limit of each run.
        clients: Smallest and largest number of clients of the random worlds.
        invariant: An additional rule of the algorithm, checked after each event with its commands.

    Raises:
        JournalError: One line that names the algorithm, the world, the task, the time and the rule.
    """
    given = random_worlds(worlds, seed, clients) if isinstance(worlds, int) else worlds
    for i, world in enumerate(given):
        try:
            check_run(algorithm, world, seed + i, until=until, invariant=invariant)
            check_determinism(algorithm, world, seed + i, until=until)
            check_replay(algorithm, world, seed + i, until=until)
        except (JournalError, AlgorithmError) as error:
            what = error if isinstance(error, JournalError) else _refused(error)
            raise JournalError(f"{algorithm.name} in world {i} with seed {seed + i}: {what}") from error


def _refused(error: AlgorithmError) -> str:
    """The engine's refusal, which names the task or the client, and its time."""
    times = [
        frame.f_locals["now"]
        for frame, _ in walk_tb(error.__traceback__)
        if isinstance(frame.f_locals.get("self"), Server) and "now" in frame.f_locals
    ]
    return f"the run at {times[0]:g} s: refused: {error}" if times else f"refused: {error}"


def check_run(
    algorithm: Algorithm,
    world: World,
    seed: int = 0,
    *,
    until: Until = UNTIL,
    invariant: Invariant | None = None,
) -> JournalAudit:
    """Audit one run: its journal, its summary against the journal, and how it ended.

    Args:
        algorithm: The algorithm to check.
        world: The world of the run.
        seed: The run's seed.
        until: The run's limit.
        invariant: An additional rule of the algorithm, checked after each event with its commands.

    Returns:
        The auditor after the journal's last row.

    Raises:
        JournalError: The run breaks a rule.
    """
    rows, run = _play(algorithm, world, seed, until)
    audit = check_journal(rows, invariant)
    goes_on = run.stop_reason.startswith("reached") or rows[-1].name == "stop"
    audit.check(goes_on or not audit.present, "liveness", f"clients are there, but {run.stop_reason}")
    _check_summary(audit, run, until)
    return audit


def _check_summary(audit: JournalAudit, run: Run, until: Until) -> None:
    """The engine's counters against the auditor's."""
    s, stale = run.summary, audit.staleness
    pairs = {
        "versions": (s.versions, audit.version),
        "dispatched": (s.dispatched, len(audit.tasks)),
        "held": (s.held, len(audit.held)),
        "running": (s.running, len(audit.running)),
        "tasks": (s.tasks, len(stale)),
        **{how: (getattr(s, how), audit.ended[how]) for how in ("aggregated", "dropped", "lost")},
        "mean_staleness": (round(s.mean_staleness, 9), round(sum(stale) / max(1, len(stale)), 9)),
    }
    for name, (told, counted) in pairs.items():
        audit.check(told == counted, "summary", f"{name} is {told}, the journal has {counted}")
    audit.check(until.tasks is None or s.tasks <= until.tasks, "limit", f"{s.tasks} tasks")
    end = s.seconds if until.seconds is None else until.seconds
    audit.check(audit.time <= s.seconds <= end, "limit", f"{s.seconds:g} s")


def check_determinism(algorithm: Algorithm, world: World, seed: int = 0, *, until: Until = UNTIL) -> None:
    """Check that the same seed gives the same journal, however often the model is evaluated.

    Args:
        algorithm: The algorithm to check.
        world: The world of the run.
        seed: The run's seed.
        until: The run's limit.

    Raises:
        JournalError: Two runs differ; names the first row that does.
    """
    rows, run = _play(algorithm, world, seed, until)
    for every in _EVALUATIONS:
        again, other = _play(algorithm, world, seed, until, every)
        _check_same("determinism", rows, again)
        if (other.summary, other.stop_reason) != (run.summary, run.stop_reason):
            raise JournalError(f"the run at {run.summary.seconds:g} s: determinism: the summaries differ")


def check_replay(algorithm: Algorithm, world: World, seed: int = 0, *, until: Until = UNTIL) -> None:
    """Check that a new server, fed the recorded events, gives the recorded commands.

    So must one whose state is saved as plain data and restored now and then, if the schedule has `snapshots`.

    Args:
        algorithm: The algorithm to check.
        world: The world of the run.
        seed: The run's seed.
        until: The run's limit.

    Raises:
        JournalError: A command differs; names the first row that does.
    """
    rows, _ = _play(algorithm, world, seed, until)
    stored = [Row(*json.loads(json.dumps(astuple(row)))) for row in rows]
    _check_same("replay", rows, stored)
    _feed("replay", algorithm, seed, stored)
    if algorithm.schedule.snapshots:
        _feed("snapshot", algorithm, seed, stored, restored=True)


def _feed(rule: str, algorithm: Algorithm, seed: int, rows: list[Row], restored: bool = False) -> None:
    """Feed recorded events to a new server, which is another one every few events if it is `restored`."""
    engine_rows: list[Row] = []
    engine = Engine(algorithm.schedule, seed, engine_rows.append)
    for count, (event, commands) in enumerate(moments(rows)):
        engine.apply(event.t, event_of(event))
        _check_same(rule, [event, *commands], engine_rows)
        engine_rows.clear()
        if restored and count % _KEPT == 0:
            saved = _saved(engine, event)
            engine = Engine(algorithm.schedule, seed, engine_rows.append)
            engine.restore(saved)


def _saved(engine: Engine, row: Row) -> SavedEngine:
    """The state of an engine, by way of its bytes."""
    try:
        return msgpack.decode(msgpack.encode(engine.save()), type=SavedEngine)
    except (TypeError, OverflowError) as error:
        raise JournalError(f"the run at {row.t:g} s: snapshot: {error}") from None


def _check_same(rule: str, rows: list[Row], again: list[Row]) -> None:
    """Two journals are the same; the error names the first row that differs."""
    for row, other in zip(rows, again, strict=False):
        if row != other:
            task = "the run" if row.task is None else f"task {row.task}"
            raise JournalError(f"{task} at {row.t:g} s: {rule}: {_short(row)}, then {_short(other)}")
    if len(rows) != len(again):
        last = min(rows[-1], again[-1], key=lambda row: row.seq)
        raise JournalError(f"the run at {last.t:g} s: {rule}: {len(rows)} rows, then {len(again)}")


def _short(row: Row) -> str:
    """A row in a few words."""
    told = {name: value for name, value in row.flat().items() if value is not None}
    return " ".join(f"{name}={value}" for name, value in told.items() if name not in ("seq", "kind"))


class _Learner(NoTraining):
    """A learner that trains nothing and whose clients have different shares of two classes."""

    def label_counts(self, client: int) -> list[int]:
        """Numbers of samples of the two classes."""
        second = client % (self.samples_per_client + 1)
        return [self.samples_per_client - second, second]


def _play(
    algorithm: Algorithm, world: World, seed: int, until: Until, evaluate: Every | None = Every(versions=1)
) -> tuple[list[Row], Run]:
    """A run without training, and its rows."""
    learner = _Learner(world.population(None), parameters=3, samples_per_client=8, batches=4)
    run = simulate(algorithm, world, learner, seed=seed, until=until, evaluate=evaluate)
    return list(run.rows()), run
