"""What a coordinator answers to what sites say and do not say."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import offbeat as ob
from offbeat.codec import TopK
from offbeat.core.commands import Command, Discard, SetTimer, Train, Upload
from offbeat.core.events import Begin, Event, Joined, Ready
from offbeat.core.features import Feature
from offbeat.core.learner import NoTraining
from offbeat.core.schedule import Schedule, View
from offbeat.net.messages import (
    FromServer,
    Heartbeat,
    Leave,
    ModelRequest,
    ModelResponse,
    Register,
    Registered,
    Rejected,
    RunFinished,
    TaskAssignment,
    TaskCancel,
    TaskFailed,
    TaskRecall,
    UpdateAck,
    UpdateReady,
    UpdateSubmission,
    UploadGrant,
)
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.handlers import RunInfo
from offbeat.net.server.summary import snapshot
from tests.net.support import coordinator_from, terms_of

D = 3
HELLO = Register(samples=30, steps_per_epoch=3)


def coordinator(algorithm: Any = None, **options: Any) -> Coordinator:
    info = RunInfo("r1", {"a": 1}, classes=2, batch_size=10)
    return coordinator_from(
        algorithm or ob.fedasync(steps=6), NoTraining(1, D).initial(0), terms_of(**options), info, seed=1
    )


def said(c: Coordinator, site: str = "a") -> list[FromServer]:
    return [message for name, message in c.take().messages if name == site]


def result(task: int = 0, steps: int = 6, delta: Any = None, **fields: Any) -> UpdateSubmission:
    delta = torch.ones(D) if delta is None else delta
    return UpdateSubmission(task, steps, delta, **{"integers": torch.zeros(0, dtype=torch.int64), **fields})


def kinds(messages: list[FromServer]) -> list[str]:
    return [type(m).__name__ for m in messages]


def names(c: Coordinator) -> list[str]:
    return [row.name for row in c.take().rows]


def test_a_site_joins_is_given_work_and_its_update_is_used() -> None:
    c = coordinator(clients=2, lease=5.0)
    c.receive(1.0, "a", HELLO)
    outcome = c.take()
    assert outcome.messages == [("a", Registered(0, "r1", {"a": 1}, 5.0))]
    assert [row.name for row in outcome.rows] == ["joined"]
    assert outcome.sites["a"].client == 0
    c.receive(2.0, "b", HELLO)
    outcome = c.take()
    assert [(name, type(m).__name__) for name, m in outcome.messages] == [
        ("b", "Registered"), ("a", "TaskAssignment"), ("b", "TaskAssignment"),
    ]  # fmt: skip
    assert outcome.messages[1][1] == TaskAssignment(0, 0, 6, 1, c.tensors.model)
    c.receive(3.0, "a", result())
    outcome = c.take()
    assert outcome.messages[0] == ("a", UpdateAck(0, accepted=True))
    assert kinds([m for _, m in outcome.messages]) == ["UpdateAck", "TaskAssignment"]
    assert list(outcome.updates) == [0]
    assert [row.name for row in outcome.rows] == ["arrived", "aggregate", "train"]
    assert c.tensors.version == 1


def test_the_names_of_the_updates_metrics_are_bounded_in_a_run() -> None:
    """Each is a column of the journal's table."""
    c = coordinator()
    c.receive(0.0, "a", HELLO)
    for task in range(6):
        own = {f"m{task}.{n}": 1.0 for n in range(25)}
        c.receive(1.0 + task, "a", result(task, metrics={"loss": 0.5, "norm": 1.0, "m3.24": 1.0, **own}))
        outcome = c.take()
        (ack,) = (m for _, m in outcome.messages if isinstance(m, UpdateAck))
        assert ack.accepted, "names that another site has used up cost no update"
        (arrived,) = (row.flat() for row in outcome.rows if row.name == "arrived")
        # The first update has brought the name m3.24, which is also the fourth update's last.
        assert len(own.keys() & arrived.keys()) == (25 if task < 4 else 0)
        assert {"loss", "norm", "m3.24"} <= arrived.keys()


def test_the_steps_of_an_epoch_follow_from_the_batch_size_if_the_site_does_not_tell() -> None:
    c = coordinator()
    c.receive(0.0, "a", Register(samples=31, steps_per_epoch=0))
    assert c.server.fleet.steps_per_epoch(0) == 4


