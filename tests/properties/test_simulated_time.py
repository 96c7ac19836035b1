"""The virtual clock: timers set anew or cancelled, and what happens at equal times."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import offbeat as ob
from offbeat.algorithms.aggregators import MeanOfModels
from offbeat.core.commands import CancelTimer, Command, SetTimer, Stop, Train
from offbeat.core.events import Begin, Event, Timer
from offbeat.core.schedule import Schedule, View
from offbeat.local.objectives import Plain


@dataclass(frozen=True)
class Alarms(Schedule):
    """Sets "a" for 5, and at 2 for 8 instead; cancels "b"; stops at "a"."""

    concurrency: int | None = None

    def initial(self) -> None:
        return None

    def on(self, event: Event, state: Any, view: View) -> Iterator[Command]:
        match event:
            case Begin():
                yield Train(0, 100)
                yield SetTimer("a", 5.0)
                yield SetTimer("b", 6.0)
                yield SetTimer("early", 2.0)
            case Timer("early"):
                yield SetTimer("a", 8.0)
                yield CancelTimer("b")
            case Timer("a"):
                yield Stop("woken")


def test_a_timer_set_anew_fires_once_and_a_cancelled_one_never():
    algorithm = ob.Algorithm(Alarms(), MeanOfModels(), Plain())
    run = ob.simulate(algorithm, world=ob.World(clients=1), until=ob.Until(seconds=1000.0))
    assert [(e["t"], e["timer"]) for e in run.entries("timer")] == [(2.0, "early"), (8.0, "a")]
    assert run.stop_reason == "woken"
    assert run.summary.running == 1


def test_an_evaluation_comes_after_the_events_of_its_time():
    run = ob.simulate(
        ob.fedavg(10),
        world=ob.World(1.0, clients=2),
        until=ob.Until(seconds=25.0),
        evaluate=ob.Every(seconds=5.0),
    )
    expected = [(0, 0), (5, 0), (10, 1), (15, 1), (20, 2), (25, 2)]
    assert [(m["t"], m["version"]) for m in run.metrics] == expected


def test_an_event_at_the_time_limit_still_happens():
    run = ob.simulate(ob.fedavg(10), world=ob.World(1.0, clients=1), until=ob.Until(seconds=20.0))
    assert (run.summary.versions, run.summary.seconds) == (2, 20.0)


def test_an_arrival_comes_before_its_client_leaves_at_the_same_time():
    world = ob.World(1.0, clients=1, availability=ob.Availability(leave=10.0))
    run = ob.simulate(ob.fedavg(10), world=world, until=ob.Until(seconds=99.0))
    assert [e["name"] for e in run.journal if e["kind"] == "event"][-2:] == ["arrived", "left"]
    assert run.summary.aggregated == 1
    assert run.stop_reason.startswith("nothing is left to happen")
