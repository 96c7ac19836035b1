"""Evaluations at sites, message by message: who is asked, when one is done, how a run ends."""

from contextlib import nullcontext
from math import inf, nan
from typing import Any

import pytest
import torch

import offbeat as ob
from offbeat.core.learner import LocalResult, NoTraining
from offbeat.net.messages import (
    EvaluationRequest,
    EvaluationResult,
    Leave,
    Register,
    Registered,
    Rejected,
    RunFinished,
    TaskAssignment,
    UpdateAck,
    UpdateSubmission,
)
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.effects import Effects
from offbeat.net.server.handlers import RunInfo
from tests.net.support import coordinator_from, terms_of

HELLO = Register(samples=30, steps_per_epoch=3, held_out=8)
NONE = Register(samples=30, steps_per_epoch=3)
NOBODY = torch.zeros(0, dtype=torch.int64)


def coordinator(
    every: ob.Every | None = None,
    sites: int = 2,
    higher_is_better: dict[str, bool] | None = None,
    **options: Any,
) -> Coordinator:
    """FedBuff that aggregates each update, with sites that hold out samples."""
    options = {"clients": sites, "lease": 50.0, "evaluation_timeout": 5.0, **options}
    c = coordinator_from(
        ob.fedbuff(1, steps=4),
        NoTraining(1, 3).initial(0),
        terms_of(evaluate=every or ob.Every(versions=1, at="clients"), **options),
        RunInfo("r1", {"a": 1}, classes=2, batch_size=10),
        higher_is_better or {},
        seed=1,
    )
    for i in range(sites):
        c.receive(float(i), "ab"[i], HELLO)
    return c


def took(c: Coordinator, now: float) -> Effects:
    c.tick(now)
    return c.take()


def asked(effects: Effects) -> list[tuple[str, int]]:
    return [(name, m.version) for name, m in effects.messages if isinstance(m, EvaluationRequest)]


def found(version: int, accuracy: float = 0.5, samples: int = 8, **more: float) -> EvaluationResult:
    return EvaluationResult(version, samples, {"accuracy": accuracy, **more})


def update(c: Coordinator, now: float, site: str, task: int) -> None:
    c.receive(now, site, UpdateSubmission(task, 4, torch.ones(3), NOBODY, lr=0.1))


def test_sites_are_asked_after_their_tasks_and_the_evaluation_is_done_when_all_have_answered() -> None:
    c = coordinator()
    first = took(c, 2.0)
    assert asked(first) == [("a", 0), ("b", 0)]
    assert first.metrics == first.evaluations == []
    c.receive(3.0, "a", found(0, 0.25))
    c.receive(3.0, "a", found(0, 0.75))  # the second time changes nothing
    assert took(c, 3.0).metrics == []
    c.receive(4.0, "b", found(0, 0.75))
    done = took(c, 4.0)
    assert done.metrics[0].found == {
        "clients.count": 2.0, "clients.accuracy": 0.5, "clients.accuracy.worst": 0.25,
        "clients.accuracy.p10": pytest.approx(0.3), "clients.accuracy.p50": 0.5,
        "clients.accuracy.p90": pytest.approx(0.7),
    }  # fmt: skip
    assert (done.metrics[0].version, done.metrics[0].t) == (0, 1.0)
    assert [tuple(row) for row in done.client_metrics] == [
        (0, 0, 8, {"accuracy": 0.25}), (0, 1, 8, {"accuracy": 0.75}),
    ]  # fmt: skip
    update(c, 5.0, "a", 0)
    kinds = [type(m) for name, m in took(c, 5.0).messages if name == "a"]
    assert kinds == [UpdateAck, TaskAssignment, EvaluationRequest]


def test_a_metric_that_the_sites_do_not_give_ends_no_run_and_is_refused_when_they_have_evaluated() -> None:
    for name, refused in (("clients.acuracy", True), ("clients.accuracy.p10", False)):
        c = coordinator(until=ob.Until(metric=name, reaches=0.9))
        for site in "ab":
            c.receive(2.0, site, found(0))
        complaint = pytest.raises(ob.UsageError, match=r"there is no metric 'clients\.acuracy'")
        with complaint if refused else nullcontext():
            assert len(took(c, 2.0).metrics) == 1


def test_the_worst_site_is_that_of_the_learners_direction() -> None:
    c = coordinator(higher_is_better={"distance": False})
    for site, distance in (("a", 1.0), ("b", 3.0)):
        c.receive(2.0, site, found(0, distance=distance))
    (row,) = took(c, 2.0).metrics
    assert row.found["clients.distance.worst"] == 3.0
    assert row.found["clients.accuracy.worst"] == 0.5


