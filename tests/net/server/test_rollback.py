"""A deployed run whose loss collapses goes back to its last good version, under a new number."""

import re
import weakref
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path

import pytest
import torch

import offbeat as ob
from offbeat.core.journal import Row
from offbeat.net.messages import (
    FromServer,
    Register,
    TaskAssignment,
    TaskCancel,
    TaskFailed,
    UpdateAck,
    UpdateSubmission,
)
from offbeat.net.monitor.from_journal import snapshot_of
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.durable_store import DurableStore
from offbeat.net.server.effects import Effects
from offbeat.net.server.handlers import RunInfo
from offbeat.net.server.recovery_snapshot import RecoverySnapshots
from offbeat.net.server.server_options import ServerOptions
from offbeat.net.server.summary import snapshot
from offbeat.runs.schema import version_file
from offbeat.sim.replay import replay
from offbeat.testing import check_journal
from tests.net.server.test_server_recovery import META, state, tensors
from tests.net.support import coordinator_from, terms_of
from tests.sampling import mostly_thorough

LAYOUT = ob.Layout.flat(3)
MODEL = ob.Model.empty(LAYOUT)
INTEGERS = torch.zeros(0, dtype=torch.int64)
ALGORITHMS = {
    "fedasync": lambda: ob.fedasync(steps=1),
    "fedbuff": lambda: ob.fedbuff(2, steps=1),
    "fedavgm": lambda: ob.fedavgm(steps=1, momentum=0.5),
    "fedfa": lambda: ob.fedfa(2, steps=1),
    "scaffold": lambda: ob.scaffold(steps=1),
}


def loss_of(model: ob.Model) -> float:
    """Falls as w goes from 0 to (1, 0, 0); huge beyond 5."""
    w = float(model.values[0])
    return 1e4 if abs(w) > 5 else 2.3 - w


class Federation:
    """Sites of a coordinator, whose versions are all evaluated, in a state directory or without one."""

    def __init__(
        self,
        name: str,
        directory: Path | None = None,
        sites: int = 3,
        initial: ob.Model = MODEL,
        loss: Callable[[ob.Model], float] = loss_of,
        measure: Callable[[ob.Model], Mapping[str, float]] = lambda _: {},
        **options: object,
    ) -> None:
        self.initial, self.loss, self.measure = initial, loss, measure
        self.name, self.directory, self.count, self.now = name, directory, sites, 0.0
        self.given: Mapping[str, object] = {"guard": None, **options}
        self.tasks: dict[str, TaskAssignment] = {}
        self.said: dict[str, list[FromServer]] = {f"site-{k}": [] for k in range(sites)}
        self.rows: list[Row] = []
        self.server = self.make()
        meta = {**META, "initial": self.initial.digest()}
        self.store = DurableStore(directory, self.server, meta) if directory is not None else None
        self.die: str | None = None
        for name in self.said:
            self.send(name, Register(10, 1))

    def make(self) -> Coordinator:
        given = {"evaluate": ob.Every(versions=1), **self.given}
        options = terms_of(clients=self.count, lease=1e9, **given)  # type: ignore[arg-type]
        return coordinator_from(ALGORITHMS[self.name](), self.initial, options, RunInfo("run", {}))

    def send(self, name: str, message: Register | UpdateSubmission | TaskFailed) -> None:
        self.now += 1.0
        self.server.receive(self.now, name, message)
        self.settle(self.server.take())
        while self.evaluations:
            evaluation = self.evaluations.pop()
            self.now += 0.25
            self.server.tick(self.now)
            found = {"loss": self.loss(evaluation.model), **self.measure(evaluation.model)}
            self.server.evaluated([(evaluation, found)])
            self.settle(self.server.take())

    def settle(self, effects: Effects) -> None:
        """Make effects durable and deliver them, or die before or after the commit."""
        die, self.die = self.die, None
        if die != "before" and self.store is not None:
            self.store.commit(effects)
        if die is not None:
            assert self.store is not None
            self.store.close()
            old, self.server = self.server, self.make()
            assert self.directory is not None
            self.store = DurableStore(self.directory, self.server)
            if die == "after":
                assert state(old) == state(self.server)
                mine, yours = tensors(old), tensors(self.server)
                assert mine.keys() == yours.keys()
                assert all(torch.equal(mine[key], yours[key]) for key in mine)
                assert (old.tensors.good is None) == (self.server.tensors.good is None)
            self.evaluations = []  # what was evaluated meanwhile is lost
            self.tasks.clear()
            for name in self.said:  # they come back, and hear what they have missed
                self.server.receive(self.now, name, Register(10, 1))
            effects = self.server.take()
            self.store.commit(effects)
        self.rows += effects.rows
        self.evaluations = list(effects.evaluations)
        for to, message in effects.messages:
            self.said[to].append(message)
            if isinstance(message, TaskAssignment):
                self.tasks[to] = message
            elif isinstance(message, TaskCancel):
                self.tasks.pop(to, None)

    def update(self, name: str, size: float) -> None:
        task = self.tasks.pop(name)
        delta = torch.tensor([size, 0.0, 0.0])
        shared = torch.zeros(3) if task.model.layout.shared else None
        self.send(name, UpdateSubmission(task.task, 1, delta, INTEGERS, {}, 0.1, shared))

    def all_send(self, size: float) -> None:
        for name in list(self.said):
            if name in self.tasks:
                self.update(name, size)

    def named(self, name: str) -> list[Row]:
        return [row for row in self.rows if row.name == name]


