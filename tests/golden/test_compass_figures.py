"""FedCompass's worked examples: the paper's Figures 1, 20, 21 and 22, to the second.

Five clients at 10, 5, 4, 2.5 and 2 steps a minute; Q_min = 20, Q_max = 100, λ = 1.2. The paper counts
clients from 1, the code from 0.
"""

from typing import Any

import pytest

import offbeat as ob
from offbeat.core.commands import Aggregate, CancelTimer, SetTimer, Train
from offbeat.core.events import Arrived, Begin, Joined
from offbeat.core.server import Server

SPEEDS = [6.0, 12.0, 15.0, 24.0, 30.0]  # seconds per step


def clock(text: str) -> float:
    minutes, seconds = text.split(":")
    return 60.0 * int(minutes) + float(seconds)


def row(start: str, client: int, steps: int, group: int, T_a: str, T_max: str) -> tuple[Any, ...]:
    """A task of a client counted from 1, with times mm:ss."""
    return clock(start), client - 1, steps, group, clock(T_a), clock(T_max)


def world(speeds: Any) -> ob.World:
    return ob.World(seconds_per_step=speeds, clients=5 if callable(speeds) else None)


def figure(speeds: Any, until: str) -> ob.Run:
    run = ob.simulate(ob.fedcompass(20, 100), world=world(speeds), until=ob.Until(seconds=clock(until)))
    assert run.stop_reason == f"reached {clock(until):g} seconds"
    return run


def tasks(run: ob.Run) -> list[tuple[Any, ...]]:
    """Every task that was given to an arrival group."""
    trains = run.entries("train")
    assert [(e["t"], e["client"], e["steps"]) for e in trains[:5]] == [(0.0, c, 20) for c in range(5)]
    assert all("group" not in e for e in trains[:5])
    return [(e["t"], e["client"], e["steps"], e["group"], e["T_a"], e["T_max"]) for e in trains[5:]]