def test_one_version_at_a_time_then_the_newest() -> None:
    c = coordinator()
    c.take()
    for task, site in ((0, "a"), (1, "b"), (2, "a")):
        update(c, 2.0, site, task)
    assert asked(took(c, 2.0)) == []
    c.receive(3.0, "a", found(3))  # of a version that was not asked for
    c.receive(3.0, "a", found(0))
    c.receive(3.0, "b", found(0))
    effects = took(c, 3.0)
    assert [m.version for m in effects.metrics] == [0]
    assert asked(effects) == [("a", 3), ("b", 3)]


def test_at_the_deadline_it_is_done_with_those_that_have_answered() -> None:
    c = coordinator()
    c.take()
    c.receive(2.0, "a", found(0))
    c.tick(2.0)
    assert c.next_due() == 6.0  # asked at 1
    assert took(c, 5.9).metrics == []
    (row,) = took(c, 6.0).metrics
    assert row.found["clients.count"] == 1.0
    c.receive(7.0, "b", found(0))  # too late
    effects = took(c, 7.0)
    assert effects.metrics == effects.messages == []


def test_who_leaves_or_fails_is_not_waited_for_and_without_answers_there_is_no_row() -> None:
    c = coordinator()
    c.take()
    c.receive(2.0, "a", Leave("bye"))
    c.receive(2.0, "b", EvaluationResult(0, 0, {}, "out of memory"))
    effects = took(c, 2.0)
    assert effects.metrics == []
    assert c.driver.client_evaluations is not None
    assert c.driver.client_evaluations.idle


def test_a_site_that_is_back_is_asked_again_and_one_that_comes_is_asked_too() -> None:
    c = coordinator()
    c.take()
    c.disconnected(2.0, "a")
    c.receive(2.0, "b", found(0))
    assert took(c, 2.0).metrics == []
    c.receive(3.0, "a", HELLO)
    c.receive(3.0, "c", HELLO)
    c.receive(3.0, "d", NONE)
    c.receive(3.0, "b", HELLO)  # has answered
    assert asked(took(c, 3.0)) == [("a", 0), ("c", 0)]
    c.receive(4.0, "a", found(0))
    c.receive(4.0, "c", found(0))
    assert took(c, 4.0).metrics[0].found["clients.count"] == 3.0


def test_sites_that_hold_out_nothing_are_never_asked() -> None:
    c = coordinator(sites=0, clients=1)
    c.receive(0.0, "a", NONE)
    effects = took(c, 0.0)
    assert asked(effects) == []
    assert effects.metrics == []
    assert c.next_due() == 50.0


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (found(0, samples=9), "samples = 9 is not allowed: the site registered with 8 held out"),
        (EvaluationResult(0, 8, {"": 1.0}), "metric '' is not allowed"),
        (EvaluationResult(0, 8, {"a\nb": 1.0}), "is not allowed"),
        (EvaluationResult(0, 8, {"$(id)": 1.0}), "metric '$(id)' is not allowed: a metric's name has"),
        (EvaluationResult(0, 8, {"count": 1.0}), "metric 'count' is not allowed"),
        (EvaluationResult(0, 8, {"loss.worst": 1.0}), "metric 'loss.worst' is not allowed"),
    ],
)
def test_what_cannot_be_an_evaluation_is_refused_and_counted(result: EvaluationResult, said: str) -> None:
    c = coordinator()
    c.take()
    c.receive(2.0, "a", result)
    c.receive(2.0, "b", found(0))
    effects = took(c, 2.0)
    ((name, message),) = effects.messages
    assert (name, type(message)) == ("a", Rejected)
    assert isinstance(message, Rejected)
    assert said in message.reason
    assert not message.final
    assert c.rejected.total() == 1
    assert effects.metrics[0].found["clients.count"] == 1.0


def test_the_names_of_all_sites_together_are_bounded() -> None:
    c = coordinator()
    c.take()
    c.receive(2.0, "a", EvaluationResult(0, 8, {f"a{i}": 1.0 for i in range(60)}))
    c.receive(2.0, "b", EvaluationResult(0, 8, {f"b{i}": 1.0 for i in range(60)}))
    effects = took(c, 2.0)
    found = effects.metrics[0].found
    assert found["clients.count"] == 2.0, "no site is refused for the names of another one"
    assert "clients.a59" in found
    assert "clients.b39" in found
    assert "clients.b40" not in found
    assert not effects.messages


def test_the_names_of_all_evaluations_together_are_bounded() -> None:
    """The next evaluation has no new hundred: each name is a column of the run's record."""
    c = coordinator(sites=1, higher_is_better={"dice": True})
    c.take()
    c.receive(2.0, "a", found(0, dice=0.5, **{f"a{i}": 1.0 for i in range(98)}))
    assert "clients.a97" in took(c, 2.0).metrics[0].found
    for version, names, kept in [
        (1, ["b0", "b1", "b2"], {"b0", "b1"}),
        (2, ["b0", "b1"], {"b0", "b1"}),
        (3, ["c0"], set[str]()),
        (4, ["a97", "b1"], {"a97", "b1"}),
    ]:
        update(c, 2.0 + version, "a", version - 1)
        took(c, 2.0 + version)
        c.receive(2.5 + version, "a", found(version, dice=0.5, **dict.fromkeys(names, 1.0)))
        recorded = took(c, 2.5 + version).metrics[0].found
        assert {name for name in names if f"clients.{name}" in recorded} == kept