def collapse(federation: Federation) -> None:
    """Honest rounds, one destructive update, honest rounds."""
    for _ in range(3):
        federation.all_send(0.3)
    federation.update("site-0", 500.0)
    for _ in range(6):
        federation.all_send(0.05)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_goes_back_under_a_new_number(name: str) -> None:
    federation = Federation(name)
    collapse(federation)
    (row,) = federation.named("rolled_back")
    to, made = (row.data or {})["to"], row.version
    assert made is not None
    assert 0 < to < made
    assert "has collapsed: its loss, 1e+04, is above" in (row.data or {})["reason"]
    assert 0 < float(federation.server.tensors.model.values[0]) < 5
    assert federation.server.server.version > made  # the run has gone on
    check_journal(federation.rows)
    versions = [r.version for r in federation.rows if r.name in ("aggregate", "rolled_back")]
    assert versions == list(range(1, len(versions) + 1))
    trained = [r for r in federation.rows if r.name == "aggregate" and (r.version or 0) > made]
    ends = {r.task: r for r in federation.rows if r.name == "arrived"}
    for aggregation in trained:  # of what is withdrawn, at most what was held at the rollback is named
        late = [ends[task] for task in (aggregation.data or {})["tasks"]]
        assert all(r.base <= to or r.base >= made or r.seq < row.seq for r in late)  # type: ignore[operator]


def overfits(federation: Federation) -> None:
    """The weight goes from 0 to 3; the loss of its model falls from 2.3 to 0.3, and is 2.2 at the end."""
    while (w := float(federation.server.tensors.model.values[0])) < 3:
        federation.update("site-0", 0.1 if 0.9 < w < 1.1 else 0.5)
    for _ in range(10):
        federation.update("site-0", 0.0)


def overfit_loss(model: ob.Model) -> float:
    """The loss in `overfits`."""
    w = float(model.values[0])
    return 2.3 - 2 * w if w < 1 else min(2.2, 0.95 * w - 0.65)


def test_an_honest_run_with_an_auroc_of_its_own_overfits_without_a_rollback(tmp_path: Path) -> None:
    federation = Federation(
        "fedasync", tmp_path, loss=overfit_loss, measure=lambda m: {"own": 0.55 if m.values[0] == 0 else 0.92}
    )
    overfits(federation)
    assert not federation.named("rolled_back")
    assert snapshot(federation.server, "").alarms == []