@pytest.mark.parametrize(
    ("bad", "kind", "says"),
    [
        ({"delta": torch.ones(D + 1)}, "layout", r"update is float32 \[4\], .* asks for float32 \[3\]"),
        ({"delta": torch.ones(D, dtype=torch.float64)}, "layout", r"update is float64 \[3\]"),
        ({"delta": torch.ones(1, D)}, "layout", r"float32 \[1, 3\]"),
        ({"delta": b"abc"}, "layout", "no codec"),
        ({"delta": torch.tensor([1.0, float("nan"), 1.0])}, "not finite", "NaN or infinite"),
        ({"delta": torch.tensor([1.0, float("inf"), 1.0])}, "not finite", "NaN or infinite"),
        ({"delta": torch.tensor([1.0, float("inf"), -float("inf")])}, "not finite", "NaN or infinite"),
        ({"delta": torch.full((D,), 9.0)}, "norm", "norm of the update's parameters is 15.5885, at most 10"),
        ({"integers": torch.zeros(2, dtype=torch.int64)}, "layout", r"integers is int64 \[2\]"),
        ({"integers": torch.zeros(0)}, "layout", r"integers is float32 \[0\]"),
        ({"shared": torch.zeros(D)}, "layout", r"shared is float32 \[3\]"),
        ({"steps": 0}, "steps", "0 local steps were done, the task has 1 to 6"),
        ({"steps": 7}, "steps", "7 local steps"),
        ({"lr": float("nan")}, "not finite", "lr = nan"),
        ({"lr": -1.0}, "not finite", "lr = -1.0"),
        ({"metrics": {"loss": float("inf")}}, "not finite", "'loss' is inf"),
        (
            {"metrics": {"task": 7.0}},
            "metrics",
            "metric 'task' is not allowed: it is a name of the server's own",
        ),
        (
            {"metrics": {"seconds": 7.0}},
            "metrics",
            "metric 'seconds' is not allowed: it is a name of the server's own",
        ),
        (
            {"metrics": {"bits": 1e300}},
            "metrics",
            "metric 'bits' is not allowed: it is a name of the server's own",
        ),
    ],
)
def test_a_bad_update_is_refused_counted_and_its_task_lost(bad: Any, kind: str, says: str) -> None:
    c = coordinator(norm_bound=10.0)
    c.receive(0.0, "a", HELLO)
    c.take()
    c.receive(1.0, "a", result(**bad))
    outcome = c.take()
    receipt, assign = (m for _, m in outcome.messages)
    assert isinstance(receipt, UpdateAck)
    assert not receipt.accepted
    assert re.search(says, receipt.reason), receipt.reason
    assert isinstance(assign, TaskAssignment)
    assert c.rejected == {kind: 1}
    assert [row.name for row in outcome.rows] == ["lost", "train"]
    assert not outcome.updates
    c.receive(2.0, "a", result(task=1))
    assert said(c)[0] == UpdateAck(1, accepted=True)


def test_an_update_whose_sum_overflows_is_finite_all_the_same() -> None:
    c = coordinator(guard=None)
    c.receive(0.0, "a", HELLO)
    c.receive(1.0, "a", result(delta=torch.full((D,), 3e38)))
    assert UpdateAck(0, accepted=True) in said(c)
    assert not c.rejected


def test_with_a_codec_an_update_is_its_bytes() -> None:
    c = coordinator(replace(ob.fedasync(steps=6), codec=TopK(fraction=0.3)))
    c.receive(0.0, "a", HELLO)
    c.receive(1.0, "a", result(0))
    c.receive(2.0, "a", result(1, delta=b"nonsense, which is much too long"))
    payload = TopK(fraction=0.3).encode(torch.tensor([0.0, 2.0, 0.0]), None, np.random.default_rng())
    c.receive(3.0, "a", result(2, delta=payload, metrics={"bits": 1.0}))
    c.receive(4.0, "a", result(3, delta=payload))
    outcome = c.take()
    receipts = [m for _, m in outcome.messages if isinstance(m, UpdateAck)]
    assert [r.accepted for r in receipts] == [False, False, False, True]
    assert "not encoded" in receipts[0].reason
    assert "cannot be decoded" in receipts[1].reason
    assert outcome.updates[3].delta.tolist() == [0.0, 2.0, 0.0]
    assert next(row for row in outcome.rows if row.name == "arrived").data["bits"] == 8 * len(payload)


def test_an_update_that_comes_again_is_accepted_and_changes_nothing() -> None:
    c = coordinator()
    c.receive(0.0, "a", HELLO)
    c.receive(1.0, "a", result())
    c.take()
    before = c.tensors.model.values.clone()
    c.receive(2.0, "a", result(delta=torch.full((D,), float("nan"))))
    outcome = c.take()
    assert outcome.messages == [("a", UpdateAck(0, accepted=True))]
    assert not outcome.rows
    assert torch.equal(before, c.tensors.model.values)


