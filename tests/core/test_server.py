"""The server's books: what it stamps, and what it refuses."""

from collections.abc import Iterator
from typing import Any

import pytest

import offbeat as ob
from offbeat.core.commands import (
    Aggregate,
    CancelTimer,
    Command,
    Discard,
    Drop,
    Measure,
    Recall,
    Send,
    SetTimer,
    Stop,
    Train,
    Upload,
)
from offbeat.core.errors import AlgorithmError
from offbeat.core.events import Arrived, Begin, Event, Joined, Left, Lost, Measured, Ready, Timer, WantsModel
from offbeat.core.server import Server


class Script:
    """A schedule that gives the commands the test puts into `say`, and remembers what it was told."""

    concurrency = None

    def __init__(self) -> None:
        self.say: list[Command] = []
        self.heard: list[Event] = []

    def initial(self) -> None:
        return None

    def on(self, event: Event, state: Any, view: Any) -> Iterator[Command]:
        self.heard.append(event)
        commands, self.say = self.say, []
        yield from commands


def begun(clients: int = 2) -> tuple[Server, Script]:
    script = Script()
    server = Server(script)
    for client in range(clients):
        server.feed(0.0, Joined(client, 10 * (client + 1), 2))
    server.feed(0.0, Begin())
    return server, script


def tell(server: Server, script: Script, t: float, event: Event, *commands: Command) -> list[Command]:
    script.say = list(commands)
    return server.feed(t, event)


TICK = "tick"


def tick(server: Server, script: Script, t: float, *commands: Command) -> list[Command]:
    """Let the schedule speak, by way of a timer."""
    server.timers[TICK] = t
    return tell(server, script, t, Timer(TICK), *commands)


def test_nothing_is_asked_before_begin():
    script = Script()
    server = Server(script)
    server.feed(0.0, Joined(0, 1, 1))
    server.feed(0.0, Left(0))
    assert script.heard == []
    server.feed(0.0, Begin())
    assert script.heard == [Begin()]
    with pytest.raises(AlgorithmError, match="begun twice"):
        server.feed(0.0, Begin())


def test_a_task_from_dispatch_to_aggregation():
    server, script = begun()
    assert tick(server, script, 1.0, Train(0, 5, {"why": 1}), Train(1, 6)) == [
        Train(0, 5, {"why": 1}, task=0, base=0),
        Train(1, 6, task=1, base=0),
    ]
    assert server.running == 2
    tell(server, script, 2.0, Arrived(1, 1, 4))
    task = server.task(1)
    assert (task.client, task.base, task.steps, task.started) == (1, 0, 4, 1.0)
    assert (task.staleness, task.samples, task.share) == (0, 20, 20 / 30)
    commands = tick(server, script, 3.0, Aggregate((1,), {"n": 1}), Train(1, 2))
    assert commands == [Aggregate((1,), {"n": 1}, version=1, clients=(1,)), Train(1, 2, task=2, base=1)]
    tell(server, script, 4.0, Arrived(0, 0, 5))
    assert server.task(0).staleness == 1
    tick(server, script, 5.0, Drop(0, "too old"))
    assert server.counts == {"arrived": 2, "aggregated": 1, "dropped": 1, "discarded": 0, "lost": 0}
    assert server.dispatched == 3


def test_arrivals_are_numbered_in_the_order_in_which_they_come():
    server, script = begun(3)
    tick(server, script, 1.0, *(Train(client, 1) for client in range(3)))
    tell(server, script, 2.0, Arrived(2, 2, 1))
    tell(server, script, 3.0, Arrived(0, 0, 1), Drop(2, "late"))
    tell(server, script, 4.0, Arrived(1, 1, 1))
    assert {task: held.arrival for task, held in server.held.items()} == {0: 1, 1: 2}


def test_commands_take_effect_before_the_schedules_next_line():
    seen: list[tuple[int, int, bool]] = []

    class Watching(Script):
        def on(self, event: Event, state: Any, view: Any) -> Iterator[Command]:
            if isinstance(event, Begin):
                yield Train(0, 1)
                seen.append((view.version, view.running, view.fleet.is_idle(0)))
            elif isinstance(event, Arrived):
                seen.append((view.version, view.running, view.fleet.is_idle(0)))
                yield Aggregate((event.task,))
                seen.append((view.version, view.running, view.fleet.is_idle(0)))

    server = Server(Watching())
    server.feed(0, Joined(0, 1, 1))
    server.feed(0, Begin())
    server.feed(1, Arrived(0, 0, 1))
    assert seen == [(0, 1, False), (0, 0, True), (1, 0, True)]