def test_a_loss_alone_that_rises_slowly_is_an_alarm_and_no_rollback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = Federation("fedasync", tmp_path, loss=overfit_loss)
    overfits(federation)
    assert not federation.named("rolled_back")
    (alarm,) = snapshot(federation.server, "").alarms
    assert alarm.startswith(
        "the model: its loss, 2.2, has lost more than 7/8 of what was gained from 2.3 to "
    )
    (line,) = [record for record in caplog.records if record.getMessage() == "the loss rises"]
    assert (line.levelname, f"the model: {line.__dict__['reason']}") == ("WARNING", alarm)
    assert snapshot_of(ob.read_run(tmp_path)).alarms == [alarm]
    assert federation.store is not None
    federation.store.close()
    restarted = federation.make()
    DurableStore(tmp_path, restarted).close()
    assert snapshot(restarted, "").alarms == [alarm]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_off_by_an_option(name: str) -> None:
    federation = Federation(name, rollback=False)
    collapse(federation)
    assert not federation.named("rolled_back")
    assert abs(float(federation.server.tensors.model.values[0])) > 5


def test_an_alarm_tells_it(caplog: pytest.LogCaptureFixture) -> None:
    federation = Federation("fedbuff")
    collapse(federation)
    (row,) = federation.named("rolled_back")
    assert "returns to an earlier version: 1" in snapshot(federation.server, "").alarms
    (line,) = [record for record in caplog.records if record.getMessage() == "rolled back"]
    assert (line.levelname, line.__dict__["reason"]) == ("ERROR", (row.data or {})["reason"])


def test_tasks_of_withdrawn_versions_are_lost_and_their_sites_start_anew() -> None:
    federation = Federation("fedasync", max_consecutive_failures=1)
    collapse(federation)
    (row,) = federation.named("rolled_back")
    lost = federation.named("lost")
    assert {(r.data or {})["reason"] for r in lost} == {
        f"it trains from a version that is withdrawn: the run went back to version {(row.data or {})['to']}"
    }
    cancelled = [m for said in federation.said.values() for m in said if isinstance(m, TaskCancel)]
    assert len(cancelled) == len(lost) > 0
    assert not federation.named("left")  # nobody is blamed
    assert len(federation.tasks) == 3


@pytest.mark.parametrize("failure", ["nan", "failed"])
def test_no_site_is_punished_for_a_model_it_was_sent(failure: str) -> None:
    """Its training fails from the collapsed version, more often than a circuit allows; then it may go on."""
    federation = Federation("fedasync", max_consecutive_failures=3)
    for _ in range(3):
        federation.all_send(0.05)
    federation.server.options = ServerOptions(rollback=False)  # no evaluation tells it yet
    federation.update("site-0", 500.0)
    federation.update("site-2", 0.05)
    for _ in range(5):
        if "site-1" in federation.tasks:
            task = federation.tasks.pop("site-1")
            if failure == "nan":
                nan = torch.tensor([float("nan")] * 3)
                federation.send("site-1", UpdateSubmission(task.task, 1, nan, INTEGERS, {"loss": 1.0}))
            else:
                federation.send("site-1", TaskFailed(task.task, "the loss is NaN"))
    assert not federation.server.may_register(federation.now, "site-1")
    federation.server.options = ServerOptions(clients=3)
    for _ in range(5):
        federation.update("site-2", 0.05)
    assert federation.named("rolled_back")
    assert federation.server.may_register(federation.now, "site-1")
    federation.send("site-1", Register(10, 1))
    federation.update("site-1", 0.05)
    acks = [m for m in federation.said["site-1"] if isinstance(m, UpdateAck)]
    assert acks[-1].accepted


