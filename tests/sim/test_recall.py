"""A task that is recalled: it ends with an epoch, trained as if it had been given so many steps."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import offbeat as ob
from offbeat.algorithms.aggregators import SumOfDeltas
from offbeat.algorithms.schedules import train
from offbeat.core.algorithm import Algorithm
from offbeat.core.commands import Aggregate, Command, Recall, SetTimer
from offbeat.core.events import Arrived, Begin, Event, Timer
from offbeat.core.features import Feature
from offbeat.core.learner import LocalTask
from offbeat.core.programme import Programme
from offbeat.core.schedule import Schedule, View
from offbeat.local.objectives import Plain
from offbeat.sim.replay import replay
from offbeat.world.population import Population
from tests.sampling import thorough
from tests.sim.sim_worlds import WORLDS, Wrapped, make, on_disk, outcome

EPOCH = 3  # steps; a task has 4 epochs, which take client 0 twelve seconds


@dataclass(frozen=True)
class RecallAt(Schedule):
    """One task for everybody; at certain times (seconds) client 0 is recalled, if it still trains."""

    at: float
    programme: Programme = field(default=Programme(epochs=4))
    concurrency: int | None = None
    requires = frozenset({Feature.RECALL})

    def initial(self) -> None:
        return None

    def on(self, event: Event, state: None, view: View) -> Iterator[Command]:
        match event:
            case Begin():
                yield SetTimer("recall", self.at)
                for client in view.fleet.idle():
                    yield train(client, self.programme, view)
            case Timer() if 0 in view.tasks:
                yield Recall(0)
            case Arrived():
                yield Aggregate((event.task,))


def recalled(at: float, learner: Any, *, seconds: float = 20.0, **world: Any) -> ob.Run:
    """Client 0 takes 1 s a step; the others are too slow to arrive."""
    algorithm = Algorithm(RecallAt(at), SumOfDeltas(weights="equal"), Plain())
    world = {"seconds_per_step": [1.0, 9.0, 9.0, 9.0, 9.0], **world}
    return ob.simulate(algorithm, ob.World(**world), learner, seed=3, until=ob.Until(seconds=seconds))


def arrived(run: ob.Run) -> list[tuple[float, int]]:
    """When client 0's update arrived, and with how many steps."""
    return [(e["t"], e["steps"]) for e in run.entries("arrived") if e["client"] == 0]


def trained(learner: ob.TorchLearner, steps: int) -> torch.Tensor:
    """The model after so many steps of client 0's task, asked of the learner itself."""
    start = learner.initial(3)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    result = learner.train(start, LocalTask(0, 0, 0, steps, seed=3), Plain())
    torch.set_num_threads(threads)
    torch.set_rng_state(state)
    return start.values + result.delta


@pytest.mark.parametrize(
    ("at", "steps"),
    [(0.0, 3), (1.0, 3), (3.0, 3), (3.1, 6), (5.9, 6), (6.0, 6), (8.5, 9), (9.0, 9), (9.1, 12), (12.0, 12)],
)
def test_it_ends_with_the_epoch(at: float, steps: int, learner: ob.TorchLearner) -> None:
    assert learner.steps_per_epoch(0) == EPOCH
    run = recalled(at, learner)
    assert arrived(run) == [(steps, steps)]
    assert torch.equal(run.model.values, trained(learner, steps))
    assert [e["task"] for e in run.entries("recall")] == ([0] if at < 12 else [])
    assert [e["steps"] for e in run.entries("train") if e["client"] == 0] == [12]  # as it was given


def test_less_than_an_epoch_is_not_shortened() -> None:
    nothing = ob.NoTraining(5, parameters=2, samples_per_client=100, batches=50)
    algorithm = Algorithm(RecallAt(2.0, Programme(steps=12)), SumOfDeltas(weights="equal"), Plain())
    run = ob.simulate(algorithm, ob.World(clients=5), nothing, until=ob.Until(seconds=20))
    assert arrived(run) == [(12, 12)]


# ---- over a network: 1 s latency, 2 s for the model down and 4 s up; training is from 3 s to 15 s


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (1.0, (11, 3)),  # heard during the download
        (5.0, (11, 3)),  # heard at 6, as the first epoch ends; 5 s up
        (5.5, (14, 6)),
        (12.5, (20, 12)),  # in the last epoch
        (14.5, (20, 12)),  # heard during the upload
        (19.5, (20, 12)),
    ],
)
def test_over_a_network(at: float, expected: tuple[float, int], learner: ob.TorchLearner) -> None:
    bits = 8.0 * learner.initial(0).layout.nbytes
    network = ob.Network(latency=1.0, down=bits / 2, up=bits / 4)
    run = recalled(at, learner, network=network)
    assert arrived(run) == [expected]
    assert torch.equal(run.model.values, trained(learner, expected[1]))