def test_a_drop_is_stamped_with_its_client():
    server, script = begun()
    tick(server, script, 0.0, Train(1, 1))
    assert tell(server, script, 1.0, Arrived(1, 0, 1), Drop(0, "no")) == [Drop(0, "no", client=1)]


def refused(message: str, server: Server, script: Script, t: float, event: Event, *commands: Command) -> None:
    with pytest.raises(AlgorithmError, match=message):
        tell(server, script, t, event, *commands)


@pytest.mark.parametrize(
    ("message", "commands"),
    [
        ("client 0 is not idle", [Train(0, 1), Train(0, 1)]),
        ("client 7 is not idle", [Train(7, 1)]),
        ("client -1 is not idle", [Train(-1, 1)]),
        ("0 local steps: at least 1", [Train(0, 0)]),
        ("at least one update", [Aggregate(())]),
        ("task 0 is not held: it cannot be aggregated", [Train(0, 1), Aggregate((0,))]),
        ("task 9 is not held: it cannot be dropped", [Drop(9, "x")]),
        ("'t' is set for 0.5, before now", [SetTimer("t", 0.5)]),
        ("'t' is not set: it cannot be cancelled", [CancelTimer("t")]),
        ("'t' is not set: it cannot be cancelled", [SetTimer("t", 2.0), CancelTimer("t"), CancelTimer("t")]),
    ],
)
def test_commands_against_the_rules(message, commands):
    server, script = begun()
    server.timers[TICK] = 1.0
    refused(message, server, script, 1.0, Timer(TICK), *commands)


@pytest.mark.parametrize(
    "ends",
    [
        [Aggregate((0,)), Aggregate((0,))],
        [Aggregate((0, 0))],
        [Drop(0, "x"), Aggregate((0,))],
        [Aggregate((0,)), Drop(0, "x")],
    ],
)
def test_a_task_ends_once(ends):
    server, script = begun()
    tick(server, script, 0.0, Train(0, 1))
    refused("task 0 is not held", server, script, 1.0, Arrived(0, 0, 1), *ends)


@pytest.mark.parametrize(
    ("message", "event"),
    [
        ("client 1 is not training task 0", Arrived(1, 0, 1)),  # another's task
        ("client 0 is not training task 5", Arrived(0, 5, 1)),
        ("client 1 is not training task 0", Lost(1, 0)),
        ("timer 'x' fired without being set", Timer("x")),
        ("client 0 joined twice", Joined(0, 1, 1)),
        ("client 5 left without being present", Left(5)),
        ("client 5 cannot hold task 0", Joined(5, 1, 1, holds=0)),
    ],
)
def test_events_that_cannot_be(message, event):
    server, script = begun()
    tick(server, script, 0.0, Train(0, 1))
    refused(message, server, script, 1.0, event)


def test_an_update_cannot_arrive_twice():
    server, script = begun()
    tick(server, script, 0.0, Train(0, 1))
    server.feed(1.0, Arrived(0, 0, 1))
    refused("client 0 is not training task 0", server, script, 2.0, Arrived(0, 0, 1))


def test_time_cannot_run_backwards():
    server, script = begun()
    server.feed(5.0, Left(0))
    refused("time ran backwards", server, script, 4.999, Left(1))
    server.feed(5.0, Left(1))


def test_after_stop():
    server, script = begun()
    commands = tick(server, script, 1.0, Stop("enough"), Train(0, 1))
    assert commands == [Stop("enough")]  # what the schedule would say next is not asked for
    assert server.stopped == "enough"
    assert server.dispatched == 0
    refused(r"the run has stopped \(enough\)", server, script, 2.0, Left(0))


def test_timers_are_replaced_and_forgotten():
    server, script = begun()
    tick(server, script, 1.0, SetTimer("t", 5.0), SetTimer("t", 3.0))
    assert server.timers == {"t": 3.0}
    tell(server, script, 3.0, Timer("t"), SetTimer("t", 3.0))  # set anew, for now
    assert server.timers == {"t": 3.0}
    tell(server, script, 3.0, Timer("t"))
    assert server.timers == {}
    refused("fired without being set", server, script, 3.0, Timer("t"))


def test_a_client_that_leaves_loses_its_task_and_the_schedule_is_told_which():
    server, script = begun()
    tick(server, script, 0.0, Train(0, 1))
    server.feed(1.0, Left(0, reason="gone"))
    assert script.heard[-1] == Left(0, 0, "gone")
    assert server.counts["lost"] == 1
    assert server.current_task.id == 0
    server.feed(2.0, Left(1, task=99))  # the server knows better
    assert server.counts["lost"] == 1