def test_a_site_that_fails_on_good_versions_is_not_forgiven() -> None:
    federation = Federation("fedasync", max_consecutive_failures=3)
    for _ in range(3):
        task = federation.tasks.pop("site-1")
        federation.send("site-1", TaskFailed(task.task, "broken"))
    assert not federation.server.may_register(federation.now, "site-1")
    for _ in range(3):
        federation.update("site-2", 0.05)
    federation.update("site-0", 500.0)
    for _ in range(5):
        federation.update("site-2", 0.05)
    assert federation.named("rolled_back")
    assert not federation.server.may_register(federation.now, "site-1")


@pytest.mark.parametrize("die", [None, "before", "after"])
def test_weights_that_an_attack_has_shrunk(die: str | None, tmp_path: Path) -> None:
    """From 1 to 0.1, with the loss as it was: five evaluations later the run goes back, killed or not."""
    initial = ob.Model(LAYOUT, torch.tensor([1.0, 0.0, 0.0]), INTEGERS)
    federation = Federation("fedbuff", tmp_path / "run", initial=initial, loss=lambda _: 2.3)
    while federation.server.tensors.model.values[0] > 0.25:
        federation.all_send(-0.5)
    assert not federation.named("rolled_back")
    federation.all_send(0.0)
    federation.die = die
    for _ in range(6):
        federation.all_send(0.0)
    (row,) = federation.named("rolled_back")
    assert (row.data or {})["to"] == 0
    assert "the norm of its parameters is far from the initial one" in (row.data or {})["reason"]
    assert federation.server.tensors.model.values[0] == 1.0
    assert federation.store is not None
    federation.store.close()
    norms = [m.found.get("relative_norm") for m in ob.read_run(tmp_path / "run").evaluations()]
    assert norms[0] is None
    assert norms[-1] is None
    assert len([n for n in norms if n is not None]) >= 5


