"""A server restored from a snapshot goes on as one that repeats the journal, and as the one that was left."""

import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from dataclasses import replace as with_changes
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, msgpack
from msgspec.structs import replace

import offbeat as ob
from offbeat.algorithms.privacy.private import complete_privacy, with_privacy
from offbeat.core.algorithm import Algorithm
from offbeat.core.client_times import ClientTimes
from offbeat.core.engine import Engine
from offbeat.core.fleet import Fleet
from offbeat.core.journal import Row
from offbeat.core.privacy.accounting import Spent
from offbeat.core.privacy.ledger import PrivacyLedger, ReleasePlan
from offbeat.core.server import Server
from offbeat.net.messages import (
    EvaluationRequest,
    EvaluationResult,
    Leave,
    ModelRequest,
    Register,
    TaskAssignment,
    TaskFailed,
    UpdateSubmission,
)
from offbeat.net.secure.release_seeds import FreshSeeds
from offbeat.net.server.collapse import CollapseDetector, _Course
from offbeat.net.server.coordinator import Coordinator, SavedRun
from offbeat.net.server.driver import Driver
from offbeat.net.server.durable_store import DurableStore
from offbeat.net.server.handlers import RunInfo
from offbeat.net.server.recovery_snapshot import _checksum, _described, describe_types
from offbeat.net.server.site_registry import Registry, SiteRecord, TaskStatus
from offbeat.runs.evaluation_log import EvaluationLog, _Patience
from tests.conformance.test_same_everywhere import OPTIONS
from tests.net.support import coordinator_from, terms_of
from tests.sampling import examples

pytestmark = pytest.mark.usefixtures("one_thread")
SITES, SEED = 5, 3
SERVED = tuple(name for name in ob.ALGORITHMS if name != "wireless")
LAYOUT = ob.Layout.flat(3)
INTEGERS = torch.zeros(0, dtype=torch.int64)
encode = msgpack.Encoder().encode


@dataclass(frozen=True)
class Kind:
    """What a run has beside its algorithm."""

    name: str
    private: bool = False
    at_clients: bool = False
    rollback: bool = False

    def algorithm(self) -> Algorithm:
        """The algorithm, without what its options need of the data."""
        return ob.ALGORITHMS[self.name](**OPTIONS.get(self.name, {}))


class Sums(FreshSeeds):
    """Seeds that are the same for the same release."""

    def __init__(self) -> None:
        super().__init__(lambda size: bytes(size))


def make(kind: Kind) -> Coordinator:
    """A new coordinator."""
    algorithm, plan = kind.algorithm(), None
    initial = ob.Model.empty(LAYOUT)
    if kind.private:
        noise = ob.Noise(multiplier=40, bands=2, budget=ob.Budget(epsilon=30.0, delta=1e-3))
        privacy = complete_privacy(ob.Privacy(clip=1.0, least=2, noise=noise), algorithm, SITES)
        plan, algorithm = ReleasePlan(privacy, 3, SITES), with_privacy(algorithm, privacy)
    every = ob.Every(versions=1, at="both" if kind.at_clients else "server")
    patience = ob.EarlyStopping("loss", patience=10**6)
    terms = terms_of(
        clients=3, lease=100.0, task_timeout=None, remembered=2, rollback=kind.rollback, evaluate=every,
        until=ob.Until(early_stopping=patience), max_consecutive_failures=None,
    )  # fmt: skip
    return coordinator_from(
        algorithm, initial, terms, RunInfo("run", {"a": 1}), seed=SEED, release_plan=plan, seeds=Sums()
    )