def test_nobody_speaks_of_the_tasks_of_others() -> None:
    c = coordinator(clients=2)
    c.receive(0.0, "a", HELLO)
    c.receive(0.0, "b", HELLO)
    c.take()
    c.receive(1.0, "b", result(0))
    c.receive(1.0, "b", result(77))
    c.receive(1.0, "b", result(-1))
    c.receive(1.0, "b", TaskFailed(0, "mine"))
    c.receive(1.0, "b", ModelRequest(0, 3))
    c.receive(1.0, "b", UpdateReady(0, 6))
    outcome = c.take()
    assert kinds([m for _, m in outcome.messages]) == ["UpdateAck"] * 3 + ["TaskCancel"] * 2
    assert "none of the last tasks that were assigned to this site" in outcome.messages[0][1].reason
    assert not outcome.rows
    assert c.rejected == {"foreign task": 3}


def test_who_is_back_within_the_lease_was_never_away() -> None:
    c = coordinator(lease=10.0)
    c.receive(0.0, "a", HELLO)
    c.take()
    c.disconnected(1.0, "a")
    c.tick(9.0)
    c.receive(9.5, "a", msgspec.structs.replace(HELLO, holds=0, run="r1"))
    outcome = c.take()
    assert kinds([m for _, m in outcome.messages]) == ["Registered"]
    assert not outcome.rows
    c.receive(9.6, "a", HELLO)  # a process that remembers nothing
    assert kinds(said(c)) == ["Registered", "TaskAssignment"]
    c.receive(9.7, "a", msgspec.structs.replace(HELLO, holds=0, run="another"))
    messages = said(c)
    assert kinds(messages) == ["Registered", "TaskCancel", "TaskAssignment"]
    assert "another run" in messages[1].reason
    c.receive(9.8, "a", msgspec.structs.replace(HELLO, holds=5, run="r1"))
    assert kinds(said(c)) == ["Registered", "TaskCancel", "TaskAssignment"]
    c.receive(10.0, "a", result())
    c.take()
    c.receive(10.1, "a", msgspec.structs.replace(HELLO, holds=0, run="r1"))  # whose receipt was lost
    messages = said(c)
    assert messages[1] == UpdateAck(0, accepted=True)
    assert kinds(messages) == ["Registered", "UpdateAck", "TaskAssignment"]


def ticks(c: Coordinator, start: float, end: float, step: float = 1.0) -> None:
    now = start
    while now < end:
        c.tick(now)
        now += step
    c.tick(end)


def test_a_lease_that_is_over_loses_the_task_and_the_site_may_bring_it_back() -> None:
    c = coordinator(lease=10.0)
    c.receive(0.0, "a", HELLO)
    c.take()
    ticks(c, 0.0, 9.9)
    assert names(c) == []
    assert c.next_due() == 10.0
    c.tick(10.0)
    outcome = c.take()
    assert [(row.name, row.task) for row in outcome.rows] == [("left", 0)]
    assert outcome.rows[0].data == {"reason": "silent for 10 s"}
    assert outcome.closed == [("a", "silent for 10 s")]
    c.receive(11.0, "a", Heartbeat())
    outcome = c.take()
    assert isinstance(outcome.messages[0][1], Rejected)
    assert outcome.closed
    c.receive(12.0, "a", msgspec.structs.replace(HELLO, holds=0, run="r1"))
    outcome = c.take()
    assert kinds([m for _, m in outcome.messages]) == ["Registered"]
    assert [(row.name, row.task) for row in outcome.rows] == [("joined", 0)]
    c.receive(13.0, "a", result())
    assert kinds(said(c)) == ["UpdateAck", "TaskAssignment"]
    assert c.server.counts == {"arrived": 1, "aggregated": 1, "dropped": 0, "discarded": 0, "lost": 0}


def test_a_site_that_has_left_stays_known_and_silent_since_it_was_last_heard() -> None:
    c = coordinator(lease=10.0, clients=2)
    c.receive(0.0, "a", HELLO)
    assert snapshot(c, "").waits_for == "waiting for 2 sites, 1 there"
    c.receive(1.0, "b", HELLO)
    c.disconnected(3.0, "a")
    for now in range(4, 30):
        c.receive(now, "b", Heartbeat())
        c.tick(now)
    seen = snapshot(c, "")
    assert [(site.name, site.state) for site in seen.sites] == [("a", "away"), ("b", "training")]
    assert (seen.sites[0].last_seen, seen.waits_for) == (0.0, None)
    c.tick(400.0)  # the server slept, which its sites are not charged with, but for those that had left
    assert snapshot(c, "").sites[0].last_seen == 0.0