def test_what_is_undefined_or_infinite_at_a_site_is_counted_and_never_in_a_mean() -> None:
    c = coordinator()
    c.take()
    c.receive(2.0, "a", found(0, 0.5, auroc=nan, loss=inf))
    c.receive(2.0, "b", found(0, 0.5, auroc=0.75, loss=1.0))
    effects = took(c, 2.0)
    numbers = effects.metrics[0].found
    assert (numbers["clients.auroc"], numbers["clients.auroc.undefined"]) == (0.75, 1.0)
    assert (numbers["clients.loss"], numbers["clients.loss.undefined"]) == (1.0, 1.0)
    assert effects.client_metrics[0].data == {"accuracy": 0.5, "auroc": None, "loss": None}


def test_with_both_a_row_waits_for_the_server_too() -> None:
    c = coordinator(ob.Every(versions=1, at="both"))
    (evaluation,) = c.take().evaluations
    c.receive(2.0, "a", found(0))
    c.receive(2.0, "b", found(0))
    assert took(c, 20.0).metrics == []  # whatever the deadline
    c.evaluated([(evaluation, {"accuracy": 0.9})])
    (row,) = took(c, 21.0).metrics
    assert (row.accuracy, row.found["clients.accuracy"]) == (0.9, 0.5)


def test_the_run_ends_when_its_last_version_has_been_evaluated() -> None:
    c = coordinator(ob.Every(versions=3, at="clients"), until=ob.Until(tasks=1))
    c.take()
    for site in "ab":
        c.receive(1.0, site, found(0))
    took(c, 1.0)
    update(c, 2.0, "a", 0)
    effects = took(c, 2.0)
    assert asked(effects) == [("a", 1), ("b", 1)]
    assert c.stopped is None
    assert not any(isinstance(m, RunFinished) for _, m in effects.messages)
    update(c, 2.5, "b", 1)  # its task is over: no event happens any more
    c.receive(2.5, "new", HELLO)
    c.disconnected(2.5, "b")
    c.receive(2.6, "b", HELLO)
    effects = took(c, 2.6)
    assert effects.rows == []
    assert [(name, type(m)) for name, m in effects.messages] == [
        ("new", RunFinished), ("b", Registered), ("b", EvaluationRequest),
    ]  # fmt: skip
    c.receive(3.0, "a", found(1))
    c.receive(3.0, "b", Leave("bye"))
    effects = took(c, 3.0)
    assert [m.version for m in effects.metrics] == [1]
    assert c.stopped == "reached 1 client tasks"
    assert [(name, type(m)) for name, m in effects.messages] == [("a", RunFinished)]
    assert c.last_evaluation() is None


def test_the_end_waits_for_a_lost_site_until_the_deadline_only() -> None:
    c = coordinator(ob.Every(versions=3, at="clients"), until=ob.Until(seconds=10.0))
    c.take()
    took(c, 6.0)
    update(c, 7.0, "a", 0)
    assert asked(took(c, 11.0)) == [("a", 1), ("b", 1)]
    c.receive(12.0, "a", found(1))
    assert took(c, 15.9).metrics == []
    assert c.next_due() == 16.0
    assert c.stopped is None
    assert took(c, 16.0).metrics[0].found["clients.count"] == 1.0
    assert c.stopped == "reached 10 seconds"


def test_after_a_restart_the_end_waits_for_sites_that_come_back() -> None:
    """It is not known whether they hold out samples before they register."""
    c = coordinator(ob.Every(versions=3, at="clients"), until=ob.Until(tasks=1))
    update(c, 2.0, "a", 0)
    rows = c.take().rows
    again = coordinator(ob.Every(versions=3, at="clients"), sites=0, clients=2, until=ob.Until(tasks=1))
    for client, name in enumerate("ab"):
        again.registry.add(name, client)
    again.replay(rows, update_of)
    again.end_replay(3.0)
    assert asked(took(again, 3.0)) == []
    assert again.stopped is None
    again.receive(4.0, "a", HELLO)
    again.receive(4.0, "b", NONE)
    assert asked(took(again, 4.0)) == [("a", 1)]
    again.receive(5.0, "a", found(1))
    effects = took(again, 5.0)
    assert effects.metrics[0].found["clients.count"] == 1.0
    assert again.stopped == "reached 1 client tasks"


def update_of(event: Any) -> Any:
    return LocalResult(torch.ones(3), NOBODY, event.metrics, 0.1)