def test_a_lost_task_leaves_its_client_idle():
    server, script = begun()
    tick(server, script, 0.0, Train(0, 1))
    tell(server, script, 1.0, Lost(0, 0), Train(0, 3))
    assert server.tasks[0].id == 1
    assert server.counts["lost"] == 1


def test_a_client_may_bring_its_lost_task_back_once():
    server, script = begun()
    tick(server, script, 0.0, Train(0, 4), Train(1, 4))
    server.feed(1.0, Left(0))
    server.feed(2.0, Joined(0, 10, 2, holds=0))
    assert server.counts["lost"] == 0
    assert not server.fleet.is_idle(0)
    server.feed(3.0, Arrived(0, 0, 4))
    assert server.counts["arrived"] == 1
    server.feed(4.0, Left(0))
    refused("client 0 cannot hold task 0", server, script, 5.0, Joined(0, 10, 2, holds=0))


def test_a_task_that_is_brought_back_is_as_old_as_it_was():
    """Schedules go by that: `View.tasks` has the oldest first."""
    server, script = begun()
    tick(server, script, 0.0, Train(0, 4), Train(1, 4))
    server.feed(1.0, Left(0))
    server.feed(2.0, Joined(0, 10, 2, holds=0))
    assert [(client, task.id) for client, task in server.tasks.items()] == [(0, 0), (1, 1)]


def test_a_client_cannot_bring_the_task_of_another():
    server, script = begun()
    tick(server, script, 0.0, Train(0, 4))
    server.feed(1.0, Left(0))
    server.feed(1.0, Left(1))
    refused("client 1 cannot hold task 0", server, script, 2.0, Joined(1, 10, 2, holds=0))


def test_an_update_that_is_unknown_cannot_be_looked_at():
    server, _ = begun()
    with pytest.raises(AlgorithmError, match="task 3 is not held"):
        server.task(3)


def test_idle_clients_are_drawn_from_the_runs_seed():
    def first(seed: int) -> list[int]:
        server = Server(ob.fedbuff(1, 1, concurrency=5).schedule, seed)
        for client in range(100):
            server.feed(0.0, Joined(client, 1, 1))
        return [c.client for c in server.feed(0.0, Begin())]

    assert first(3) == first(3)
    assert len({tuple(first(seed)) for seed in range(5)}) == 5


# ---- in mid-task: requests and recalls ----


def asking() -> tuple[Server, Script]:
    """Client 0 trains for three steps and asks after two; client 1 is idle."""
    server, script = begun()
    tick(server, script, 0.0, Train(0, 3, ask_after=2))
    return server, script


def test_a_request_is_answered_with_the_current_version():
    server, script = asking()
    task = server.tasks[0]
    answer = tell(server, script, 1.0, WantsModel(0, 0, 2), Send(0))
    assert answer == [Send(0, clock=1, task=0, version=0)]
    assert (task.ask_after, task.fresh, server.sent) == (2, 0, 1)
    assert server.current_task is task
    tell(server, script, 2.0, Arrived(0, 0, 3))
    assert server.held == {0: task}


def test_a_model_goes_to_who_asks_when_it_asks_and_once():
    server, script = asking()
    for commands in ([Send(1)], [Send(0), Send(0)]):
        with pytest.raises(
            AlgorithmError, match=f"client {commands[0].client} has not asked for a model now"
        ):
            tell(server, script, 1.0, WantsModel(0, 0, 2), *commands)
    with pytest.raises(AlgorithmError, match="client 0 has not asked for a model now"):
        tick(server, script, 1.0, Send(0))
    with pytest.raises(AlgorithmError, match="client 0 is not training task 7"):
        server.feed(1.0, WantsModel(0, 7, 2))


def test_a_recall_is_for_who_trains_and_once():
    server, script = asking()
    assert tick(server, script, 1.0, Recall(0)) == [Recall(0, task=0)]
    assert server.tasks[0].recalled
    with pytest.raises(AlgorithmError, match="task 0 of client 0 is recalled twice"):
        tick(server, script, 1.0, Recall(0))
    with pytest.raises(AlgorithmError, match="client 1 is not training: it cannot be recalled"):
        tick(server, script, 1.0, Recall(1))


@pytest.mark.parametrize("after", [-1, 3, 4])
def test_a_request_comes_within_the_task(after):
    server, script = begun()
    with pytest.raises(AlgorithmError, match=f"cannot ask for a model after {after} of 3 steps"):
        tick(server, script, 0.0, Train(0, 3, ask_after=after))


# ---- updates that clients hold until they may send them ----


