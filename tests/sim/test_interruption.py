"""A run that is interrupted, however and however often, ends as if it never had been."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import offbeat as ob
from offbeat.core.learner import LocalTask
from offbeat.runs.checkpoint_tensors import read_version
from offbeat.runs.record import Checkpoint
from offbeat.runs.store import RunStore
from offbeat.runs.verify import named_files, verify
from tests.ended import ended_files
from tests.forks import Fork
from tests.options import FEW
from tests.sampling import mostly_thorough, thorough
from tests.sim.killed_driver import EVERY, LONG, WORLD
from tests.sim.sim_worlds import CALM, WORLDS, Wrapped, digits, make, normed, on_disk, outcome

UNTIL = ob.Until(tasks=60)


class Interrupting(Wrapped):
    """Sends this process a signal just before it trains certain tasks."""

    def __init__(self, learner: ob.TorchLearner, at: Collection[int], number: int = signal.SIGINT) -> None:
        super().__init__(learner)
        self.at, self.number = set(at), number

    def before(self, task: LocalTask) -> None:
        if task.task in self.at:
            self.at.remove(task.task)
            os.kill(os.getpid(), self.number)


def begin(
    directory: Path, algorithm: ob.Algorithm, learner: Any, world: ob.World = CALM, **more: Any
) -> None:
    """Start a run that its learner interrupts."""
    with pytest.raises(KeyboardInterrupt):
        ob.simulate(algorithm, world, learner, seed=4, until=UNTIL, out=directory, **more)
    assert ob.read_run(directory).status == "interrupted"


def checkpoint(directory: Path) -> Checkpoint:
    found = ob.read_run(directory).checkpoint()
    assert found is not None
    return found


def tensor_files(directory: Path) -> set[str]:
    return {p.name for p in directory.iterdir() if p.suffix in (".safetensors", ".part")}


@pytest.mark.parametrize("where", ["hard", *thorough("calm")])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("fedcompass", marks=pytest.mark.bits),
        *mostly_thorough(
            [name for name in ob.ALGORITHMS if name != "fedcompass"],
            FEW | {"asofed", "scaffold", "ringleader"},
        ),
    ],
)
def test_interrupted_five_times(name: str, where: str, learner: ob.TorchLearner, tmp_path: Path) -> None:
    algorithm, world = make(name), WORLDS[where]
    whole = ob.simulate(algorithm, world, learner, seed=4, until=UNTIL, out=tmp_path / "whole")
    broken = tmp_path / "broken"
    trained = [e["task"] for e in whole.entries("arrived")]
    moments = [trained[i] for i in (0, 5, 6, 22, 50)]
    begin(broken, algorithm, Interrupting(learner, moments[:1]), world)
    for moment in moments[1:]:
        with pytest.raises(KeyboardInterrupt):
            ob.resume(broken, algorithm, world, Interrupting(learner, [moment]), until=UNTIL)
        assert ob.read_run(broken).status == "interrupted"
        assert checkpoint(broken).journal == len(list(ob.read_run(broken).rows()))
    resumed = ob.resume(broken, algorithm, world, learner, until=UNTIL)
    assert outcome(resumed) == outcome(whole)
    assert on_disk(broken) == on_disk(tmp_path / "whole")
    assert tensor_files(broken) == ended_files(broken)
    sessions = list(ob.read_run(broken).select("SELECT events FROM sessions"))
    assert len(sessions) == 6
    assert sum(n for (n,) in sessions) == len(whole.journal)


def test_the_checkpoint_holds_what_the_run_needs(learner: ob.TorchLearner, tmp_path: Path) -> None:
    """Held updates, several base versions, and momentum; brought back into worker processes."""
    algorithm = replace(make("fedbuff"), server_steps=make("fedavgm").server_steps)
    whole = ob.simulate(algorithm, CALM, learner, seed=4, until=UNTIL, out=tmp_path / "whole")
    arrivals = whole.entries("arrived")
    stale = [
        one["task"] for i, one in enumerate(arrivals) if i % 3 != 2 and i > 20 and one["staleness"] > 0
    ]  # not the last of its buffer: it is held
    directory = tmp_path / "broken"
    begin(directory, algorithm, Interrupting(learner, stale[:1]))
    saved = checkpoint(directory)
    assert stale[0] in saved.updates
    versions = {*saved.bases.values(), *(base for base, _, _ in saved.updates.values())}
    assert len(versions) > 1
    if saved.good is not None:
        versions.add(saved.good)
    assert tensor_files(directory) == {
        saved.state,
        *(f"version-{v}.safetensors" for v in versions),
        *(f"update-{t}.safetensors" for t in saved.updates),
    }
    from safetensors.torch import load_file

    state = load_file(directory / saved.state)
    assert state["step.0.m"].abs().sum() > 0
    resumed = ob.resume(directory, algorithm, CALM, learner, until=UNTIL, workers=1)
    assert outcome(resumed) == outcome(whole)
    assert on_disk(directory) == on_disk(tmp_path / "whole")


def test_the_version_to_go_back_to_is_not_rounded(learner: ob.TorchLearner, tmp_path: Path) -> None:
    """Tasks are on their way from it, whose base clients were sent rounded."""
    wire = ob.Wire(down="bfloat16")
    begin(tmp_path, make("fedasync"), Interrupting(learner, [0]), wire=wire, guard=ob.Guard())
    saved = checkpoint(tmp_path)
    assert saved.good == 0
    assert 0 in saved.bases.values()
    initial = learner.initial(4)
    versions = [read_version(initial.layout, tmp_path, 0, number) for number in ("float32", "bfloat16")]
    assert torch.equal(versions[0].values, initial.values)
    assert torch.equal(versions[1].values, initial.rounded("bfloat16").values)
    assert set(named_files(saved)) <= tensor_files(tmp_path)
    assert verify(tmp_path).problems == []


@pytest.mark.bits
def test_batchnorm_and_dropout(tmp_path: Path) -> None:
    learner, algorithm = digits(normed), ob.fedcompass(2, 9, normalize=True)
    whole = ob.simulate(algorithm, CALM, learner, seed=4, until=UNTIL, out=tmp_path / "whole")
    begin(tmp_path / "broken", algorithm, Interrupting(learner, [20]))
    ob.resume(tmp_path / "broken", algorithm, CALM, learner, until=UNTIL)
    assert on_disk(tmp_path / "broken") == on_disk(tmp_path / "whole")
    assert int(whole.model.integers[0]) > 0


def test_sigterm_is_an_interruption(learner: ob.TorchLearner, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    begin(tmp_path / "run", make("fedavg"), Interrupting(learner, [9], signal.SIGTERM))
    assert checkpoint(tmp_path / "run").journal > 9
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    "until",
    [ob.Until(seconds=40), ob.Until(tasks=30), ob.Until(versions=12), ob.Until(seconds=1000, accuracy=0.5)],
)
def test_an_interruption_in_the_last_step_comes_too_late(
    until: ob.Until, learner: ob.TorchLearner, tmp_path: Path
) -> None:
    every = ob.Every(seconds=3)
    whole = ob.simulate(make("fedbuff"), CALM, learner, until=until, evaluate=every)

    class AtTheEnd(Wrapped):
        looks = 0

        def before(self, task: LocalTask) -> None:
            pass

        def evaluate(self, model: Any) -> Any:
            self.looks += 1
            if self.looks == len({m["version"] for m in whole.metrics}):
                os.kill(os.getpid(), signal.SIGINT)
            return super().evaluate(model)

    try:
        ob.simulate(
            make("fedbuff"), CALM, AtTheEnd(learner), until=until, evaluate=every, out=tmp_path / "run"
        )
    except KeyboardInterrupt:  # the last evaluation was not in the last step
        assert ob.read_run(tmp_path / "run").status == "interrupted"
    resumed = ob.resume(tmp_path / "run", make("fedbuff"), CALM, learner, until=until, evaluate=every)
    assert outcome(resumed) == outcome(whole)


@pytest.mark.parametrize(
    "until", [ob.Until(seconds=40), ob.Until(tasks=30), ob.Until(seconds=1000, accuracy=0.5)]
)
def test_killed_just_before_the_end_is_written(
    until: ob.Until, learner: ob.TorchLearner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object, **__: object) -> None:
        raise SystemError("killed")

    every = ob.Every(seconds=3)
    options: dict[str, Any] = {"until": until, "evaluate": every, "checkpoint_seconds": 0.0}
    whole = outcome(ob.simulate(make("fedbuff"), CALM, learner, until=until, evaluate=every))
    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "finish", die)
        with pytest.raises(SystemError):
            ob.simulate(make("fedbuff"), CALM, learner, out=tmp_path / "run", **options)
    assert outcome(ob.resume(tmp_path / "run", make("fedbuff"), CALM, learner, **options)) == whole


def test_leftovers_of_a_kill_are_cleaned_up(learner: ob.TorchLearner, tmp_path: Path) -> None:
    algorithm = make("fedbuff")
    begin(tmp_path / "run", algorithm, Interrupting(learner, [9]))
    stray = ("state-7.part", "version-99.safetensors", "update-3.part", "state-1.safetensors")
    for name in stray:
        (tmp_path / "run" / name).write_bytes(b"half a file")
    with pytest.raises(KeyboardInterrupt):
        ob.resume(tmp_path / "run", algorithm, CALM, Interrupting(learner, [30]), until=UNTIL)
    assert not tensor_files(tmp_path / "run") & set(stray)
    assert checkpoint(tmp_path / "run").state in tensor_files(tmp_path / "run")
    ob.resume(tmp_path / "run", algorithm, CALM, learner, until=UNTIL)
    assert tensor_files(tmp_path / "run") == ended_files(tmp_path / "run")


def test_a_finished_run_is_returned_as_it_is(learner: ob.TorchLearner, tmp_path: Path) -> None:
    class Untouchable(Wrapped):
        def before(self, task: LocalTask) -> None:
            raise AssertionError("trained again")

    first = ob.simulate(make("fedavgm"), CALM, learner, seed=4, until=UNTIL, out=tmp_path / "run")
    before = {p: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    again = ob.resume(tmp_path / "run", make("fedavgm"), CALM, Untouchable(learner), until=UNTIL)
    assert outcome(first) == outcome(again)
    assert {p: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before


def test_a_failure_keeps_the_last_checkpoint(learner: ob.TorchLearner, tmp_path: Path) -> None:
    class Failing(Wrapped):
        def before(self, task: LocalTask) -> None:
            if task.task == 30:
                raise ZeroDivisionError

    algorithm, options = make("fedasync"), {"until": UNTIL, "checkpoint_seconds": 0.0}
    with pytest.raises(ZeroDivisionError):
        ob.simulate(algorithm, CALM, Failing(learner), seed=4, out=tmp_path / "run", **options)
    assert ob.read_run(tmp_path / "run").status == "failed"
    assert checkpoint(tmp_path / "run").journal > 0
    whole = ob.simulate(algorithm, CALM, learner, seed=4, until=UNTIL)
    assert outcome(ob.resume(tmp_path / "run", algorithm, CALM, learner, **options)) == outcome(whole)


@pytest.fixture
def broken(learner: ob.TorchLearner, tmp_path: Path) -> Path:
    begin(tmp_path / "run", make("fedavgm"), Interrupting(learner, [30]), evaluate=ob.Every(seconds=5))
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"algorithm": ob.fedavgm(steps=5)}, "steps was 4, now it is 5"),
        ({"algorithm": ob.fedavgm(steps=4, momentum=0.5)}, "momentum was 0.9, now it is 0.5"),
        ({"algorithm": ob.fedavg(steps=4)}, "name was 'fedavgm', now it is 'fedavg'"),
        (
            {"world": ob.World(seconds_per_step=[1.0, 1.5, 2.0, 3.0, 8.0])},
            r"another world: seconds_per_step was \[1.0, .*8.0\]",
        ),
        ({"world": replace(CALM, jitter=0.1)}, "another world: jitter was 0.0, now it is 0.1"),
        ({"until": ob.Until(tasks=3)}, "version 6: reached 3 client tasks"),
        ({"until": ob.Until(seconds=5)}, "version 6: reached 5 seconds"),
        ({"evaluate": ob.Every(seconds=4)}, "evaluates at"),
        ({"evaluate": ob.Every(versions=1)}, "evaluates"),
        ({"evaluate": None}, "0 evaluations"),
    ],
)
def test_another_configuration_is_refused_with_the_first_difference(
    changed: dict[str, Any], named: str, broken: Path, learner: ob.TorchLearner
) -> None:
    before = checkpoint(broken)
    arguments = {"world": CALM, "until": UNTIL, "evaluate": ob.Every(seconds=5), **changed}
    algorithm = arguments.pop("algorithm", make("fedavgm"))
    with pytest.raises(ob.RunError, match=named):
        ob.resume(broken, algorithm, learner=learner, **arguments)
    assert checkpoint(broken) == before
    assert ob.read_run(broken).status == "interrupted"
    same = ob.resume(broken, make("fedavgm"), CALM, learner, until=UNTIL, evaluate=ob.Every(seconds=5))
    assert same.summary.tasks == 60  # the refusal did no harm


def test_another_learner_is_refused(broken: Path) -> None:
    for other in (digits(samples=400), digits(normed)):
        with pytest.raises(ob.OffbeatError, match=r"initial model|brought back"):
            ob.resume(broken, make("fedavgm"), CALM, other, until=UNTIL, evaluate=ob.Every(seconds=5))


def test_a_run_that_is_being_written_is_locked(broken: Path, learner: ob.TorchLearner) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", "import fcntl, sys, time\nf = open(sys.argv[1], 'w')\n"
         "fcntl.flock(f, fcntl.LOCK_EX)\nprint('locked', flush=True)\ntime.sleep(60)", broken / "lock"],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(ob.UsageError, match="another process is writing this run"):
            ob.resume(broken, make("fedavgm"), CALM, learner, until=UNTIL, evaluate=ob.Every(seconds=5))
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    ob.resume(broken, make("fedavgm"), CALM, learner, until=UNTIL, evaluate=ob.Every(seconds=5))


def test_creating_a_run_is_all_or_nothing(
    learner: ob.TorchLearner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while its database is made, a directory holds no run, and can be used again."""
    import offbeat.runs.store as store

    def die(_: object) -> None:
        raise SystemError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *_: die(None))
        with pytest.raises(SystemError):
            ob.simulate(make("fedavg"), CALM, learner, until=UNTIL, out=tmp_path)
    assert (tmp_path / "run.part").exists()
    assert not (tmp_path / "run.db").exists()
    ob.simulate(make("fedavg"), CALM, learner, until=UNTIL, out=tmp_path)
    reader = {"run.db-shm", "run.db-wal"}  # SQLite's, of whoever reads
    files = {p.name for p in tmp_path.iterdir()} - reader
    assert files == {"run.db", "lock", *ended_files(tmp_path)}
    assert ob.read_run(tmp_path).meta["format"] == store.FORMAT