@pytest.mark.parametrize("back", ["to the guard's version", "after a collapse"])
@pytest.mark.parametrize("stopped", ["at once", "after evaluations"])
@pytest.mark.parametrize("checkpoint", ["none", "with its snapshot", "without a snapshot"])
def test_a_restart_judges_as_the_server_did(
    back: str, stopped: str, checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is counted over evaluations in a row begins anew at each rollback, also at one of the guard's."""
    federation = Federation("fedasync", tmp_path, guard=ob.Guard(factor=1e9))
    for _ in range(3):
        federation.all_send(0.3)
    federation.update("site-0", 500.0)
    if back == "to the guard's version":
        federation.update("site-1", 0.05)
        federation.update("site-2", 0.05)
        guard = federation.server.tensors.guard
        assert guard is not None
        guard.poisoned = "the updates of most clients are absurd"
    else:
        federation.all_send(0.05)
    federation.all_send(0.05)
    (row,) = federation.named("rolled_back")
    assert ("is poisoned" in (row.data or {})["reason"]) == (back == "to the guard's version")
    if stopped == "after evaluations":
        federation.all_send(0.1)
    assert federation.store is not None
    if checkpoint != "none":
        federation.store.checkpoint(federation.server)
    federation.store.close()
    if checkpoint == "without a snapshot":
        monkeypatch.setattr(RecoverySnapshots, "restore", lambda *_: False)
    restarted = federation.make()
    DurableStore(tmp_path, restarted).close()
    assert restarted.driver.collapse.save() == federation.server.driver.collapse.save()  # type: ignore[attr-defined]
    assert restarted.tensors.good is not None
    assert federation.server.tensors.good is not None
    assert restarted.tensors.good[0] == federation.server.tensors.good[0]


def actions() -> int:
    """Commits of the whole script."""
    federation, count = Federation("fedbuff"), 0
    settle = federation.settle

    def counted(effects: Effects) -> None:
        nonlocal count
        count += 1
        settle(effects)

    federation.settle = counted  # type: ignore[method-assign]
    collapse(federation)
    return count


def attacked_late(federation: Federation) -> None:
    """Honest rounds, one destructive update, honest rounds."""
    for _ in range(3):
        federation.all_send(0.3)
    while "site-0" not in federation.tasks:
        federation.all_send(0.05)
    federation.update("site-0", 500.0)
    for _ in range(6):
        federation.all_send(0.05)


def attacked_early(federation: Federation) -> None:
    """One site delivers as much as the guard takes before the others have delivered anything."""
    for size in (90.0, 95.0, 98.0):
        if "site-0" in federation.tasks:
            federation.update("site-0", size)
    for _ in range(8):
        for name in ("site-1", "site-2"):
            if name in federation.tasks:
                federation.update(name, 0.05)
        if "site-0" in federation.tasks:
            federation.update("site-0", 90.0)


ATTACKS = {
    "late": (attacked_late, {}),
    "early": (attacked_early, {"guard": ob.Guard()}),
    "early, no test data": (attacked_early, {"guard": ob.Guard(), "evaluate": ob.Every()}),
}


@pytest.mark.parametrize(
    ("attack", "checkpoints", "die", "name"),
    mostly_thorough(
        product(ATTACKS, (0, 1, 2, 3, 5), ("before", "after"), ALGORITHMS),
        [
            ("late", 5, "after", "fedbuff"),
            ("early", 0, "before", "fedbuff"),
        ],
    ),
)
def test_killed_at_any_moment(name: str, die: str, checkpoints: int, attack: str, tmp_path: Path) -> None:
    """Before and after each commit, with checkpoints in between: the run goes back, and its journal holds."""
    moments, algorithm = actions() + 5, ALGORITHMS[name]
    attacked, options = ATTACKS[attack]
    for moment in range(1, moments, 1 if name != "fedbuff" else 3):
        directory = tmp_path / str(moment)
        federation, count = Federation(name, directory, **options), 0  # type: ignore[arg-type]
        settle = federation.settle

        def counted(effects: Effects, moment: int = moment, settle=settle, f=federation) -> None:  # type: ignore[no-untyped-def]
            nonlocal count
            if count == moment:
                f.die = die
            count += 1
            settle(effects)
            if checkpoints and count % checkpoints == 0:
                f.store.checkpoint(f.server)

        federation.settle = counted  # type: ignore[method-assign]
        attacked(federation)
        assert federation.store is not None
        rows = list(ob.read_run(directory).rows())
        check_journal(rows)
        assert replay(ob.read_run(directory), algorithm()).difference is None
        assert attack != "late" or sum(row.name == "rolled_back" for row in rows) <= 1
        w = float(federation.server.tensors.model.values[0])
        assert 0 < w < 5, f"killed {die} commit {moment}: the run stays collapsed"
        federation.store.close()


def test_a_checkpoint_frees_the_good_version(tmp_path: Path) -> None:
    """Its content is in a file only from then on, from which a rollback reads the same bits."""
    federation = Federation("fedasync", tmp_path)
    for _ in range(3):
        federation.all_send(0.3)
    before = federation.server.tensors.good
    assert before is not None
    values, held = before.load().values.clone(), weakref.ref(before.load().values)
    federation.all_send(0.0)
    federation.all_send(0.0)
    for said in federation.said.values():
        said.clear()
    assert federation.server.tensors.good is before
    del before
    assert held() is not None
    assert federation.store is not None
    federation.store.checkpoint(federation.server)
    assert held() is None
    federation.server.driver.roll_back(federation.now, "its loss is too high")
    assert torch.equal(federation.server.tensors.model.values, values)
    federation.store.close()


def test_a_damaged_good_version_is_named(tmp_path: Path) -> None:
    federation = Federation("fedasync", tmp_path)
    for _ in range(3):
        federation.all_send(0.3)
    federation.all_send(0.0)
    federation.all_send(0.0)
    assert federation.store is not None
    federation.store.checkpoint(federation.server)
    good = federation.server.tensors.good
    assert good is not None
    damaged = tmp_path / version_file(good.version)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(ob.DamageError, match=re.escape(damaged.name)):
        federation.server.driver.roll_back(federation.now, "its loss is too high")
    federation.store.close()