def test_who_comes_back_without_its_task_is_given_another() -> None:
    c = coordinator(lease=10.0)
    c.receive(0.0, "a", HELLO)
    ticks(c, 0.0, 10.0)
    c.take()
    c.receive(11.0, "a", HELLO)
    messages = said(c)
    assert kinds(messages) == ["Registered", "TaskAssignment"]
    assert messages[1].task == 1
    assert list(c.tensors.bases) == [1]
    c.receive(12.0, "a", result(0))
    assert said(c) == [UpdateAck(0, False, "task 0 is over: it was lost")]
    assert not c.rejected


def test_only_so_many_versions_are_kept_for_those_who_left() -> None:
    c = coordinator(clients=5, lease=10.0, remembered=2)
    for i in range(5):
        c.receive(0.0, f"s{i}", HELLO)
    for i in range(3):  # each gets a base of its own
        c.receive(1.0 + i, f"s{i}", result(i))
    for i in range(3):
        c.receive(5.0 + i, f"s{i}", Leave())
    c.receive(9.0, "s3", Leave())
    assert len(c.registry.gone) == 2
    c.take()
    c.receive(10.0, "s0", msgspec.structs.replace(HELLO, holds=5, run="r1"))
    messages = said(c, "s0")
    assert kinds(messages) == ["Registered", "TaskCancel", "TaskAssignment"]
    assert "longer than its lease" in messages[1].reason
    kept = next(iter(c.registry.gone))
    owner = f"s{c.registry.assigned[kept].command.client}"
    c.receive(11.0, owner, msgspec.structs.replace(HELLO, holds=kept, run="r1"))
    assert kinds(said(c, owner)) == ["Registered"]
    assert set(c.tensors.bases) == {t.id for t in c.server.tasks.values()} | set(c.registry.gone)


def test_time_that_the_server_was_away_is_not_held_against_the_sites() -> None:
    c = coordinator(lease=10.0)
    c.receive(0.0, "a", HELLO)
    c.tick(1.0)
    c.tick(500.0)
    ticks(c, 500.0, 508.0)
    assert "left" not in names(c)
    ticks(c, 508.0, 515.0)
    assert "left" in names(c)


def test_time_never_goes_back() -> None:
    c = coordinator()
    c.receive(100.0, "a", HELLO)
    c.receive(3.0, "a", result())
    c.tick(2.0)
    c.receive(50.0, "a", result(1))
    assert [row.t for row in c.take().rows] == [100.0] * 9


class Alarms(Schedule):
    """Sets timers when the run begins, "b" twice."""

    def initial(self) -> None:
        return None

    def on(self, event: Event, state: None, view: View) -> Iterator[Command]:
        if isinstance(event, Begin):
            for timer, at in [("b", 9.0), ("d", 5.0), ("c", 5.0), ("b", 5.0), ("10", 3.0), ("9", 2.0)]:
                yield SetTimer(timer, at)


def test_timers_that_are_due_fire_by_their_time_and_then_in_the_order_of_setting() -> None:
    c = coordinator(replace(ob.fedasync(), schedule=Alarms()))
    c.receive(1.0, "a", HELLO)
    c.take()
    c.tick(6.0)
    assert [row.data["timer"] for row in c.take().rows if row.name == "timer"] == ["9", "10", "d", "c", "b"]


def test_other_data_is_another_site_under_the_same_name() -> None:
    c = coordinator()
    c.receive(0.0, "a", HELLO)
    c.take()
    c.receive(1.0, "a", msgspec.structs.replace(HELLO, samples=31, holds=0, run="r1"))
    outcome = c.take()
    assert [row.name for row in outcome.rows] == ["left", "joined", "train"]
    assert outcome.rows[1].client == 0
    assert c.server.fleet.samples(0) == 31


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("other", [{"samples": 31}, {"steps_per_epoch": 5}, {"labels": (10, 20)}])
def test_an_update_of_other_data_is_not_taken(away: bool, other: dict[str, Any]) -> None:
    """It would weigh as many samples as the site has now."""
    c = coordinator(lease=10.0)
    c.receive(0.0, "a", HELLO)
    if away:
        ticks(c, 0.0, 10.0)
    c.take()
    c.receive(11.0, "a", msgspec.structs.replace(HELLO, holds=0, run="r1", **other))
    registered, cancel, assign = (m for _, m in c.take().messages)
    assert isinstance(registered, Registered)
    assert cancel == TaskCancel(0, "its update is of other data than those that the site has now")
    assert isinstance(assign, TaskAssignment)
    c.receive(12.0, "a", result(0))
    assert kinds(said(c)) == ["UpdateAck"]
    c.receive(13.0, "a", result(assign.task))
    assert c.server.counts == {"arrived": 1, "aggregated": 1, "dropped": 0, "discarded": 0, "lost": 1}