@dataclass
class Sites:
    """A coordinator, its sites, and the rows that it has given."""

    c: Coordinator
    tasks: dict[str, TaskAssignment] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    metrics: list[Any] = field(default_factory=list)
    versions: dict[int, torch.Tensor] = field(default_factory=dict)
    updates: dict[int, Any] = field(default_factory=dict)

    def act(self, now: float, site: str, action: str, size: float) -> None:
        """Let something happen; what is evaluated is answered at once."""
        c, task = self.c, self.tasks.get(site)
        if c.stopped is not None:
            return
        if action == "deliver" and task is not None:
            delta = torch.full((3,), size)
            shared = torch.zeros(task.model.layout.shared) if task.model.layout.shared else None
            c.receive(now, site, UpdateSubmission(task.task, task.steps, delta, INTEGERS, {}, 0.1, shared))
        elif action == "ask" and task is not None and task.ask_after:
            c.receive(now, site, ModelRequest(task.task, task.ask_after))
        elif action == "fail" and task is not None:
            c.receive(now, site, TaskFailed(task.task, "disk full"))
        elif action in ("join", "bring back"):
            holds = task.task if task is not None and action == "bring back" else None
            number = int(site.removeprefix("site "))
            labels = (number + 1, 2, 3)
            hello = Register(
                sum(labels), 3, labels, holds=holds, run="run" if holds is not None else "", held_out=5
            )
            c.receive(now, site, hello)
        elif action == "leave":
            c.receive(now, site, Leave("tired"))
        c.tick(now)
        self.hear(now)

    def hear(self, now: float) -> None:
        """Take what the coordinator gives, and evaluate."""
        while True:
            effects = self.c.take()
            self.rows += effects.rows
            self.metrics += effects.metrics
            self.updates |= effects.updates
            for name, message in effects.messages:
                if isinstance(message, TaskAssignment):
                    self.tasks[name] = message
                elif isinstance(message, EvaluationRequest):
                    self.c.receive(now, name, EvaluationResult(message.version, 5, {"loss": 1.0}))
            found = [(e, {"loss": loss_of(e.version)}) for e in effects.evaluations]
            if not found and not effects.messages and not effects.metrics:
                return
            self.c.evaluated(found)
            self.c.tick(now)

    def twin(self, c: Coordinator) -> "Sites":
        """The same sites at another coordinator, which gives no rows yet."""
        return Sites(c, dict(self.tasks))


def loss_of(version: int) -> float:
    """Falls, and sometimes jumps for long enough to be a collapse."""
    return 50.0 if version % 17 > 11 else 2.0 - version / 1000


def restored(kind: Kind, live: Coordinator) -> Coordinator:
    """B: another coordinator, from what the live one saves, by way of its bytes."""
    other = make(kind)
    for site in live.registry.sites.values():
        other.registry.add(site.name, site.client).labels = site.labels
    other.restore(msgpack.decode(encode(live.save()), type=SavedRun))
    other.end_replay(live.now)
    return other


def replayed(kind: Kind, sites: Sites) -> Coordinator:
    """C: another coordinator, which repeats all rows and evaluations."""
    other, live = make(kind), sites.c
    for site in live.registry.sites.values():
        other.registry.add(site.name, site.client).labels = site.labels
    other.replay(sites.rows, None)
    for metric in sites.metrics:
        other.replay_evaluation(metric)
    other.end_replay(live.now)
    return other


def give_tensors(to: Coordinator, of: Coordinator) -> None:
    """The tensors, which a checkpoint has: a sum may take those of its updates, so each run has its own."""
    a, b = deepcopy(of.tensors), to.tensors
    b.model, b.version, b.good = a.model, a.version, a.good
    b.bases, b.fresh = dict(a.bases), dict(a.fresh)
    b.updates = {number: replace(own, task=to.server.held[number]) for number, own in a.updates.items()}
    b.memory = dict(a.memory)
    b.step_memories = tuple(dict(own) for own in a.step_memories)
    b.release.memory = dict(a.release.memory)
    if a.guard is not None and b.guard is not None:
        b.guard.restore(a.guard.save())


def canonical(saved: SavedRun, journal_only: bool = False) -> bytes:
    """The bytes of a state; what no journal tells is left out on demand."""
    if journal_only:
        registry = saved.driver.registry
        heard = replace(registry, sites=[replace(site, last_seen=0.0) for site in registry.sites])
        saved = replace(saved, driver=replace(saved.driver, registry=heard), collapse=None)
    return encode(saved)