# ---- tasks that are lost, clients that leave


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (2.5, [(3, 3)]),  # before it would have been lost
        (3.5, []),  # its epoch would have ended at 6
    ],
)
def test_a_task_that_will_be_lost(
    at: float, expected: list[Any], learner: ob.TorchLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client 0 drops out of its task after 0.45 of the 12 s."""
    monkeypatch.setattr(Population, "_lost", lambda self, client, number: 1.0 if client else 0.45)
    run = recalled(at, learner, availability=ob.Availability(dropout=0.5))
    assert arrived(run) == expected
    assert [e["t"] for e in run.entries("lost")] == ([] if expected else [pytest.approx(5.4)])
    if expected:
        assert torch.equal(run.model.values, trained(learner, 3))


@pytest.mark.parametrize(
    ("leave", "expected"),
    [
        (5.0, []),
        (6.0, [(6, 6)]),  # at equal times arrivals come before departures
        (7.0, [(6, 6)]),
    ],
)
def test_its_client_leaves(leave: float, expected: list[Any], learner: ob.TorchLearner) -> None:
    availability = ob.Availability(leave=[leave, 1e6, 1e6, 1e6, 1e6])
    run = recalled(4.0, learner, availability=availability)
    assert arrived(run) == expected
    assert [(e["t"], e["task"]) for e in run.entries("left")] == [(leave, None if expected else 0)]
    assert run.entries("lost") == []


# ---- a whole run of PORT in which tasks are cut short


def cut(run: ob.Run) -> list[dict[str, Any]]:
    """The arrivals with fewer steps than the task was given."""
    given = {e["task"]: e["steps"] for e in run.entries("train")}
    return [e for e in run.entries("arrived") if e["steps"] < given[e["task"]]]


URGENT = {"size": 1, "tau_max": 1, "epochs": 4, "urgent": True}
MANY = ob.Until(tasks=60)


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["hard", *thorough("calm")])
def test_workers_resume_and_replay(where: str, learner: ob.TorchLearner, tmp_path: Path) -> None:
    algorithm, world = ob.port(**URGENT), WORLDS[where]
    whole = ob.simulate(algorithm, world, learner, seed=4, until=MANY, out=tmp_path / "whole")
    assert len(cut(whole)) > 3
    assert all(e["steps"] % learner.steps_per_epoch(e["client"]) == 0 for e in cut(whole))
    two = ob.simulate(algorithm, world, learner, seed=4, until=MANY, workers=2)
    assert outcome(two) == outcome(whole)
    assert replay(ob.read_run(tmp_path / "whole"), algorithm).difference is None
    for i, task in enumerate(interruptions(whole)):
        directory = tmp_path / f"broken {i}"
        with pytest.raises(KeyboardInterrupt):
            ob.simulate(algorithm, world, Stopping(learner, task), seed=4, until=MANY, out=directory)
        resumed = ob.resume(directory, algorithm, world, learner, until=MANY)
        assert outcome(resumed) == outcome(whole)
        assert on_disk(directory) == on_disk(tmp_path / "whole")


def interruptions(run: ob.Run) -> list[int]:
    """Arrivals before which the run stops: those that come when a recalled task is cut but not here yet."""
    waiting: set[int] = set()
    short = {e["task"] for e in cut(run)}
    found = []
    for entry in run.journal:
        if entry["name"] == "recall" and entry["task"] in short:
            waiting.add(entry["task"])
        if entry["name"] == "arrived" and waiting:
            found.append(entry["task"])
            waiting.discard(entry["task"])
    return [found[0], found[len(found) // 2]]


class Stopping(Wrapped):
    """Is interrupted before it trains a certain task."""

    def __init__(self, learner: ob.TorchLearner, task: int) -> None:
        super().__init__(learner)
        self.task = task

    def before(self, task: LocalTask) -> None:
        if task.task == self.task:
            raise KeyboardInterrupt


def test_the_shared_options_recall() -> None:
    """So that the tests of every algorithm go through recalls."""
    nothing = ob.NoTraining(5, parameters=2, samples_per_client=60, batches=3)
    run = ob.simulate(make("port"), WORLDS["hard"], nothing, seed=4, until=MANY)
    assert cut(run)