@pytest.mark.parametrize(
    ("hello", "says"),
    [
        (Register(0, 1), "samples = 0"),
        (Register(2**41, 1), "samples = "),
        (Register(5, 6), "steps_per_epoch = 6"),
        (Register(5, 1, (1, 2, 2)), "labels has 3 classes, the run has 2"),
        (Register(5, 1, (6, -1)), "labels must be from 0"),
    ],
)
def test_a_site_that_cannot_take_part_is_told(hello: Register, says: str) -> None:
    c = coordinator()
    c.receive(0.0, "a", hello)
    outcome = c.take()
    ((_, refused),) = outcome.messages
    assert isinstance(refused, Rejected)
    assert refused.final
    assert says in refused.reason
    assert outcome.closed
    assert not c.registry.sites
    assert c.rejected == {"data": 1}


def test_labels_are_asked_for_where_the_algorithm_chooses_by_them() -> None:
    schedule = ob.fedasync(steps=6).schedule
    needy = replace(ob.fedasync(steps=6), schedule=_WithNeeds(schedule, frozenset({Feature.LABELS})))
    c = coordinator(needy)
    c.receive(0.0, "a", HELLO)
    plan, asked = said(c)
    assert plan.plan == c.info.spec  # before it is asked
    assert "by class" in asked.reason
    assert not c.registry.sites
    c.receive(0.0, "a", msgspec.structs.replace(HELLO, labels=(10, 20)))
    assert c.server.fleet.labels(0) == (10, 20)


def test_an_algorithm_that_needs_a_radio_is_refused() -> None:
    schedule = ob.fedasync(steps=6).schedule
    radio = replace(ob.fedasync(steps=6), schedule=_WithNeeds(schedule, frozenset({Feature.RADIO})))
    with pytest.raises(ob.UsageError, match="channel that can be measured, which a network has not"):
        coordinator(radio)


class _WithNeeds:
    """A schedule that says it needs more."""

    provides: frozenset[Feature] = frozenset()

    def __init__(self, schedule: Any, needs: frozenset[Feature]) -> None:
        self._schedule, self.requires = schedule, needs

    concurrency = None

    def initial(self) -> Any:
        return self._schedule.initial()

    def on(self, event: Event, state: Any, view: Any) -> Any:
        return self._schedule.on(event, state, view)


def test_a_request_is_answered_and_answered_again() -> None:
    c = coordinator(ob.fedasmu(epochs=4, size=2, period=0.5, threshold=2), clients=2)
    c.receive(0.0, "a", HELLO)
    c.receive(0.0, "b", HELLO)
    c.tick(0.5)
    assign = said(c)[-1]
    assert isinstance(assign, TaskAssignment)
    assert assign.ask_after
    c.receive(1.0, "a", ModelRequest(assign.task, assign.ask_after + 1))
    wrong = said(c)
    assert kinds(wrong) == ["Rejected", "ModelResponse"]
    assert c.rejected == {"request": 1}
    c.receive(2.0, "a", ModelRequest(assign.task, assign.ask_after))
    (fresh,) = said(c)
    assert isinstance(fresh, ModelResponse)
    c.receive(3.0, "a", ModelRequest(assign.task, assign.ask_after))
    assert said(c) == [fresh]
    c.receive(4.0, "a", msgspec.structs.replace(HELLO, holds=assign.task, run="r1"))
    assert said(c)[1:] == [fresh]
    assert c.server.sent == (1 if fresh.model is not None else 0)


def test_a_recall_is_said_again_to_who_comes_back() -> None:
    c = coordinator(ob.port(steps=6, size=1, tau_max=1, urgent=True), clients=2)
    c.receive(0.0, "a", HELLO)
    c.receive(0.0, "b", HELLO)
    c.take()
    task = 1
    for i in range(3):
        c.receive(1.0 + i, "b", result(task))
        assigned = [m for m in said(c, "b") if isinstance(m, TaskAssignment)]
        c.receive(1.5 + i, "a", msgspec.structs.replace(HELLO, holds=0, run="r1"))
        again = said(c)
        if TaskRecall(0) in again or not assigned:
            break
        task = assigned[0].task
    assert TaskRecall(0) in again
    c.receive(9.0, "a", result(0, steps=3))
    assert said(c)[0] == UpdateAck(0, accepted=True)