def holding() -> tuple[Server, Script]:
    """Client 0 has finished a task whose update it holds; client 1 is idle."""
    server, script = begun()
    tick(server, script, 0.0, Train(0, 3, hold=True))
    tell(server, script, 1.0, Ready(0, 0, 3, {"norm": 2.0}))
    return server, script


def test_an_update_held_is_uploaded():
    server, script = holding()
    assert server.current_task is server.tasks[0]
    assert server.tasks[0].ready
    assert server.running == 1  # the client has nothing else to do, but is not idle
    with pytest.raises(AlgorithmError, match="task 0 arrived before its Upload"):
        server.feed(1.0, Arrived(0, 0, 3))
    assert tick(server, script, 2.0, Upload(0, 100)) == [Upload(0, 100, task=0)]
    tell(server, script, 3.0, Arrived(0, 0, 3))
    assert (list(server.held), server.running) == ([0], 0)


def test_an_update_held_is_discarded_and_its_client_free():
    server, script = holding()
    assert tick(server, script, 2.0, Discard(0, "not scheduled"), Train(0, 1)) == [
        Discard(0, "not scheduled", task=0),
        Train(0, 1, task=1, base=0),
    ]
    assert server.counts["discarded"] == 1


def test_a_task_in_training_is_stopped_and_its_client_free():
    server, script = begun()
    tick(server, script, 0.0, Train(0, 3), Train(1, 3))
    assert tick(server, script, 1.0, Discard(0, "too late"), Train(0, 2)) == [
        Discard(0, "too late", task=0),
        Train(0, 2, task=2, base=0),
    ]
    assert server.counts == {"arrived": 0, "aggregated": 0, "dropped": 0, "discarded": 1, "lost": 0}
    assert [task.id for task in server.tasks.values()] == [1, 2]
    with pytest.raises(AlgorithmError, match="client 0 is not training task 0"):
        server.feed(2.0, Arrived(0, 0, 3))
    tell(server, script, 2.0, Arrived(0, 2, 2))


def test_only_a_client_with_a_task_is_stopped():
    server, script = begun()
    with pytest.raises(AlgorithmError, match="client 1 is not training: there is nothing to discard"):
        tick(server, script, 0.0, Discard(1, "why"))


def test_a_task_to_be_held_is_not_stopped_before_it_is_ready_nor_while_it_is_sent():
    server, script = begun()
    tick(server, script, 0.0, Train(0, 3, hold=True))
    with pytest.raises(AlgorithmError, match="client 0 holds no update"):
        tick(server, script, 1.0, Discard(0, "why"))
    tell(server, script, 1.0, Ready(0, 0, 3))
    tick(server, script, 2.0, Upload(0))
    with pytest.raises(AlgorithmError, match="client 0 holds no update"):
        tick(server, script, 2.0, Discard(0, "why"))


def test_only_what_is_held_is_uploaded():
    server, script = holding()
    for command in (Upload(1), Upload(5)):
        with pytest.raises(AlgorithmError, match=f"client {command.client} holds no update"):
            tick(server, script, 2.0, command)
    with pytest.raises(AlgorithmError, match="client 0 was given -1 bits to upload"):
        tick(server, script, 2.0, Upload(0, -1))
    tick(server, script, 2.0, Upload(0))
    with pytest.raises(AlgorithmError, match="client 0 holds no update"):
        tick(server, script, 2.0, Upload(0))


def test_only_a_task_to_be_held_is_ready():
    server, script = begun()
    tick(server, script, 0.0, Train(0, 3), Train(1, 3, hold=True))
    with pytest.raises(AlgorithmError, match="task 0 is ready, but is not one to be held"):
        server.feed(1.0, Ready(0, 0, 3))
    server.feed(1.0, Ready(1, 1, 3))
    with pytest.raises(AlgorithmError, match="task 1 is ready, but is not one to be held"):
        server.feed(1.0, Ready(1, 1, 3))


def test_who_leaves_with_an_update_has_lost_it():
    server, script = holding()
    tell(server, script, 2.0, Left(0))
    assert (server.counts["lost"], server.running) == (1, 0)


def test_the_channel_is_measured_when_asked_for():
    server, script = begun()
    with pytest.raises(AlgorithmError, match="a channel was measured without a Measure"):
        server.feed(1.0, Measured(((0, 2.0),), 100.0))
    tick(server, script, 1.0, Measure((0, 1)))
    with pytest.raises(AlgorithmError, match="the channel is being measured already"):
        tick(server, script, 1.0, Measure((0,)))
    tell(server, script, 1.0, Measured(((0, 2.0), (1, 3.0)), 100.0))
    assert script.heard[-1] == Measured(((0, 2.0), (1, 3.0)), 100.0)
    tick(server, script, 2.0, Measure((0,)))