@pytest.mark.parametrize(("name", "kills"), [("fedcompass", 3), *thorough(("fedbuff", 9), ("fedcompass", 9))])
def test_killed_at_random_moments(name: str, kills: int, tmp_path: Path) -> None:
    """A process of its own, ended by SIGKILL again and again, from the very start on."""
    directory = tmp_path / "killed"
    draw = random.Random(name)
    moments = [0.001, *(draw.uniform(0.01, 0.5) for _ in range(kills))]
    driver = Fork(Path(__file__).with_name("killed_driver.py"), directory, name, *moments)
    printed, errors = driver.communicate()
    assert driver.returncode == 0, errors
    told = json.loads(printed.splitlines()[-1])
    assert told["killed"] >= kills - 1, told  # the others came after the end
    assert told["checkpoints"] >= 1, told
    whole = ob.simulate(
        make(name), WORLD, digits(), seed=2, until=LONG, evaluate=EVERY, out=tmp_path / "whole"
    )
    learner = digits()  # the driver's, without its pauses
    workers = 1 if name == "fedbuff" else 0
    if (directory / "run.db").exists():
        ended = ob.resume(directory, make(name), WORLD, learner, until=LONG, evaluate=EVERY, workers=workers)
    else:
        raise AssertionError("not one kill came after the run was created")
    assert outcome(ended) == outcome(whole)
    assert on_disk(directory) == on_disk(tmp_path / "whole")
    database = sqlite3.connect(directory / "run.db")
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()


@pytest.mark.parametrize("name", ["fedasync", "fedasmu"])
def test_rounding_on_the_wire_outlives_interruptions(
    name: str, learner: ob.TorchLearner, tmp_path: Path
) -> None:
    wire, world = ob.Wire(down="bfloat16", up="float16"), WORLDS["hard"]
    whole = ob.simulate(make(name), world, learner, seed=4, until=UNTIL, out=tmp_path / "whole", wire=wire)
    plain = ob.simulate(make(name), world, learner, seed=4, until=UNTIL)
    assert outcome(whole) != outcome(plain)
    broken = tmp_path / "broken"
    trained = [e["task"] for e in whole.entries("arrived")]
    begin(broken, make(name), Interrupting(learner, [trained[22]]), world, wire=wire)
    with pytest.raises(
        ob.RunError, match="was started with another wire: down was 'bfloat16', now it is 'float32'"
    ):
        ob.resume(broken, make(name), world, learner, until=UNTIL)
    resumed = ob.resume(broken, make(name), world, learner, until=UNTIL, wire=wire)
    assert outcome(resumed) == outcome(whole)
    assert on_disk(broken) == on_disk(tmp_path / "whole")