def test_a_task_that_is_stopped_is_cancelled_and_its_update_is_answered_as_not_needed() -> None:
    c = coordinator(ob.ringmaster(threshold=1, steps=6), clients=2)
    c.receive(0.0, "a", HELLO)
    c.receive(0.0, "b", HELLO)
    c.take()
    c.receive(1.0, "a", result())
    outcome = c.take()
    assert [(name, type(m).__name__) for name, m in outcome.messages] == [
        ("a", "UpdateAck"), ("b", "TaskCancel"), ("b", "TaskAssignment"), ("a", "TaskAssignment"),
    ]  # fmt: skip
    assert outcome.messages[1][1] == TaskCancel(1, "its delay has reached 1 versions")
    assert (outcome.messages[2][1].task, outcome.messages[2][1].base) == (2, 1)
    assert list(c.tensors.bases) == [2, 3], "the base of the stopped task is free"
    # Its update was on the way. It is no event, and no failure of the site.
    c.receive(1.5, "b", result(1))
    outcome = c.take()
    assert outcome.messages == [("b", UpdateAck(1, False, "its update is not needed"))]
    assert outcome.rows == []
    assert not c.rejected
    assert (c.unused_bytes, c.driver.engine.bytes_up, c.driver.engine.bytes_down) == (12, 12, 48)
    seen = snapshot(c, "")
    assert (seen.discarded, seen.dropped, seen.held, seen.unused_bytes) == (1, 0, 0, 12)
    # A site that comes back with it is told to let it go, and is given its present task.
    c.disconnected(2.0, "b")
    c.receive(3.0, "b", msgspec.structs.replace(HELLO, holds=1, run="r1"))
    told = said(c, "b")
    assert told[1] == TaskCancel(1, "its update is not needed")
    assert (kinds(told[2:]), told[2].task) == (["TaskAssignment"], 2)
    c.receive(4.0, "b", result(2))
    assert said(c, "b")[0] == UpdateAck(2, accepted=True)


class _Holding:
    """A schedule whose clients hold their updates: the first is discarded, the others are let in."""

    requires: frozenset[Feature] = frozenset()
    provides: frozenset[Feature] = frozenset()
    concurrency = None

    def initial(self) -> Any:
        return []

    def on(self, event: Event, state: Any, view: Any) -> Any:
        command: Command
        match event:
            case Begin() | Joined():
                yield from (Train(client, 6, hold=True) for client in view.fleet.idle())
            case Ready(task=0):
                command = Discard(event.client, "not this one")
                yield command
                yield Train(event.client, 6, hold=True)
            case Ready():
                yield Upload(event.client)


def test_an_update_that_is_held_waits_to_be_called() -> None:
    c = coordinator(replace(ob.fedasync(steps=6), schedule=_Holding()))
    c.receive(0.0, "a", HELLO)
    c.take()
    c.receive(1.0, "a", UpdateReady(0, 6, {"norm": 1.0}))
    assert kinds(said(c)) == ["TaskCancel", "TaskAssignment"]
    c.receive(2.0, "a", UpdateReady(1, 6, {"norm": 1.0}))
    assert said(c) == [UploadGrant(1)]
    c.receive(2.5, "a", UpdateReady(1, 6, {"norm": 1.0}))
    assert said(c) == [UploadGrant(1)]
    c.receive(3.0, "a", msgspec.structs.replace(HELLO, holds=1, run="r1"))
    assert said(c)[1:] == [UploadGrant(1)]
    c.receive(4.0, "a", result(1))
    assert said(c) == [UpdateAck(1, accepted=True)]
    c.receive(5.0, "a", msgspec.structs.replace(HELLO, holds=0, run="r1"))
    assert said(c)[1] == TaskCancel(0, "its update is not needed")


def test_the_names_of_what_is_ready_are_bounded_too() -> None:
    c = coordinator(replace(ob.fedasync(steps=6), schedule=_Holding()))
    c.receive(0.0, "a", HELLO)
    c.take()
    c.receive(1.0, "a", UpdateReady(0, 6, {f"m{n}": 1.0 for n in range(101)}))
    (ready,) = (row.flat() for row in c.take().rows if row.name == "ready")
    assert sum(name.startswith("m") for name in ready) == 100


def test_an_update_that_was_to_wait_is_not_taken() -> None:
    c = coordinator(replace(ob.fedasync(steps=6), schedule=_Holding()))
    c.receive(0.0, "a", HELLO)
    c.take()
    c.receive(1.0, "a", result(0))
    assert said(c)[0] == UpdateAck(0, False, "task 0 has no grant to send its update")
    assert c.server.counts["lost"] == 1