ACTIONS = ("deliver",) * 10 + ("ask",) * 3 + ("join",) * 2 + ("bring back",) * 2 + ("fail", "leave", "wait")
STEP = st.tuples(
    st.sampled_from((0.5, 1.0, 3.0, 20.0)),
    st.integers(0, SITES - 1),
    st.sampled_from(ACTIONS),
    st.sampled_from((0.1, 0.2, -0.1)),
)
Step = tuple[float, int, str, float]


def play(kind: Kind, steps: list[Step]) -> tuple[Sites, float]:
    """A run after a script."""
    sites, now = Sites(make(kind)), 0.0
    for site in range(SITES):
        sites.act(now, f"site {site}", "join", 0.0)
    for seconds, site, action, size in steps:
        now += seconds
        sites.act(now, f"site {site}", action, size)
    return sites, now


def fits(kind: Kind) -> bool:
    """Whether this can be composed."""
    try:
        make(kind)
    except ob.OffbeatError:
        return False
    return True


KINDS = [
    kind
    for name in SERVED
    for private in (False, True)
    for at_clients in (False, True)
    for rollback in (False, True)
    if fits(kind := Kind(name, private, at_clients, rollback))
]


@examples(100)
@given(st.sampled_from(KINDS), st.lists(STEP, min_size=20, max_size=150), st.lists(STEP, max_size=60))
def test_the_live_run_the_restored_and_the_repeated_one_go_on_alike(
    kind: Kind, before: list[Step], after: list[Step]
) -> None:
    live, now = play(kind, before)
    evaluations = live.c.driver.client_evaluations
    if live.c.stopped is not None or (evaluations is not None and not evaluations.idle):
        return  # an evaluation under way at sites is forgotten at a start
    other, again = live.twin(restored(kind, live.c)), live.twin(replayed(kind, live))
    for twin in (other, again):
        give_tensors(twin.c, live.c)
    assert canonical(other.c.save(), True) == canonical(live.c.save(), True)
    assert canonical(again.c.save(), True) == canonical(live.c.save(), True)
    written = len(live.rows)
    live.c.end_replay(live.c.now)  # leases begin anew at all three
    for seconds, site, action, size in after:
        now += seconds
        for sites in (live, other, again):
            for name, record in live.c.registry.sites.items():
                twin = sites.c.registry.sites[name]
                twin.connected, twin.held_out = record.connected, record.held_out
            sites.act(now, f"site {site}", action, size)
        assert other.rows == live.rows[written:]
        if not kind.rollback:  # a repeated run does not judge its evaluations here
            assert again.rows == other.rows
    assert torch.equal(other.c.tensors.model.values, live.c.tensors.model.values)


# ---- nothing is forgotten ----

SCRIPT: list[Step] = [
    (1.0, n * 7 % SITES, ("deliver", "ask", "deliver", "deliver", "fail", "deliver", "leave", "bring back",
                          "join", "deliver", "ask", "deliver", "deliver")[n % 13], 0.1)
    for n in range(160)
]  # fmt: skip
VARIED = (
    Kind("fedasync", rollback=True),
    Kind("fedbuff", private=True, at_clients=True),
    Kind("fedcompass", rollback=True),
    Kind("fedasmu"),
    Kind("fedat"),
)

