"""The auditor of journals finds what is wrong with one, and says which task, when and which rule."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

import offbeat as ob
from offbeat.core.journal import Row
from offbeat.testing import CALM, HARD, JournalError, check_journal

Rows = list[Row]


@cache
def journal(name: str) -> tuple[Row, ...]:
    algorithm, world = {
        "calm": (ob.fedbuff(2, steps=4), CALM),
        "hard": (ob.fedbuff(2, steps=4), HARD),
        "asks": (ob.fedasmu(epochs=4, size=2, threshold=5, period=5.0), CALM),
        "timers": (ob.fedcompass(4, 20), CALM),
        "recalls": (ob.port(epochs=12, size=1, tau_max=2, urgent=True), CALM),
        "radio": (ob.wireless(steps=4, scheduled=2, policy={"kind": "best_channel"}), CALM),
    }[name]
    learner = ob.NoTraining(5, parameters=3, samples_per_client=8, batches=4)
    run = ob.simulate(algorithm, world, learner, until=ob.Until(tasks=60))
    return tuple(run.rows())


def where(rows: Rows, name: str, nth: int = 5) -> int:
    return [i for i, row in enumerate(rows) if row.name == name][nth]


def numbered(rows: Rows) -> Rows:
    return [replace(row, seq=i) for i, row in enumerate(rows)]


def changed(kind: str, /, nth: int = 5, **columns: Any) -> Callable[[Rows], Rows]:
    """One row has other values; a function makes one of the old value, `data` is put over the old data."""

    def change(rows: Rows) -> Rows:
        at = where(rows, kind, nth)
        row = rows[at]
        new = {k: v(getattr(row, k)) if callable(v) else v for k, v in columns.items()}
        if "data" in new:
            new["data"] = {**(row.data or {}), **new["data"]}
        return [*rows[:at], replace(row, **new), *rows[at + 1 :]]

    return change


def missing(name: str, nth: int = 5) -> Callable[[Rows], Rows]:
    def change(rows: Rows) -> Rows:
        at = where(rows, name, nth)
        return numbered([*rows[:at], *rows[at + 1 :]])

    return change


def twice(name: str, nth: int = 5) -> Callable[[Rows], Rows]:
    def change(rows: Rows) -> Rows:
        at = where(rows, name, nth)
        return numbered([*rows[: at + 1], *rows[at:]])

    return change


def unasked(rows: Rows) -> Rows:
    """A model is sent, and another event is in the place of the request for it."""
    at = where(rows, "send", 0)
    while rows[at].name != "wants_model":
        at -= 1
    other = Row(at, rows[at].t, "event", "joined", 9, version=rows[at].version)
    return [*rows[:at], other, *rows[at + 1 :]]


def idle(rows: Rows) -> Rows:
    """Nobody is given anything from some event on."""
    at = where(rows, "begin", 0)
    return rows[: at + 1]


@pytest.mark.parametrize("name", ["calm", "hard", "asks", "timers", "recalls", "radio"])
def test_a_good_journal_passes(name):
    rows = journal(name)
    audit = check_journal(rows)
    assert len(audit.staleness) == sum(row.name == "arrived" for row in rows) == 60
    assert audit.version == sum(row.name == "aggregate" for row in rows) > 0


FAULTS = [
    ("calm", changed("arrived", seq=3), "time"),
    ("calm", changed("arrived", t=0.5), "time"),
    ("calm", changed("train", t=lambda t: t + 1, nth=9), "time"),
    ("calm", changed("arrived", name="came"), "time"),
    ("calm", changed("train", name="teach"), "time"),
    ("calm", changed("arrived", name="begin"), "time"),
    ("calm", changed("arrived", version=lambda v: v + 1), "version"),
    ("calm", changed("aggregate", version=lambda v: v + 1), "version"),
    ("calm", missing("aggregate"), "dispatch"),
    ("calm", changed("train", client=4, nth=8), "dispatch"),
    ("calm", changed("train", client=9, nth=8), "dispatch"),
    ("calm", changed("train", task=lambda t: t + 1), "dispatch"),
    ("calm", changed("train", base=lambda b: b - 1, nth=9), "dispatch"),
    ("calm", changed("train", steps=0), "dispatch"),
    ("calm", twice("joined", 2), "dispatch"),
    ("calm", missing("begin", 0), "dispatch"),
    ("calm", twice("arrived"), "one end"),
    ("calm", changed("arrived", task=lambda t: t + 1), "one end"),
    ("calm", changed("aggregate", data={"tasks": [0, 1]}), "one end"),
    ("calm", changed("aggregate", data={"tasks": []}), "one end"),
    ("calm", missing("arrived"), "one end"),
    ("hard", twice("lost", 0), "one end"),
    ("hard", changed("left", task=None, nth=0), "one end"),
    ("calm", changed("arrived", base=lambda b: b + 1), "staleness"),
    ("calm", changed("arrived", staleness=lambda s: s + 1), "staleness"),
    ("calm", changed("arrived", steps=3), "steps"),
    ("recalls", changed("arrived", steps=99, nth=20), "steps"),
    ("recalls", missing("recall", 0), "steps"),
    ("recalls", twice("recall", 0), "steps"),
    ("asks", changed("wants_model", steps=99), "requests"),
    ("asks", changed("wants_model", base=lambda b: b + 1), "requests"),
    ("asks", unasked, "requests"),
    ("asks", twice("send", 0), "requests"),
    ("asks", changed("send", version=lambda v: v + 1, nth=0), "requests"),
    ("radio", missing("upload", 0), "hold"),
    ("radio", twice("ready", 0), "hold"),
    ("radio", twice("upload", 0), "hold"),
    ("radio", twice("measure", 0), "hold"),
    ("radio", twice("measured", 0), "hold"),
    ("radio", changed("discard", data={"reason": ""}, nth=0), "hold"),
    ("radio", twice("discard", 0), "one end"),
    ("timers", missing("timer_set", 0), "timers"),
    ("timers", changed("timer_set", data={"at": 0.0}), "timers"),
    ("asks", changed("timer", data={"timer": "another"}, nth=0), "timers"),
    ("calm", idle, "liveness"),
]


@pytest.mark.parametrize(("name", "fault", "rule"), FAULTS, ids=lambda v: v if isinstance(v, str) else "")
def test_a_fault_is_found_and_named(name, fault, rule):
    with pytest.raises(JournalError, match=rf" at [0-9.e+]+ s: {rule}: ") as caught:
        check_journal(fault(list(journal(name))))
    assert "\n" not in str(caught.value)


def test_the_error_names_the_task_the_time_and_the_rule():
    rows = list(journal("calm"))
    row = rows[where(rows, "arrived")]
    with pytest.raises(JournalError) as caught:
        check_journal(changed("arrived", staleness=7)(rows))
    assert str(caught.value) == (
        f"task {row.task} at {row.t:g} s: staleness: 7, but {row.staleness} versions since base"
    )


def test_a_command_before_any_event_is_found():
    with pytest.raises(JournalError, match="the command train comes before any event"):
        check_journal([Row(0, 0.0, "command", "train", 0, 0, 0, 0, None, 1)])


def test_an_invariant_is_checked_after_each_event():
    seen: list[int] = []
    check_journal(journal("calm"), lambda audit: seen.append(len(audit.running)))
    assert len(seen) == sum(row.kind == "event" for row in journal("calm"))
    assert max(seen) == 5

    with pytest.raises(JournalError, match="mine: five train"):
        check_journal(
            journal("calm"), lambda audit: audit.check(len(audit.running) < 5, "mine", "five train")
        )