def test_the_end_is_told_to_all_and_to_whoever_comes_late() -> None:
    c = coordinator(clients=2, until=ob.Until(tasks=1))
    c.receive(0.0, "a", HELLO)
    c.receive(0.0, "b", HELLO)
    c.disconnected(0.5, "b")
    c.take()
    c.receive(1.0, "a", result())
    outcome = c.take()
    assert outcome.messages[-1] == ("a", RunFinished("reached 1 client tasks"))
    assert c.stopped == "reached 1 client tasks"
    c.receive(2.0, "b", HELLO)
    assert said(c, "b") == [RunFinished("reached 1 client tasks")]
    c.tick(1e9)
    assert not c.take().rows


def test_the_seconds_of_the_run_end_it() -> None:
    c = coordinator(until=ob.Until(seconds=30.0), lease=1e6)
    c.receive(0.0, "a", HELLO)
    assert c.next_due() == 30.0
    c.tick(29.9)
    assert c.stopped is None
    c.tick(30.0)
    assert c.stopped == "reached 30 seconds"


def test_reasons_of_sites_are_one_short_line() -> None:
    c = coordinator()
    c.receive(0.0, "a", HELLO)
    c.take()
    c.receive(1.0, "a", TaskFailed(0, "line\nbreak\x1b[31m " + 1000 * "x"))
    reason = next(row for row in c.take().rows if row.name == "lost").data["reason"]
    assert reason.startswith("line break [31m xxx")
    assert len(reason) == 500


def test_seconds_and_evaluations_by_time_count_from_the_beginning() -> None:
    """A server may wait for two days; a coordinator that is brought back counts from the same moment."""
    days = 172_800.0
    c = coordinator(clients=2, until=ob.Until(seconds=100.0), evaluate=ob.Every(seconds=30.0), lease=1000.0)
    c.receive(7.0, "a", HELLO)
    for now in np.arange(0.0, days, 400.0):
        c.heartbeat(float(now), "a")
        c.tick(float(now))
    assert c.stopped is None
    c.take()
    c.receive(days, "b", HELLO)
    c.tick(days)
    assert [e.t for e in c.take().evaluations] == [days]
    assert c.next_due() == days + 30.0
    c.tick(days + 31.0)
    c.tick(days + 59.0)
    assert [e.t for e in c.take().evaluations] == [days + 31.0]
    assert c.next_due() == days + 60.0
    c.tick(days + 99.9)
    assert c.stopped is None
    c.tick(days + 100.0)
    assert c.stopped == "reached 100 seconds"


def test_a_coordinator_that_is_brought_back_knows_when_the_run_began() -> None:
    c = coordinator(until=ob.Until(seconds=100.0), lease=1000.0)
    c.receive(500.0, "a", HELLO)
    rows = c.take().rows
    assert [row.name for row in rows] == ["joined", "begin", "train"]
    back = coordinator(until=ob.Until(seconds=100.0), lease=1000.0)
    back.registry.add("a", 0)
    back.replay(rows[:1], None)
    back.replay(rows[1:], None)
    back.end_replay(550.0)
    assert back.next_due() == 600.0
    back.tick(599.0)
    assert back.stopped is None
    back.tick(600.0)
    assert back.stopped == "reached 100 seconds"


def test_a_server_that_waited_for_more_begins_with_those_it_has() -> None:
    """Started again with fewer: they are in its books already, and nobody else may ever come."""
    c = coordinator(clients=3)
    for name in ("a", "b"):
        c.receive(0.0, name, HELLO)
    rows = c.take().rows
    assert [row.name for row in rows] == ["joined", "joined"]
    back = coordinator(clients=2)
    for client, (name, row) in enumerate(zip(("a", "b"), rows, strict=True)):
        back.registry.add(name, client)
        back.replay([row], None)
    back.end_replay(1.0)
    back.receive(2.0, "a", HELLO)
    assert names(back) == ["begin", "train", "train"]
    back.receive(3.0, "b", HELLO)
    assert names(back) == []


@pytest.mark.parametrize("what", ["other steps", "one too many", "one too few"])
def test_a_past_that_does_not_come_again_is_an_error_that_says_where(what: str) -> None:
    c = coordinator(lease=1000.0)
    c.receive(500.0, "a", HELLO)
    joined, begin, train = c.take().rows
    recorded, says = {
        "other steps": (
            [begin, msgspec.structs.replace(train, steps=7)],
            r"now gives Row\(.*steps=6.*, the journal has .*steps=7",
        ),
        "one too many": (
            [begin, train, msgspec.structs.replace(train, seq=3)],
            r"now gives None, the journal has Row\(seq=3",
        ),
        "one too few": ([begin], r"now gives Row\(seq=2, .*'train'.*, the journal has None"),
    }[what]
    back = coordinator(lease=1000.0)
    back.registry.add("a", 0)
    back.replay([joined], None)
    with pytest.raises(ob.RunError, match=says):
        back.replay(recorded, None)