NOT_SAVED = {
    Driver: {
        "seeds": "drawn anew, those of releases are in secrets.db",
        "tensors": "in the checkpoint",
        "effects": "taken before a checkpoint", "log_update": "the store's",
        "ending": "follows from the limits and what is saved",
        "stopped": "follows from the limits and what is saved",
        "helpers": "a run with helpers has no snapshots",
        "directions": "diagnostics since the server's start",
        "client_evaluations": "only the version that was evaluated last, the sites are asked again",
        "leases": "made of the sites", "deadlines": "made of the tasks",
        "_options": "given", "_experiment": "given",
    },
    Coordinator: {
        "experiment": "given", "algorithm": "given", "options": "given", "info": "given",
        "helpers": "the driver's", "server": "the driver's", "tensors": "the driver's",
        "registry": "the driver's", "_initial_norm": "given", "rejected": "in the table meta",
        "_handler": "its circuit breaker begins anew at a start",
        "_unrecorded": "no evaluation waits where there are snapshots",
        "now": "the server's, at a start the recorded duration",
        "_ticked": "set at a start", "_next_evaluation": "set at a start",
    },
    Engine: {
        "record": "given", "tensors": "the driver's", "until": "given", "_model_bytes": "given",
        "_update_bits": "given", "failed": "a run with helpers has no snapshots",
    },
    Server: {
        "schedule": "given", "_seed": "given",
        "current_task": "of the current event", "_asking": "of the current event",
    },
    Fleet: {
        "_place": "follows from the idle ones", "size": "follows from the samples",
        "total_samples": "follows from the samples",
    },
    EvaluationLog: {"_until": "given", "_higher_is_better": "given"},
    _Patience: {"_stopping": "given", "_metric": "given"},
    CollapseDetector: {"_metric": "given", "_higher_is_better": "given"},
    _Course: {}, Spent: {}, 
    PrivacyLedger: {
        "plan": "given", "helped": "a run with helpers has no snapshots", "_waiting": "the same",
        "_charged": "since the server's start",
    },
    SiteRecord: {
        "name": "in the table sites", "labels": "in the table sites",
        "held_out": "told when the site registers again",
        "connected": "no site is at a start", "steps_done": "told by the next heartbeat",
    },
    ClientTimes: {},
    Registry: {"by_client": "the sites by number"},
}  # fmt: skip
"""Why an attribute is not saved, by class."""
SAVED = {
    Driver: {"engine", "server", "registry", "began", "skipped", "rollbacks", "rolled_back", "collapse",
             "times"},
    Coordinator: {"driver", "evaluations"},
    Engine: {
        "server", "ledger", "rows", "staleness_sum", "bits_up", "exhausted",
    },
    Server: {
        "state", "now", "version", "fleet", "begun", "stopped", "timers", "tasks", "held", "lost",
        "dispatched", "counts", "sent", "_streams", "_measuring",
    },
    Fleet: {"_samples", "_epoch", "_idle", "_labels"},
    EvaluationLog: {"count", "last_metrics", "best_metrics", "_stopping"},
    _Patience: {"_waited", "_improved", "_best"},
    CollapseDetector: {
        "good", "_lowest", "_losses", "_metrics", "_jumps", "_over", "_strange", "_above", "_alert",
    },
    _Course: {"first", "best", "recent"},
    Spent: {"squared", "releases", "recent"},
    PrivacyLedger: {"releases", "clients", "exhausted", "_spent", "_busiest"},
    SiteRecord: {
        "client", "samples", "steps_per_epoch", "present", "last_seen", "speed", "staleness", "updates",
        "tasks",
    },
    ClientTimes: {"clients"},
    Registry: {"sites", "assigned", "gone"},
}  # fmt: skip


def parts(c: Coordinator) -> Iterator[Any]:
    """An object of each class whose state is a part of a coordinator's."""
    engine, log, collapse = c.driver.engine, c.evaluations, c.driver.collapse
    assert isinstance(collapse, CollapseDetector)
    yield from (c, c.driver, engine, engine.server, engine.server.fleet, log, log._stopping)
    yield from (collapse, collapse._losses, c.registry, SiteRecord("a", 0), Spent(), c.driver.times)
    if engine.ledger is not None:
        yield engine.ledger