def same(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> None:
    assert [t[1:4] for t in found] == [t[1:4] for t in expected]
    for f, e in zip(found, expected, strict=True):
        assert (f[0], *f[4:]) == pytest.approx((e[0], *e[4:]), abs=1e-6)


def arrivals(run: ob.Run, client: int) -> list[float]:
    return [pytest.approx(e["t"], abs=1e-6) for e in run.entries("arrived") if e["client"] == client - 1]


def groups(run: ob.Run) -> list[tuple[Any, ...]]:
    """Group aggregations: time, group, clients (from 1)."""
    found = [e for e in run.entries("aggregate") if "group" in e]
    return [(pytest.approx(e["t"], abs=1e-6), e["group"], [c + 1 for c in e["clients"]]) for e in found]


START = [
    row("2:00", 1, 100, 1, "12:00", "14:00"),
    row("4:00", 2, 40, 1, "12:00", "14:00"),
    row("5:00", 3, 28, 1, "12:00", "14:00"),
    row("8:00", 4, 35, 2, "22:00", "24:48"),  # T_exp = 12:00 + 10 min; λ·14 min = 16:48 after 8:00
    row("10:00", 5, 24, 2, "22:00", "24:48"),
]


def with_third_client(seconds: float) -> tuple[Any, Any]:
    """Client 3 takes so long a step from its second task on: as a function and as lists."""

    def speed(client: int, task: int) -> float:
        return seconds if client == 2 and task >= 1 else SPEEDS[client]

    return speed, [[SPEEDS[2], seconds] if c == 2 else [s] for c, s in enumerate(SPEEDS)]


def test_figure_1():
    run = figure(SPEEDS, "33:00")
    same(
        tasks(run),
        [
            *START,
            row("12:00", 1, 100, 2, "22:00", "24:48"),
            row("12:00", 2, 50, 2, "22:00", "24:48"),
            row("12:00", 3, 40, 2, "22:00", "24:48"),
            row("22:00", 1, 100, 3, "32:00", "34:00"),
            row("22:00", 2, 50, 3, "32:00", "34:00"),
            row("22:00", 3, 40, 3, "32:00", "34:00"),
            row("22:00", 4, 25, 3, "32:00", "34:00"),
            row("22:00", 5, 20, 3, "32:00", "34:00"),
            row("32:00", 1, 100, 4, "42:00", "44:00"),
            row("32:00", 2, 50, 4, "42:00", "44:00"),
            row("32:00", 3, 40, 4, "42:00", "44:00"),
            row("32:00", 4, 25, 4, "42:00", "44:00"),
            row("32:00", 5, 20, 4, "42:00", "44:00"),
        ],
    )
    assert [(t, g, sorted(c)) for t, g, c in groups(run)] == [
        (clock("12:00"), 1, [1, 2, 3]),
        (clock("22:00"), 2, [1, 2, 3, 4, 5]),
        (clock("32:00"), 3, [1, 2, 3, 4, 5]),
    ]
    first = [(e["t"], e["clients"], e["server_step"]) for e in run.entries("aggregate") if e.get("first")]
    assert first == [(clock(t), [c], False) for c, t in enumerate(["2:00", "4:00", "5:00", "8:00", "10:00"])]
    assert run.entries("timer") == []
    # versions published while client 4 trained from 8:00 (version 4): client 5's and group 1's
    assert [e["staleness"] for e in run.entries("arrived") if e["client"] == 3] == [3, 2, 0]


@pytest.mark.parametrize("form", [0, 1], ids=["function", "lists"])
def test_figure_20_a_client_is_early(form):
    run = figure(with_third_client(12.0)[form], "23:00")
    assert arrivals(run, 3)[1] == clock("10:36")
    same(
        tasks(run),
        [
            *START,
            row("12:00", 1, 100, 2, "22:00", "24:48"),
            row("12:00", 2, 50, 2, "22:00", "24:48"),
            row("12:00", 3, 50, 2, "22:00", "24:48"),
            row("22:00", 1, 100, 3, "32:00", "34:00"),
            row("22:00", 2, 50, 3, "32:00", "34:00"),
            row("22:00", 3, 50, 3, "32:00", "34:00"),
            row("22:00", 4, 25, 3, "32:00", "34:00"),
            row("22:00", 5, 20, 3, "32:00", "34:00"),
        ],
    )
    assert [(t, g, sorted(c)) for t, g, c in groups(run)] == [
        (clock("12:00"), 1, [1, 2, 3]),
        (clock("22:00"), 2, [1, 2, 3, 4, 5]),
    ]


@pytest.mark.parametrize("form", [0, 1], ids=["function", "lists"])
def test_figure_21_a_client_is_after_the_expected_but_before_the_latest_time(form):
    run = figure(with_third_client(18.0)[form], "14:30")
    assert arrivals(run, 3)[1] == clock("13:24")
    same(
        tasks(run),
        [
            *START,
            row("13:24", 1, 86, 2, "22:00", "24:48"),
            row("13:24", 2, 43, 2, "22:00", "24:48"),
            row("13:24", 3, 28, 2, "22:00", "24:48"),
        ],
    )
    assert groups(run) == [(clock("13:24"), 1, [1, 2, 3])]
    assert [e["timer"] for e in run.entries("timer_cancelled")] == ["group 1"]
    assert run.entries("timer") == []


@pytest.mark.parametrize("form", [0, 1], ids=["function", "lists"])
def test_figure_22_a_client_is_late(form):
    run = figure(with_third_client(24.0)[form], "23:00")
    assert arrivals(run, 3)[1] == clock("16:12")  # the paper prints 15:12: a slip
    same(
        tasks(run),
        [
            *START,
            row("14:00", 1, 80, 2, "22:00", "24:48"),
            row("14:00", 2, 40, 2, "22:00", "24:48"),
            row("16:12", 3, 39, 3, "31:48", "34:55.2"),  # λ·15:36 = 18:43.2 after 16:12
            row("22:00", 1, 98, 3, "31:48", "34:55.2"),
            row("22:00", 2, 49, 3, "31:48", "34:55.2"),
            row("22:00", 4, 24, 3, "31:48", "34:55.2"),
            row("22:00", 5, 39, 4, "41:30", "45:24"),  # λ·19:30 = 23:24 after 22:00
        ],
    )
    # client 3's late update is in group 2's aggregation, after those of the group
    assert groups(run) == [(clock("14:00"), 1, [1, 2]), (clock("22:00"), 2, [4, 5, 1, 2, 3])]
    assert [(e["t"], e["timer"]) for e in run.entries("timer")] == [(clock("14:00"), "group 1")]


def test_figure_1_by_hand():
    server = Server(ob.fedcompass(20, 100).schedule)
    for client in range(5):
        assert server.feed(0.0, Joined(client, 10, 1)) == []
    assert server.feed(0.0, Begin()) == [Train(c, 20, task=c, base=0) for c in range(5)]

    def arrive(time: str, client: int) -> list[Any]:
        task = server.tasks[client - 1]
        return server.feed(clock(time), Arrived(client - 1, task.id, task.steps))

    g1 = {"group": 1, "T_a": clock("12:00"), "T_max": clock("14:00")}
    g2 = {"group": 2, "T_a": clock("22:00"), "T_max": clock("24:48")}
    g3 = {"group": 3, "T_a": clock("32:00"), "T_max": clock("34:00")}
    first = {"first": True}
    assert arrive("2:00", 1) == [
        Aggregate((0,), first, server_step=False, version=1, clients=(0,)),
        SetTimer("group 1", 840.0),
        Train(0, 100, g1, task=5, base=1),
    ]
    assert arrive("4:00", 2) == [
        Aggregate((1,), first, server_step=False, version=2, clients=(1,)),
        Train(1, 40, g1, task=6, base=2),
    ]
    assert arrive("5:00", 3)[1:] == [Train(2, 28, g1, task=7, base=3)]
    assert arrive("8:00", 4)[1:] == [SetTimer("group 2", 1488.0), Train(3, 35, g2, task=8, base=4)]
    assert arrive("10:00", 5)[1:] == [Train(4, 24, g2, task=9, base=5)]
    assert arrive("12:00", 3) == []
    assert arrive("12:00", 1) == []
    assert arrive("12:00", 2) == [
        CancelTimer("group 1"),
        Aggregate((7, 5, 6), {"group": 1}, version=6, clients=(2, 0, 1)),
        Train(0, 100, g2, task=10, base=6),  # fastest first
        Train(1, 50, g2, task=11, base=6),
        Train(2, 40, g2, task=12, base=6),
    ]
    for client in (5, 4, 3, 2):
        assert arrive("22:00", client) == []
    assert arrive("22:00", 1) == [
        CancelTimer("group 2"),
        Aggregate((9, 8, 12, 11, 10), {"group": 2}, version=7, clients=(4, 3, 2, 1, 0)),
        SetTimer("group 3", 2040.0),
        *(Train(c, q, g3, task=13 + c, base=7) for c, q in enumerate([100, 50, 40, 25, 20])),
    ]