def failing(c: Coordinator, now: float, task: int) -> float | None:
    """A site fails its task; for how long it is sent away, if it is."""
    c.receive(now, "a", TaskFailed(task, "the scanner is off"))
    outcome = c.take()
    if not outcome.closed:
        assert [row.name for row in outcome.rows] == ["lost", "train"]
        return None
    ((name, reason),) = outcome.closed
    assert name == "a"
    assert re.search(r"^sent away \(consecutive failures: \d+\), the last: the scanner is off$", reason)
    (left,) = outcome.rows
    assert (left.name, left.task, left.data) == ("left", task, {"reason": reason})
    c.receive(now, "a", HELLO)
    outcome = c.take()
    ((_, refused),) = outcome.messages
    assert isinstance(refused, Rejected)
    assert not refused.final
    assert not outcome.rows
    assert outcome.closed
    wait = re.search(r"it may come back in (\d+) (s|min)$", refused.reason)
    assert wait is not None, refused.reason
    return float(wait[1]) * (60 if wait[2] == "min" else 1)


def test_a_site_of_which_nothing_comes_is_sent_away_for_longer_each_time() -> None:
    c = coordinator(lease=1e6)
    c.receive(0.0, "a", HELLO)
    c.take()
    assert [failing(c, 1.0, task) for task in range(5)] == [None] * 4 + [30.0]
    now, task, absences = 1.0, 5, [30.0]
    for _ in range(7):
        c.receive(now + absences[-1] - 0.1, "a", HELLO)
        assert kinds(said(c)) == ["Rejected"]
        now += absences[-1]
        assert c.may_register(now, "a")
        c.receive(now, "a", HELLO)
        assert kinds(said(c)) == ["Registered", "TaskAssignment"]
        absences.append(failing(c, now, task) or 0.0)
        assert not c.may_register(now, "a")
        task += 1
    assert absences == [30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0, 600.0]
    c.receive(now + 600.0, "a", HELLO)
    c.receive(now + 601.0, "a", result(task))
    assert UpdateAck(task, accepted=True) in said(c)
    assert [failing(c, now + 602.0, task + 1 + k) for k in range(5)] == [None] * 4 + [30.0]


def test_a_site_that_is_sent_away_keeps_nobody_waiting() -> None:
    """A round goes on with the others, as it does without a site that has left."""
    c = coordinator(ob.fedavg(steps=6), clients=2, max_consecutive_failures=2)
    c.receive(0.0, "a", HELLO)
    c.receive(0.0, "b", HELLO)
    c.take()
    for version in range(4):
        task = c.server.tasks.get(0)
        if task is not None:
            c.receive(1.0, "a", result(task.id, delta=torch.full((D,), float("nan"))))
        c.receive(1.0, "b", result(c.server.tasks[1].id))
        assert c.server.version == version + 1
    assert not c.registry.sites["a"].present
    assert c.rejected == {"not finite": 2}


@pytest.mark.parametrize("how", ["fails", "nonsense", "nonsense done", "goodbye", "other data"])
def test_however_a_site_wastes_its_time_the_journal_grows_slowly(how: str) -> None:
    """An hour at ten messages a second: some rows for each absence."""
    c = coordinator(lease=1e6)
    now, samples, rows = 0.0, 30, 0
    while now < 3600.0:
        site = c.registry.sites.get("a")
        task = c.server.tasks.get(0)
        if site is None or not site.present:
            c.receive(now, "a", msgspec.structs.replace(HELLO, samples=samples))
        elif how == "goodbye" or task is None:
            c.receive(now, "a", Leave())
        elif how == "other data":
            samples = 61 - samples
            c.receive(now, "a", msgspec.structs.replace(HELLO, samples=samples))
        elif how == "fails":
            c.receive(now, "a", TaskFailed(task.id, "no"))
        elif how == "nonsense":
            c.receive(now, "a", result(task.id, steps=0))
        else:
            c.receive(now, "a", UpdateReady(task.id, 0))
        rows += len(c.take().rows)
        now += 0.1
    assert 20 < rows < 100


def test_failures_in_a_row_can_be_allowed() -> None:
    c = coordinator(max_consecutive_failures=None)
    c.receive(0.0, "a", HELLO)
    c.take()
    assert [failing(c, 1.0, task) for task in range(50)] == [None] * 50


def test_a_lease_that_is_over_is_no_setback() -> None:
    c = coordinator(lease=10.0, max_consecutive_failures=1)
    c.receive(0.0, "a", HELLO)
    ticks(c, 0.0, 10.0)
    c.receive(11.0, "a", HELLO)
    assert kinds(said(c))[-2:] == ["Registered", "TaskAssignment"]
