"""One algorithm, the same events and seed, three drivers: the simulator, forty lines in this file, a replay.

The driver here has its own queue and knows nothing of `offbeat.sim`; all give the same commands, and
both that train give the same bits.
"""

import dataclasses
from heapq import heappop, heappush
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import offbeat as ob
from offbeat.core.buffers import Buffers
from offbeat.core.commands import Aggregate, Discard, Drop, Measure, Send, SetTimer, Stop, Train, Upload
from offbeat.core.engine import Engine
from offbeat.core.events import Arrived, Begin, Event, Joined, Measured, Ready, Timer, WantsModel
from offbeat.core.global_model import GlobalModel
from offbeat.core.learner import LocalTask, MergePoint, TaskInputs
from offbeat.core.streams import Purpose, stream
from offbeat.sim.replay import replay
from offbeat.world.channel import Trace
from tests.conformance.settings import OPTIONS, SEED, SPEEDS
from tests.digits import equal_digits
from tests.sampling import mostly_thorough

TASKS = 30
# At 0 dB and with these gains the channels carry 1, 2, 3, 1, 2 bits per symbol.
BITS = [1.0, 2.0, 3.0, 1.0, 2.0]
# The policy that always runs.
UNSENT: dict[str, Buffers] = {
    "fedavgm": "recompute", "fedasmu": "local", "fedcompass": "local", "asofed": "recompute",
    "wireless": "local",
}  # fmt: skip
RADIO = ob.Channel(800, snr_db=0.0, fading=Trace([[1.0], [3.0], [7.0], [1.0], [3.0]]))


class Labelled(ob.NoTraining):
    def label_counts(self, client: int) -> list[int]:
        return [client, 2, 3]


def make(name: str) -> ob.Algorithm:
    return ob.ALGORITHMS[name](**OPTIONS[name])


def module() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))


@pytest.fixture(scope="module")
def learner() -> ob.TorchLearner:
    return ob.TorchLearner(
        module, equal_digits(5, samples=200, test_samples=20), ob.Training(lr=0.1, batch_size=20)
    )


Said = list[tuple[float, Any]]


def drive(algorithm: ob.Algorithm, learner: ob.TorchLearner) -> tuple[Said, GlobalModel]:
    """Carry an algorithm out by hand until so many tasks have arrived."""
    tensors = GlobalModel(algorithm, learner.initial(SEED))
    engine = Engine(algorithm.schedule, SEED, lambda _: None, tensors)
    server = engine.server
    queue: list[tuple[float, bool, int, Event]] = []
    number, said = count(), []
    bases, states, fresh, started, bits = {}, {}, {}, {}, {}  # by task, by client, by task, by task, by task

    def apply(now: float, event: Event) -> None:
        result = None
        if isinstance(event, Arrived):
            base, task = bases.pop(event.task)
            inputs = TaskInputs(states.get(event.client, {}), fresh.pop(event.task, None))
            result = learner.train(base, task, algorithm.objective, inputs)
            states[event.client] = result.state
            if algorithm.codec is not None:
                rng = stream(SEED, Purpose.CODEC, task=event.task)
                delta, spent = algorithm.codec.apply(result.delta, bits[event.task], rng)
                whole = spent + 64 * len(result.integers)
                result = replace(result, delta=delta, metrics={**result.metrics, "bits": whole})
            event = Arrived(event.client, event.task, event.steps, result.metrics)
        for command in engine.apply(now, event, result):
            said.append((now, command))
            match command:
                case Train():
                    task = LocalTask(
                        command.task, command.client, command.base, command.steps, SEED, command.lr_factor
                    )
                    bases[command.task] = (tensors.bases[command.task][1], task)
                    ask, speed = command.ask_after, SPEEDS[command.client]
                    started[command.task] = now
                    asking = WantsModel(command.client, command.task, ask)
                    end = Ready if command.hold else Arrived
                    arrival = end(command.client, command.task, command.steps)
                    due = now + (ask or command.steps) * speed
                    heappush(queue, (due, False, next(number), asking if ask else arrival))
                case Send():
                    base, task = bases[command.task]
                    merging = MergePoint(event.steps, command.version, command.clock)
                    bases[command.task] = (base, replace(task, fresh=merging))
                    fresh[command.task] = tensors.fresh[command.task][1]
                case Measure():
                    capacities = tuple((k, BITS[k]) for k in command.clients)
                    heappush(queue, (now, False, next(number), Measured(capacities, 800)))
                case Upload():
                    bits[command.task] = command.bits
                    steps = bases[command.task][1].steps
                    heappush(queue, (now, False, next(number), Arrived(command.client, command.task, steps)))
                case Discard():
                    del bases[command.task]
                case SetTimer():
                    heappush(queue, (command.at, True, next(number), Timer(command.timer)))
                case Stop():
                    raise AssertionError("none of these stops by itself")

        if isinstance(event, WantsModel):  # it goes on
            _, task = bases[event.task]
            arrival = Arrived(event.client, event.task, task.steps)
            due = started[event.task] + task.steps * SPEEDS[event.client]
            heappush(queue, (due, False, next(number), arrival))

    for client in range(learner.clients):
        n, epoch = learner.samples(client), learner.steps_per_epoch(client)
        apply(0.0, Joined(client, n, epoch, labels=tuple(learner.label_counts(client) or ())))
    apply(0.0, Begin())
    while server.counts["arrived"] < TASKS:
        now, _, _, event = heappop(queue)
        if isinstance(event, Timer) and server.timers.get(event.timer) != now:
            continue  # cancelled, or set anew
        if isinstance(event, Arrived | WantsModel | Ready) and event.task not in bases:
            continue  # stopped
        apply(now, event)
    return said, tensors


