"""A live site that never delivers is not waited for for ever; one that is slow is."""

from typing import Any

import pytest
import torch

import offbeat as ob
from offbeat.core.commands import Train
from offbeat.core.schedule import Task
from offbeat.core.server import Server
from offbeat.net.messages import Heartbeat, Register, TaskAssignment, UpdateAck, UpdateSubmission
from offbeat.net.server.deadlines import Deadlines
from offbeat.net.server.handlers import RunInfo
from offbeat.net.server.site_registry import Registry, TaskRecord
from offbeat.testing import check_journal
from tests.net.support import coordinator_from, terms_of

LAYOUT = ob.Layout.flat(2)


class Sites:
    """Sites `a`, `b` and `c` of a run; `a` and `b` do 2 steps a second, all send heartbeats."""

    def __init__(self, algorithm: ob.Algorithm, **options: Any) -> None:
        made = terms_of(clients=3, **options)
        self.server = coordinator_from(algorithm, ob.Model.empty(LAYOUT), made, RunInfo("run", {}))
        self.now = 0.0
        self.tasks: dict[str, tuple[float, TaskAssignment]] = {}
        self.closed: list[tuple[str, str]] = []
        self.acks: list[tuple[str, UpdateAck]] = []
        self.rows: list[Any] = []
        for name in "abc":
            self.server.receive(0.0, name, Register(10, 2))
        self.hear()

    def hear(self) -> None:
        effects = self.server.take()
        self.rows += effects.rows
        self.closed += effects.closed
        for name, message in effects.messages:
            if isinstance(message, TaskAssignment):
                self.tasks[name] = self.now, message
            elif isinstance(message, UpdateAck):
                self.acks.append((name, message))

    def deliver(self, name: str) -> None:
        task = self.tasks.pop(name)[1]
        update = UpdateSubmission(task.task, task.steps, torch.ones(2), torch.zeros(0, dtype=torch.int64), {})
        self.server.receive(self.now, name, update)
        self.hear()

    def pass_time(self, seconds: float, speeds: dict[str, float]) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 10.0
            for name in "abc":
                self.server.heartbeat(self.now, name, Heartbeat())
            for name in [name for name in self.tasks if name in speeds]:
                begun, task = self.tasks[name]
                if self.now - begun >= task.steps / speeds[name]:
                    self.deliver(name)
            self.server.tick(self.now)
            self.hear()


BOTH = {"a": 2.0, "b": 2.0}


def test_a_round_goes_on_with_those_who_delivered() -> None:
    sites = Sites(ob.fedavg(steps=20))
    sites.pass_time(590, BOTH)
    assert sites.server.server.version == 0
    assert sites.server.next_due() <= 600
    sites.pass_time(100, BOTH)
    assert sites.closed == [("c", "task 2 was not delivered within 600 s")]
    assert sites.server.server.version > 3
    assert sites.server.server.counts["lost"] == 1
    check_journal(sites.rows)
    again = coordinator_from(
        ob.fedavg(steps=20), ob.Model.empty(LAYOUT), terms_of(clients=3), RunInfo("run", {})
    )
    for client, name in enumerate("abc"):
        again.registry.add(name, client)
    again.replay(sites.rows, None)
    assert again.server.version == sites.server.server.version


def test_the_site_gets_a_chance_later() -> None:
    """It comes back with its task, for which nobody waits; once it has delivered it gets the next one."""
    sites = Sites(ob.fedavg(steps=20))
    sites.pass_time(700, BOTH)
    sites.server.receive(sites.now, "c", Register(10, 2, holds=2, run="run"))
    sites.hear()
    version = sites.server.server.version
    sites.pass_time(3000, BOTH)
    assert sites.server.server.version > version + 50  # it never delays a round again
    assert len(sites.closed) == 1
    sites.deliver("c")
    assert sites.acks[-1] == ("c", UpdateAck(2, accepted=True))
    sites.pass_time(100, BOTH | {"c": 2.0})
    assert sum(name == "c" for name, _ in sites.acks) > 1


@pytest.mark.parametrize("algorithm", [ob.fedavg(steps=2000), ob.fedat(steps=2000)])
def test_a_slow_site_is_waited_for(algorithm: ob.Algorithm) -> None:
    """Nine times slower than the others before it has a speed of its own, and than itself afterwards."""
    sites = Sites(algorithm)
    sites.pass_time(9500, BOTH | {"c": 2.0 / 9})
    assert not sites.closed
    assert sum(name == "c" for name, _ in sites.acks) == 1
    sites.pass_time(60_000, BOTH | {"c": 2.0 / 60})
    assert not sites.closed


def test_before_anybody_has_delivered_there_is_no_deadline() -> None:
    sites = Sites(ob.fedavg(steps=20))
    sites.pass_time(50_000, {})
    assert not sites.closed


@pytest.mark.parametrize(("hold", "brought_back"), [(False, False), (True, False), (False, True)])
def test_what_no_schedule_waits_for_has_no_deadline(hold: bool, brought_back: bool) -> None:
    """An update that its site holds until it is called, and a task that was brought back."""
    registry = Registry()
    registry.add("a", 0).speed = 2.0
    registry.assigned[5] = TaskRecord(Train(0, 200, task=5, hold=hold), brought_back=brought_back)
    server = Server(ob.fedavg(steps=20).schedule)
    server.tasks[0] = task = Task(5, 0, 0, 200, 30.0, hold=hold)
    found = Deadlines(registry, server, 10.0).due(1e9)
    assert found == ([] if hold or brought_back else [(task, 30.0 + 10 * 200 / 2.0)])


def test_none_means_never() -> None:
    sites = Sites(ob.fedavg(steps=20), task_timeout=None)
    sites.pass_time(50_000, BOTH)
    assert not sites.closed
    assert sites.server.server.version == 0


def test_time_without_the_server_does_not_count() -> None:
    sites = Sites(ob.fedavg(steps=20))
    sites.pass_time(500, BOTH)
    sites.now += 10_000.0
    sites.server.tick(sites.now)
    sites.pass_time(590, BOTH)
    assert not sites.closed
    sites.pass_time(20, BOTH)
    assert len(sites.closed) == 1