def test_each_attribute_is_saved_or_said_why_not() -> None:
    """Whoever adds one is told here to save it, too."""
    seen = set()
    for kind in VARIED:
        for part in parts(make(kind)):
            names = set(part.__struct_fields__ if isinstance(part, Struct) else vars(part))
            assert names == SAVED[type(part)] | set(NOT_SAVED[type(part)]), type(part)
            assert all(NOT_SAVED[type(part)].values())
            seen.add(type(part))
    assert seen == set(SAVED) == set(NOT_SAVED)


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of the fields of saved structs."""
    for name in value.__struct_fields__:
        own = getattr(value, name)
        yield (*path, name)
        if isinstance(own, Struct):
            yield from leaves(own, (*path, name))


def with_value(value: Any, path: tuple[str, ...], new: Any) -> Any:
    """A saved state of which one field is another."""
    name, *rest = path
    own = getattr(value, name)
    return replace(value, **{name: with_value(own, tuple(rest), new) if rest else new})


EMPTY: dict[str, Any] = {
    "stopped": "done", "timers": {"t": 9e9}, "held": [], "lost": [], "labels": {0: (1, 2)}, "exhausted": 1,
    "gone": {}, "recent": [0.5], "first": 0.25, "improved": 0.5, "best": (0.5, 1), "busiest": 1,
}  # fmt: skip
"""Another value of a field that is empty or None."""


def other_value(name: str, value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return 7.5 if value == float("inf") else value + 1
    if isinstance(value, str):
        return value + "x"
    if value == [] and name == "exhausted":
        return [1]
    if not value:
        return EMPTY.get(name, value)
    if isinstance(value, dict):
        return dict(list(value.items())[:-1])
    return value[:-1]


def at_other(kind: Kind, live: Coordinator, saved: SavedRun) -> bytes:
    """What another coordinator saves that has restored a state."""
    other = make(kind)
    for site in live.registry.sites.values():
        other.registry.add(site.name, site.client)
    other.restore(saved)
    return encode(other.save())


def test_a_field_that_is_not_restored_shows() -> None:
    """Each saved field has another value once, which must come back; that of a part that is empty, too."""
    tried = set()
    for kind in VARIED:
        live, _ = play(kind, SCRIPT[:90])
        saved = live.c.save()
        assert at_other(kind, live.c, saved) == encode(saved)
        for path in leaves(saved):
            value = saved
            for name in path:
                value = getattr(value, name)
            absent = path[-1] == "evaluated" and not kind.at_clients
            if isinstance(value, Struct) or path[-1] in ("schedule", "ledger") or absent:
                continue
            mutant = with_value(saved, path, other_value(path[-1], value))
            if encode(mutant) == encode(saved):  # an empty part, which another kind of run has
                continue
            tried.add(path)
            with suppress(ValueError, LookupError):  # no run is like this, which is noticed
                assert at_other(kind, live.c, mutant) == encode(mutant), path
    wanted = {"now", "held", "lost", "streams", "spent", "gone", "assigned", "sites", "idle", "evaluated"}
    assert wanted <= {path[-1] for path in tried}


# ---- in a state directory ----


def directory_of(kind: Kind, path: Path) -> Sites:
    """A state directory with a checkpoint in the middle and some rows after it."""
    meta = {"label": "x", "algorithm": {"name": kind.name}, "seed": SEED, "clients": 3}
    sites = Sites(make(kind))
    store = DurableStore(path, sites.c, meta)
    take = sites.c.take

    def commit() -> Any:
        effects = take()
        if effects.durable:
            store.commit(effects)
        return effects

    sites.c.take = commit  # type: ignore[method-assign]
    now = 0.0
    for n, (seconds, site, action, size) in enumerate(
        [*((0.0, n, "join", 0.0) for n in range(SITES)), *SCRIPT[:100]]
    ):
        now += seconds
        sites.act(now, f"site {site}", action, size)
        if n == 60:
            store.checkpoint(sites.c)
    store.close()
    return sites


def flip(database: sqlite3.Connection) -> None:
    """One bit in the middle is another."""
    (data,) = database.execute("SELECT data FROM snapshot").fetchone()
    middle = len(data) // 2
    database.execute(
        "UPDATE snapshot SET data = ?", (data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :],)
    )


DAMAGES: dict[str, tuple[str | Callable[[sqlite3.Connection], None], str]] = {
    "whole": ("SELECT 1", ""),
    "one bit flipped": (flip, "it does not match its checksum"),
    "of another version": ("UPDATE snapshot SET code = 'x'", "it does not match its checksum"),
    "of other rows": ("UPDATE snapshot SET rows = rows - 1", "it does not match its checksum"),
    "of no text": ("UPDATE snapshot SET data = 7", "Expected `bytes`"),
    "deleted": ("DELETE FROM snapshot", ""),
    "never there": ("DROP TABLE snapshot", ""),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_snapshot_with_any_doubt_is_ignored(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal is repeated then, with one line in the log; what follows is the same."""
    kind = Kind("fedcompass", rollback=True)
    live = directory_of(kind, tmp_path / "d").c
    done, words = DAMAGES[damage]
    with closing(sqlite3.connect(tmp_path / "d" / "run.db")) as database, database:
        done(database) if callable(done) else database.execute(done)
    repeated: list[int] = []
    replay = Coordinator.replay

    def counted(self: Coordinator, rows: Any, load: Any, *rest: Any) -> None:
        repeated.append(len(rows := list(rows)))
        replay(self, rows, load, *rest)

    monkeypatch.setattr(Coordinator, "replay", counted)
    back = make(kind)
    caplog.set_level(logging.INFO)
    DurableStore(tmp_path / "d", back).close()
    assert canonical(back.save(), True) == canonical(live.save(), True)
    assert torch.equal(back.tensors.model.values, live.tensors.model.values)
    told = [text for text in caplog.messages if "snapshot ignored" in text]
    assert [words in text for text in told] == ([True] if words else [])
    assert len(repeated) == (1 if damage == "whole" else 2)