def plain(said: Said) -> list[dict[str, Any]]:
    """Commands in the words of the journal, put there by this test."""
    words = []
    for t, command in said:
        match command:
            case Train():
                row = {"client": command.client, "task": command.task, "base": command.base,
                       "steps": command.steps, **command.note}  # fmt: skip
            case Send():
                row = {"client": command.client, "task": command.task, "version": command.version}
            case Aggregate():
                row = {"version": command.version, "tasks": list(command.tasks),
                       "clients": list(command.clients), **command.note}  # fmt: skip
            case Drop():
                row = {"client": command.client, "task": command.task, "reason": command.reason}
            case Measure():
                row = {"clients": list(command.clients)}
            case Upload():
                row = {"client": command.client, "task": command.task, "bits": command.bits}
            case Discard():
                row = {"client": command.client, "task": command.task, "reason": command.reason}
            case SetTimer():
                row = {"timer": command.timer, "at": command.at}
            case _:
                row = {"timer": command.timer}
        words.append({"t": t, **row})
    return words


@pytest.fixture
def single_threaded() -> Any:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


@pytest.mark.usefixtures("single_threaded")
@pytest.mark.parametrize("name", ob.ALGORITHMS)
def test_three_drivers_agree(name: str, learner: ob.TorchLearner, tmp_path: Path) -> None:
    said, tensors = drive(make(name), learner)
    world = ob.World(seconds_per_step=SPEEDS, channel=RADIO)
    run = ob.simulate(make(name), world, learner, seed=SEED, until=ob.Until(tasks=TASKS), out=tmp_path)
    recorded = [e for e in run.journal if e["kind"] == "command"]
    mine = plain(said)
    assert len(mine) == len(recorded) > TASKS
    for own, entry in zip(mine, recorded, strict=True):
        assert own == {key: entry[key] for key in own}
    assert torch.equal(tensors.model.values, run.model.values)
    assert torch.equal(tensors.model.integers, run.model.integers)
    assert int(run.model.integers[0]) > 0
    assert (tensors.version, len(tensors.updates)) == (run.summary.versions, run.summary.held)
    result = replay(ob.read_run(tmp_path), make(name))
    assert result.difference is None
    assert result.commands == len(mine)


@pytest.mark.usefixtures("single_threaded")
@pytest.mark.parametrize(
    ("name", "policy"), mostly_thorough(product(UNSENT, ["local", "recompute"]), UNSENT.items())
)
def test_drivers_agree_where_buffers_are_not_sent(
    name: str, policy: Buffers, learner: ob.TorchLearner
) -> None:
    algorithm = dataclasses.replace(make(name), buffers=policy)
    _, tensors = drive(algorithm, learner)
    world = ob.World(seconds_per_step=SPEEDS, channel=RADIO)
    run = ob.simulate(algorithm, world, learner, seed=SEED, until=ob.Until(tasks=TASKS))
    start = learner.initial(SEED)
    assert torch.equal(tensors.model.values[-20:], start.values[-20:])
    assert torch.equal(tensors.model.integers, start.integers)
    assert torch.equal(learner.estimated(tensors.model, SEED).values, run.model.values)


@pytest.mark.parametrize("name", ob.ALGORITHMS)
def test_a_journals_events_drive_a_server_to_the_same_commands(name: str, tmp_path: Path) -> None:
    """With everything a world has: tasks are lost, clients come and go."""
    world = ob.World(
        seconds_per_step=ob.laws.LogNormal(1.0),
        jitter=0.1,
        availability=ob.Availability(dropout=0.1, join=[0, 0, 0, 5, 30], period=50, present=0.8),
        channel=RADIO,
    )
    nothing = Labelled(5, parameters=2, samples_per_client=30, batches=3)
    run = ob.simulate(make(name), world, nothing, seed=SEED, until=ob.Until(tasks=TASKS), out=tmp_path)
    assert {"lost", "left", "joined"} <= {e["name"] for e in run.journal}
    assert replay(ob.read_run(tmp_path), make(name)).difference is None
