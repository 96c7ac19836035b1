"""Tasks that are stopped: nothing of them is kept, and a run has the same bits however it is carried out."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import offbeat as ob
from offbeat.core.features import Feature
from offbeat.core.learner import LocalTask
from offbeat.core.objective import LocalRun, Objective
from offbeat.notebook.frames import task_entries
from offbeat.report.timeline import make_timeline
from offbeat.sim.replay import replay
from tests.sampling import thorough
from tests.sim.sim_worlds import WORLDS, Wrapped, on_disk, outcome

MANY = ob.Until(tasks=60)
STOPPING = {
    "ringmaster": ob.ringmaster(2, 4),
    "rennala": ob.rennala(4, 4),
    "malenia": ob.malenia(2, 1),
    "first_of": ob.first_of(4, share=0.5, late="stop"),
}


@dataclass(frozen=True)
class Counting(Objective):
    """Counts in a client's state the tasks whose state was kept; the number is a metric."""

    requires = frozenset({Feature.CLIENT_STATE})

    def end(self, run: LocalRun) -> Mapping[str, float]:
        run.state["tasks"] = run.state.get("tasks", torch.zeros(1)) + 1
        return {"kept": float(run.state["tasks"][0])}


class Stopping(Wrapped):
    """Is interrupted before it trains a certain task."""

    def __init__(self, learner: ob.TorchLearner, task: int) -> None:
        super().__init__(learner)
        self.task = task

    def before(self, task: LocalTask) -> None:
        if task.task == self.task:
            raise KeyboardInterrupt


def interruptions(run: ob.Run) -> list[int]:
    """Arrivals right after tasks were stopped."""
    found, stopped = [], False
    for entry in run.journal:
        stopped = stopped or entry["name"] == "discard"
        if entry["name"] == "arrived" and stopped:
            found.append(entry["task"])
            stopped = False
    return [found[0], found[len(found) // 2]]


@pytest.mark.parametrize("where", ["hard", *thorough("calm")])
@pytest.mark.parametrize("name", ["ringmaster", *thorough("rennala", "malenia", "first_of")])
def test_workers_resume_and_replay(name: str, where: str, learner: ob.TorchLearner, tmp_path: Path) -> None:
    algorithm = replace(STOPPING[name], objective=Counting())
    world = WORLDS[where]
    whole = ob.simulate(algorithm, world, learner, seed=4, until=MANY, out=tmp_path / "whole")
    assert len(whole.entries("discard")) > 10
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


@pytest.mark.parametrize("workers", [0, 2])
def test_a_client_keeps_no_state_of_a_task_that_was_stopped(workers: int, learner: ob.TorchLearner) -> None:
    """With worker processes tasks are trained ahead, and some are done when they are stopped."""
    algorithm = replace(STOPPING["ringmaster"], objective=Counting())
    run = ob.simulate(algorithm, WORLDS["calm"], learner, seed=4, until=MANY, workers=workers)
    stopped = {entry["client"] for entry in run.entries("discard")}
    kept: dict[int, int] = {}
    for entry in run.entries("arrived"):
        kept[entry["client"]] = kept.get(entry["client"], 0) + 1
        assert entry["kept"] == kept[entry["client"]]
    assert stopped & {client for client, tasks in kept.items() if tasks > 1}


@pytest.mark.parametrize("name", STOPPING)
def test_a_stopped_task_is_counted_and_shown(name: str, tmp_path: Path) -> None:
    nothing = ob.NoTraining(5, parameters=2, samples_per_client=60, batches=3)
    run = ob.simulate(STOPPING[name], WORLDS["hard"], nothing, seed=4, until=MANY, out=tmp_path)
    s, stopped = run.summary, run.entries("discard")
    assert len(stopped) > 0
    assert s.dropped == len(run.entries("drop")) + len(stopped)
    assert s.dispatched == s.aggregated + s.dropped + s.lost + s.held + s.running
    # The models were sent, the updates were not.
    bytes_of_one = 4 * 2
    assert (s.bytes_down, s.bytes_up) == (s.dispatched * bytes_of_one, s.tasks * bytes_of_one)
    ends = {task["task"]: (task["fate"], task["end"]) for task in task_entries(run.rows())}
    assert all(ends[entry["task"]] == ("dropped", entry["t"]) for entry in stopped)


def test_time_that_a_stopped_task_took_is_shown_up_to_its_end() -> None:
    world = ob.World(seconds_per_step=[1.0, 10.0])
    run = ob.simulate(ob.ringmaster(2, 1), world, until=ob.Until(versions=5))
    timeline = make_timeline(run)
    stopped = [(s.client, s.start, s.end) for s in timeline.training if s.outcome == "stopped"]
    assert stopped == [(1, 0.0, 2.0), (1, 2.0, 4.0)]
    marks = [(m.client, m.t, m.words) for m in timeline.marks if m.kind == "stopped"]
    assert marks == [(1, t, "task stopped: its delay has reached 2 versions") for t in (2.0, 4.0)]