def numbers_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], float]]:
    """The numbers of plain data, with their paths."""
    if isinstance(value, dict | list):
        for key, own in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers_in(own, (*path, key))
    elif type(value) in (int, float):
        yield path, value


def with_number(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Plain data of which one number is another."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = with_number(copy[path[0]], path[1:], new)
    return copy


def forge(database: sqlite3.Connection, path: tuple[Any, ...], new: Any, everywhere: bool) -> None:
    """Another number in a snapshot, with its checksum; `everywhere`: in the table of checksums too."""
    rows, code, data = database.execute("SELECT rows, code, data FROM snapshot").fetchone()
    forged = encode(with_number(msgpack.decode(data, strict=False), path, new))
    checksum = _checksum(rows, code, forged)
    database.execute("UPDATE snapshot SET data = ?, checksum = ?", (forged, checksum))
    if everywhere:
        database.execute("UPDATE checksums SET checksum = ? WHERE part = 'snapshot'", (checksum,))


NOT_OF_THE_CHECKPOINT = {"times", 
    "lost", "sent", "streams", "staleness_sum", "bits_up", "sites", "began", "skipped", "rollbacks", "timers",
    "schedule", "evaluations", "collapse", "labels", "rolled_back", "assigned", "lr_factor", "speed",
    "last_staleness", "arrival",
}  # fmt: skip
"""What only the journal from its beginning tells, and nothing else of a checkpoint."""


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("new", ["one more", -1, 2**62, 10**300, None, "x"])
def test_a_forged_snapshot_never_stops_a_start(
    new: Any, everywhere: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The journal is repeated, where the snapshot contradicts what is recorded beside it."""
    kind = Kind("fedcompass", rollback=True)
    want = canonical(directory_of(kind, tmp_path / "d").c.save(), True)
    with closing(sqlite3.connect(tmp_path / "d" / "run.db")) as database:
        (data,) = database.execute("SELECT data FROM snapshot").fetchone()
    found = list(numbers_in(msgpack.decode(data, strict=False)))
    for number, (path, value) in enumerate(found):
        if number % 16:  # all of them take a minute
            continue
        other = value + 1 if new == "one more" else float(new) if new == 10**300 else new
        directory = tmp_path / str(number)
        shutil.copytree(tmp_path / "d", directory)
        with closing(sqlite3.connect(directory / "run.db")) as database, database:
            forge(database, path, other, everywhere)
        back = make(kind)
        DurableStore(directory, back).close()
        if not everywhere or not NOT_OF_THE_CHECKPOINT & {*map(str, path)}:
            assert canonical(back.save(), True) == want, path
    assert any("snapshot ignored" in text for text in caplog.messages)


CONTRADICTIONS: dict[str, tuple[Any, ...]] = {
    "client of a task": ("driver", "engine", "server", "tasks", 0, "client"),
    "number of a task": ("driver", "engine", "server", "tasks", 0, "id"),
    "base of a task": ("driver", "engine", "server", "tasks", 0, "base"),
    "version": ("driver", "engine", "server", "version"),
    "time": ("driver", "engine", "server", "now"),
    "rows": ("driver", "engine", "rows"),
    "evaluations": ("evaluations", "count"),
    "arrived": ("driver", "engine", "server", "counts", "arrived"),
    "samples": ("driver", "engine", "server", "fleet", "samples", 0),
}


@pytest.mark.parametrize("contradiction", CONTRADICTIONS)
def test_a_snapshot_that_is_not_that_of_the_checkpoint_is_ignored(
    contradiction: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever its checksums say; and nothing of it is left where the journal is repeated."""
    kind = Kind("fedcompass", rollback=True)
    live = directory_of(kind, tmp_path / "d").c
    with closing(sqlite3.connect(tmp_path / "d" / "run.db")) as database, database:
        forge(database, CONTRADICTIONS[contradiction], 999, everywhere=True)
    back = make(kind)
    DurableStore(tmp_path / "d", back).close()
    assert canonical(back.save(), True) == canonical(live.save(), True)
    assert back.stopped == live.stopped
    assert sum("snapshot ignored" in text for text in caplog.messages) == 1


class OfAScheduleError(Exception):
    """Of a user's own code."""


@pytest.mark.parametrize(
    "error",
    [AssertionError(), MemoryError(), OSError(5, "x"), StopIteration(), OfAScheduleError(), RecursionError(),
     OverflowError(), ob.OffbeatError("x"), KeyError(3)],
    ids=repr,
)  # fmt: skip
def test_whatever_a_snapshot_raises_the_journal_is_repeated(
    error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = Kind("fedbuff")
    live, back, restore, calls = directory_of(kind, tmp_path / "d").c, make(kind), Registry.restore, [0]

    def once(self: Registry, saved: Any) -> None:
        restore(self, saved)
        calls[0] += 1
        if calls[0] == 1:
            raise error

    monkeypatch.setattr(Registry, "restore", once)
    DurableStore(tmp_path / "d", back).close()
    assert canonical(back.save(), True) == canonical(live.save(), True)
    assert sum("snapshot ignored" in text for text in caplog.messages) == 1


@pytest.mark.parametrize("changed", ["version", "until", "types"])
def test_a_snapshot_of_other_code_is_ignored(
    changed: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = Kind("fedbuff")
    live, back = directory_of(kind, tmp_path / "d").c, make(kind)
    if changed == "version":
        monkeypatch.setattr("offbeat.net.server.recovery_snapshot.__version__", "99")
    elif changed == "until":
        until = ob.Until(early_stopping=ob.EarlyStopping("loss", patience=10**5))
        back.experiment = with_changes(back.experiment, until=until)
    else:
        monkeypatch.setattr("offbeat.net.server.recovery_snapshot.describe_types", lambda *_: "others")
    DurableStore(tmp_path / "d", back).close()
    assert canonical(back.save(), True) == canonical(live.save(), True)
    assert any("another version of the code" in text for text in caplog.messages)


def test_a_schedule_of_ones_own_has_snapshots_only_if_it_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = Kind("fedbuff")
    monkeypatch.setattr(type(kind.algorithm().schedule), "snapshots", False)
    caplog.set_level(logging.INFO)
    live, back = directory_of(kind, tmp_path / "d").c, make(kind)
    assert sum("does not say snapshots = True" in text for text in caplog.messages) == 1
    with closing(sqlite3.connect(tmp_path / "d" / "run.db")) as database:
        assert database.execute("SELECT count(*) FROM snapshot").fetchone() == (0,)
    DurableStore(tmp_path / "d", back).close()
    assert back.server.tasks == live.server.tasks


def test_the_code_of_a_snapshot_is_the_same_in_every_process() -> None:
    for name in SERVED:
        assert " at 0x" not in _described(Kind(name).algorithm().schedule)
    assert " at 0x" not in describe_types(SavedRun)


def test_the_last_tasks_of_a_site_are_remembered() -> None:
    sites, _ = play(Kind("fedasync"), [(1.0, 0, "deliver", 0.1)] * 40)
    record = sites.c.registry.sites["site 0"]
    assert len(record.tasks) == 16
    assert [*record.tasks.values()] == [TaskStatus.ARRIVED] * 15 + [TaskStatus.RUNNING]
